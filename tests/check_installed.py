"""What a user has after `pip install switch-ema` alone; `make dist` runs it.

It has to be run in an environment that has the wheel and torch, and nothing else.
"""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

import switch_ema


def main() -> None:
    """Train with the library, call the console script, ask for what is missing."""
    assert "site-packages" in switch_ema.__file__, switch_ema.__file__
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ema = switch_ema.EMA(model, optimizer)
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
    with ema.averaged():
        assert ema.steps == 1
    script = Path(sys.executable).with_name("switch-ema")
    assert shutil.which(str(script)), script
    assert run(script, "--version") == (0, f"switch-ema {switch_ema.__version__}")
    code, text = run(script, "--help")
    assert code == 0 and "compare" in text, text
    for library in ("numpy", "rich", "safetensors", "tyro"):
        assert find_spec(library) is None, f"{library} is installed"
    with TemporaryDirectory() as folder:
        check_commands(script, Path(folder))
    print(f"switch-ema {switch_ema.__version__} works with torch alone.")


def check_commands(script: Path, folder: Path) -> None:
    """Run the commands that need torch alone, and one that needs more."""
    code, text = run(script, "suggest", "--steps-per-epoch", 500, "--epochs", 90)
    assert code == 0 and "EMA(model, optimizer" in text, text
    checkpoints = [folder / "0.pt", folder / "1.pt"]
    for value, path in enumerate(checkpoints):
        torch.save({"w": torch.full((2,), float(value))}, path)
    for first, name in ((checkpoints[0], "a.safetensors"), ("a.safetensors", "b.pt")):
        code, text = run(
            script, "merge", folder / first, checkpoints[1], "--out", folder / name
        )
        assert code == 0 and "Merged: " in text, text
    assert torch.load(folder / "b.pt")["w"].tolist() == [0.75, 0.75]
    for method, gain in (("plain", 0.0), ("ema", 0.9)):
        (folder / method).mkdir()
        for seed in range(4):
            value = 2 + seed + gain * (1 + 0.0173 * seed**2)
            log = f"epoch,acc\n0,1\n1,{value}\n"
            (folder / method / f"seed-{seed}.csv").write_text(log)
    code, text = run(script, "judge", folder / "plain", folder / "ema")
    assert code == 0 and "helps" in text, text
    code, text = run(script, "compare", "digits")
    assert code == 2 and 'compare needs tyro: pip install "switch-ema[cli]"' in text
    assert "Traceback" not in text, text


def run(*command: object) -> tuple[int, str]:
    """Return the exit code and all that was printed."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True
    )
    return done.returncode, (done.stdout + done.stderr).strip()


if __name__ == "__main__":
    main()
