"""The commands that need torch alone run where nothing else is installed."""

import subprocess
import sys

import pytest
import torch

# As in tests/without_zoo; torch brings jinja2 and filelock, but they are not ours.
CODE = """
import sys
from importlib.abc import MetaPathFinder

KEPT = {"switch_ema", "torch", "torchgen", "functorch", "triton", "nvidia", "cuda"}
KEPT |= {"typing_extensions", "sympy", "mpmath", "networkx", "fsspec", "setuptools"}
KEPT |= {"_distutils_hack", "distutils", *sys.stdlib_module_names}

class Hide(MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        if fullname.partition(".")[0] not in KEPT:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)

sys.meta_path.insert(0, Hide())
for name in [n for n in sys.modules if n.partition(".")[0] not in {*KEPT, "__main__"}]:
    del sys.modules[name]
from switch_ema.cli import main
main(sys.argv[1:])
"""


@pytest.fixture
def light(tmp_path):
    """Run a command; return its exit code, output and errors."""

    def run(*arguments):
        command = [sys.executable, "-c", CODE, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        return done.returncode, done.stdout, done.stderr

    return run


def test_help_and_suggest(light):
    code, out, err = light("--help")
    assert (code, err) == (0, "") and "suggest" in out
    code, out, err = light("suggest", "--steps-per-epoch", 63, "--epochs", 30)
    assert (code, err) == (0, "") and "EMA(model, optimizer" in out
    code, out, err = light("suggest", "--epochs", 30, "--schedule", "zigzag")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("switch-ema: argument --schedule: invalid choice: 'zigzag'")


def test_merge(light, tmp_path):
    paths = [tmp_path / f"{n}\x1b[2J.pt" for n in range(3)]
    for value, path in enumerate(paths):
        torch.save({"w": torch.full((2,), float(value))}, path)
    code, out, err = light("merge", *paths, "--out", "m.safetensors")
    assert (code, err) == (0, "")
    assert "0.333333" in out and "Merged: m.safetensors\n" in out
    assert "\x1b" not in out and r"0\x1b[2J.pt" in out
    code, out, err = light("merge", "m.safetensors", paths[0], "--out", "n.pt")
    assert (code, err) == (0, "")
    assert torch.load(tmp_path / "n.pt")["w"].tolist() == [0.5, 0.5]


@pytest.mark.parametrize("kind", ["csv", "json", "jsonl"])
def test_judge(light, tmp_path, kind):
    for method, gain in (("plain", 0.0), ("ema", 0.9)):
        (tmp_path / method).mkdir()
        for seed in range(4):
            last = 2 + seed + gain * (1 + 0.0173 * seed**2)
            rows = [f'{{"epoch": {e}, "acc": {v}}}' for e, v in ((0, 1), (1, last))]
            text = {
                "csv": f"epoch,acc\n0,1\n1,{last}\n",
                "json": f"[{', '.join(rows)}]",
                "jsonl": "\n".join(rows),
            }[kind]
            (tmp_path / method / f"seed-{seed}.{kind}").write_text(text)
    code, out, err = light("judge", "plain", "ema")
    assert (code, err) == (0, "")
    assert "ema helps: +0.95" in out and "[97% CI]" in out
    assert "Next: use ema." in out
    assert "8 logs with 2 values of acc each (higher is better), paired by" in out
    if kind == "csv":
        code, out, err = light("judge", "plain", "ema", "--verbose")
        assert (code, err) == (0, "") and "ema helps: " in out and "How verdicts" in out
        code, out, err = light("judge", "plain", "ema", "--format", "md")
        assert (code, err) == (0, "") and "| ema |" in out


def test_other_commands_name_what_to_install(light):
    for command, library in (
        ("compare", "tyro"),
        ("report", "tyro"),
        ("theory", "rich"),
    ):
        code, out, err = light(command)
        sentence = f'{command} needs {library}: pip install "switch-ema[cli]".'
        assert (code, out, err) == (2, "", f"switch-ema: {sentence}\n")


def test_inspect_extract_and_doctor(light, tmp_path):
    for step in (1, 2):
        live = {"w": torch.arange(64.0) * step}
        average = {"w": torch.arange(64.0) * step / 2}
        torch.save({"model": live, "ema": average}, tmp_path / f"{step}.pt")
    code, out, err = light("inspect", tmp_path / "1.pt")
    assert (code, err) == (0, "") and "average" in out
    code, out, err = light("extract", tmp_path / "1.pt", "--to", "ema.safetensors")
    assert (code, err) == (0, "") and "Extracted: ema.safetensors" in out
    code, out, err = light("doctor", tmp_path / "1.pt", tmp_path / "2.pt")
    assert code in (0, 2) and err == ""
