"""`switch-ema compare --script`, as it is typed."""

import sys

SCRIPT = ("compare", "--script", "python train.py --seed {seed}")


def test_the_plan_has_two_trainings_for_each_seed(call):
    code, out, _ = call(*SCRIPT, "--seeds", "3", "--metric", "loss", "--dry-run")
    assert code == 0 and "plain, ema" in out and "switch-ema" in out
    assert out.count("its own") == 2


def test_bad_input_is_one_sentence(call):
    for more, sentence in (
        (("digits",), "--script replaces the tasks; remove them"),
        (("--track", "tensorboard"), "--track is for tasks; a script"),
        (("--epochs", "3"), "epochs does not apply to a script"),
        (("--config", "x.json"), "--config repeats a stored comparison"),
    ):
        arguments = ("compare", *more, *SCRIPT[1:])
        code, _, err = call(*arguments, "--dry-run")
        assert code == 2 and sentence in err


def test_what_cannot_be_noticed_is_said_before_the_training(
    call, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    code, out, _ = call(*SCRIPT, "--dry-run")
    assert code == 0 and "Watched for edits: train.py." in out
    script = ("compare", "--script", "python -m pkg.train {seed}")
    code, out, _ = call(*script, "--dry-run")
    assert code == 0 and "The module pkg.train was not found" in " ".join(out.split())


def test_the_last_lines_of_a_script_that_failed_can_be_read(call, tmp_path):
    (tmp_path / "train.py").write_text(
        "def load():\n    raise OSError('no [red]data\\x1b[2J')\n\nload()\n"
    )
    script = f"{sys.executable} train.py {{seed}}"
    code, out, err = call(
        *("compare", "--script", script, "--executor", "inline", "--device", "cpu"),
        *("--out", tmp_path, "--name", "run"),
    )
    assert code == 2 and err.count("\n") == 1 and "Traceback" not in err.split("|")[0]
    block = out.partition("The last lines of ")[2].splitlines()
    assert block[0].endswith(".err:")  # not wrapped, so that it can be copied
    shown = [line for line in block if line.startswith("  ")]
    assert shown[0] == "  Traceback (most recent call last):"
    assert "    load()" in "\n".join(shown)
    assert shown[-1] == "  OSError: no [red]data\\x1b[2J"
    assert "15 trainings are left" in err
