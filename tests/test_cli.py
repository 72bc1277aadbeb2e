"""The command line as a user meets it."""

import io
import json
import re
import subprocess
import sys

import pytest

from switch_ema import __version__
from switch_ema._lazy import describe_named, load_named
from switch_ema.cli import COMMANDS, main
from tests.bench.conftest import TINY_TASK
from tests.bench.report.test_machine import parsed


def call(capsys, *arguments):
    """Run a command; return its exit code, output and errors."""
    code = 0
    try:
        main(list(arguments))
    except SystemExit as left:
        code = left.code
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "tiny.py").write_text(TINY_TASK)
    return tmp_path


TINY = (
    "compare",
    "tiny.py:Tiny",
    "--seeds",
    "2",
    "--executor",
    "inline",
    "--device",
    "cpu",
)


def test_compare_report_and_runs(folder, capsys):
    code, out, _ = call(capsys, *TINY, "--methods", "plain", "ema", "--name", "mine")
    assert code == 0
    assert out.strip().endswith("Report: runs/mine/report.html")
    page = folder / "runs" / "mine" / "report.html"
    page.unlink()
    code, _, _ = call(capsys, "report", "runs/mine")
    assert code == 0 and page.exists()
    code, out, _ = call(capsys, "runs")
    assert code == 0 and "mine" in out and "tiny.py:Tiny: undecided" in out
    code, out, _ = call(capsys, "report", "runs/mine", "--format", "csv")
    assert code == 0 and out.startswith("task,metric,") and out.count("\n") > 2
    code, out, _ = call(capsys, "report", "runs/mine", "--methods-paragraph")
    assert code == 0 and out.startswith("We compared EMA (Polyak and Juditsky, 1992)")
    assert "the same 2 seeds (0 to 1)" in " ".join(out.split())
    latex = ("--methods-paragraph", "--format", "latex")
    code, out, _ = call(capsys, "report", "runs/mine", *latex)
    assert code == 0 and out.startswith("We compared EMA \\citep{polyak1992averaging}")
    csv = ("--methods-paragraph", "--format", "csv")
    code, _, err = call(capsys, "report", "runs/mine", *csv)
    assert code == 2 and "--methods-paragraph is text; drop --format csv." in err


def test_json_is_all_of_the_standard_output(folder, capsys):
    own = (*TINY, "--methods", "plain", "ema", "--name", "mine", "--format", "json")
    code, out, err = call(capsys, *own, "--fail-unless", "decided")
    assert code == 1 and err.rstrip().endswith("ema undecided.")
    assert "Plan" in err and parsed(out)["name"] == "mine"
    code, again, err = call(capsys, "report", "runs/mine", "--format", "json")
    assert (code, again, err) == (0, out, "")
    code, out, err = call(capsys, *own, "--fail-unless", "swa:helps")
    assert (code, out) == (2, "") and "swa, which is not compared with plain" in err
    code, _, _ = call(capsys, "report", "runs/mine", "--fail-unless", "helps")
    assert code == 1


def test_a_stored_configuration_is_repeated(folder, capsys):
    call(capsys, *TINY, "--methods", "plain", "ema", "--name", "mine")
    saved = "runs/mine/config.json"
    code, out, _ = call(capsys, "compare", "--config", saved, "--name", "twin")
    assert code == 0 and "runs/twin/report.html" in out
    for more in (("moons",), ("--seeds", "8"), ("--first_seed=0",)):  # also defaults
        code, _, err = call(capsys, "compare", *more, "--config", saved)
        assert code == 2 and "--config repeats a stored comparison" in err


def test_a_run_that_is_damaged_does_not_hide_the_others(folder, capsys):
    call(capsys, *TINY, "--methods", "plain", "ema", "--name", "mine")
    for name in ("broken", "zero"):
        (folder / "runs" / name).mkdir()
    (folder / "runs" / "broken" / "results.sqlite").write_text("some notes" * 100)
    code, out, _ = call(capsys, "runs")
    assert code == 0 and "tiny.py:Tiny" in out
    assert "broken" in out and "unreadable" in out


def test_commands_in_the_page_can_be_pasted(folder, capsys):
    arguments = ("--methods", "plain", "ema", "--out", "my runs", "--name", "mine")
    code, _, _ = call(capsys, *TINY, *arguments)
    page = (folder / "my runs" / "mine" / "report.html").read_text()
    assert code == 0
    assert "compare --config &#39;my runs/mine/config.json&#39;" in page


def test_every_command_works_on_an_ascii_terminal(folder, monkeypatch):
    """It was a traceback after the training, before the report was written."""
    for command in (
        (*TINY, "--methods", "plain", "ema", "--name", "mine"),
        (*TINY, "--methods", "plain", "ema", "--name", "told", "--verbose"),
        *(("report", "runs/mine", "--format", kind) for kind in ("md", "csv", "latex")),
        ("report", "runs/mine", "--methods-paragraph"),
        *(("runs",), ("tasks",), ("methods",), ("optimizers",), ("data",), ("--help",)),
        ("tasks", "moons"),
        ("methods", "ema"),
        ("compare", "--help"),
        ("judge", "no\N{EN DASH}log.csv"),
    ):
        streams = [io.TextIOWrapper(io.BytesIO(), encoding="ascii") for _ in range(2)]
        monkeypatch.setattr(sys, "stdout", streams[0])
        monkeypatch.setattr(sys, "stderr", streams[1])
        try:
            main(list(command))
        except SystemExit as left:
            assert (left.code or 0) == 2 * (
                command[0] == "judge"
            ) or "--help" in command
        out, err = (stream.buffer.getvalue().decode("ascii") for stream in streams)
        assert "Traceback" not in out + err
        if command == ("report", "runs/mine", "--format", "md"):
            assert " +- " in out
    for name in ("mine", "told"):
        assert (folder / "runs" / name / "report.html").is_file()


def test_the_report_is_written_before_anything_is_printed(folder, capsys, monkeypatch):
    """Whoever reads the output may be gone, as head is after ten lines."""
    call(capsys, *TINY, "--methods", "plain", "ema", "--name", "mine")
    page = folder / "runs" / "mine" / "report.html"
    page.unlink()

    def fail(summary, console):
        raise KeyboardInterrupt

    monkeypatch.setattr("switch_ema.bench.report.terminal.print_findings", fail)
    code, _, _ = call(capsys, "report", "runs/mine")
    assert code == 130 and page.is_file()


@pytest.mark.parametrize("command", ["tasks", "methods", "optimizers", "data"])
def test_lists(folder, capsys, command):
    code, out, _ = call(capsys, command)
    assert code == 0
    expected = {
        "tasks": "noisy-digits",
        "methods": "switch-ema",
        "optimizers": "adabelief",
        "data": "cifar10",
    }
    assert expected[command] in out


def test_help_has_examples(capsys):
    code, out, _ = call(capsys, "compare", "--help")
    assert code == 0 and "switch-ema compare moons --seeds 100" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tsks",), "unknown command 'tsks'; did you mean tasks? Known are compare"),
        (("walk",), "unknown command 'walk'; known are compare, report"),
        (
            ("methods", "emma"),
            "unknown method 'emma'; did you mean ema",
        ),
        (
            ("tasks", "moon"),
            "unknown task 'moon'; did you mean moons",
        ),
        (
            ("compare", "moon"),
            "unknown task 'moon'; did you mean moons",
        ),
        (
            ("compare", "--methods", "emma"),
            "unknown method 'emma'; did you mean ema",
        ),
        (("compare", "--optimizer", "adan-w"), "unknown optimizer 'adan-w'; did you"),
        (("compare", "--optimizer", "sgd:rate=1"), "sgd has no option rate"),
        (("compare", "--schedule", "cosin"), "'cosin'; did you mean cosine?"),
        (
            ("compare", "digits", "--methods", "ema"),
            "ema alone has nothing to be compared with; write --methods plain ema.",
        ),
        (
            ("compare", "digits", "--methods", "plain"),
            "plain alone has nothing to be compared with; write --methods plain ema.",
        ),
        (("compare", "--seeds", "0"), "seeds must be at least 1, got 0"),
        (("compare", "nothing.py:Task"), "nothing.py: no such file"),
        (("compare", "broken.py:Task"), "broken.py, line 3: NameError"),
        (
            ("compare", "tiny.py:Tony"),
            "tiny.py: there is no task 'Tony'; its tasks are",
        ),
        (("compare", "tiny.py:Tiny:size=3"), "has no option 'size'; its options are"),
        (("compare", "--config", "none.json"), "none.json does not exist"),
        (("compare", "--config", "notes"), "notes is a folder; name a file in it"),
        (("compare", "--config", "latin.json"), "latin.json is not UTF-8 text"),
        (("compare", "--device", "banana"), "device must be cpu, cuda or None"),
        (
            ("landscape", "notes", "--device", "banana"),
            "device must be cpu, cuda or None",
        ),
        (
            ("reproduce", "table-3", "--device", "banana"),
            "device must be cpu, cuda or None",
        ),
        (("compare", "--name", "."), "name must be a folder name, not '.'"),
        (("compare", "--name", "../x"), "name must be a folder name"),
        (("compare", "--methods", "plain", "ema:device=banana"), "'ema:device=banana'"),
        ((*TINY, "--tune", "9", "--dry-run"), "tune must be at most 4, got 9"),
        ((*TINY, "--out", "tiny.py"), "tiny.py"),
        (("report", "nowhere"), "does not exist; is it the folder of a run?"),
        (("report", "notes"), "cannot be used: file is not a database"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_two(
    folder, capsys, arguments, message
):
    (folder / "broken.py").write_text("\n\nundefined_name\n")
    (folder / "latin.json").write_bytes('{"tasks": ["é"]}'.encode("latin-1"))
    (folder / "notes").mkdir()
    (folder / "notes" / "results.sqlite").write_text("no database, only some notes")
    code, _, err = call(capsys, *arguments)
    assert code == 2
    assert message in err
    assert err.startswith("switch-ema: ") and err.count("\n") == 1
    assert "Traceback" not in err


def test_values_that_cannot_be_read_are_refused_by_the_parser(capsys):
    code, _, err = call(capsys, "compare", "--seeds", "many")
    assert code == 2 and "Traceback" not in err


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_help_lists_the_commands(capsys, arguments):
    code, out, _ = call(capsys, *arguments)
    assert code == 0
    for name, where in COMMANDS.items():
        assert name in out
        summary = (load_named(where).__doc__ or "").partition("\n")[0]
        assert describe_named(where) == summary
    assert out.count("\n") <= 25
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("command", COMMANDS)
def test_help_fills_the_terminal(capsys, monkeypatch, command, width):
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, _ = call(capsys, command, "--help")
    assert code == 0 and len(out.splitlines()) > 3
    assert max(map(len, out.splitlines())) <= width
    # A line that was wrapped twice goes on at the left margin.
    _, options = out.split(" options\n", maxsplit=1)
    assert all(line.startswith(" ") for line in options.splitlines() if line)


def test_a_comparison_is_told_in_few_lines(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    arguments = ("compare", "digits:size=100", "--seeds", "3", "--epochs", "2")
    code, out, _ = call(capsys, *arguments, "--executor", "inline", "--device", "cpu")
    assert code == 0 and "[97% CI]" in out
    assert out.count("\n") <= 40
    code, again, _ = call(capsys, *arguments, "--dry-run")
    assert code == 0 and re.search(r"About \d+ s of training on one core", again)


@pytest.mark.parametrize(
    ("tracker", "told"),
    [
        ("tensorbord", "unknown tracker 'tensorbord'; did you mean tensorboard?"),
        ("clearml", "--track clearml: its library is not installed"),
    ],
)
def test_trackers_are_checked_before_anything_is_trained(folder, capsys, tracker, told):
    code, _, err = call(capsys, *TINY, "--track", tracker)
    assert code == 2 and told in err
    assert not (folder / "runs").exists()


def test_version(capsys):
    assert call(capsys, "--version") == (0, f"switch-ema {__version__}\n", "")


def test_options_of_a_task_and_of_a_method(folder, capsys):
    code, out, _ = call(capsys, "tasks", "images")
    assert code == 0 and "network" in out
    assert "small-cnn, resnet18 or mlp" in out and "images per step" in out
    code, out, _ = call(capsys, "tasks", "tiny.py:Tiny")
    assert code == 0 and "noise" in out and "0.5" in out
    code, out, _ = call(capsys, "methods", "ema")
    assert code == 0 and "update_every" in out and "statistics, average or cop" in out
    assert "as in ema:decay=auto." in out
    assert call(capsys, "methods", "ema:decay=0.9")[:2] == (0, out)
    code, out, _ = call(capsys, "methods", "plain")
    assert code == 0 and "No options" in out


def test_tasks_that_need_data_say_whether_it_was_found(folder, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setenv("SWITCH_EMA_DATA", str(folder))
    (folder / "fashion_mnist.npz").touch()
    code, out, _ = call(capsys, "tasks")
    assert code == 0 and out.count("needs the data") == 5
    assert "needs the data fashion_mnist: found" in out
    assert "needs the data agedb: not found" in out
    assert out.endswith("switch-ema data shows how to get the data not found.\n")
    code, out, _ = call(capsys, "tasks", "rcf-mnist")
    assert code == 0 and f"found in {folder / 'fashion_mnist.npz'}" in out
    code, out, _ = call(capsys, "tasks", "age")
    assert code == 0 and "Needs the data agedb unless another is chosen: set SW" in out


def test_a_closed_pipe_is_no_error():
    command = f"{sys.executable} -m switch_ema tasks | true"
    run = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert run.stderr == ""


LIGHT = [
    ("--help",),
    ("--version",),
    ("tasks",),
    ("methods",),
    ("optimizers",),
    *((command, "--help") for command in COMMANDS),
]


def test_help_and_lists_import_nothing_heavy():
    """One process for all: each would start an interpreter of its own."""
    code = (
        "import json, sys; from switch_ema.cli import main\n"
        "for arguments in json.loads(sys.argv[1]):\n"
        "    try: main(arguments)\n"
        "    except SystemExit as left: assert not left.code\n"
        "    found = {'matplotlib', 'numpy', 'plotly', 'scipy', 'torch'}\n"
        "    assert not found & set(sys.modules), arguments\n"
    )
    command = [sys.executable, "-c", code, json.dumps(LIGHT)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("argument", ["--help", "tasks"])
def test_the_module_imports_nothing_heavy_either(argument):
    command = [sys.executable, "-X", "importtime", "-m", "switch_ema", argument]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in run.stderr.splitlines()}
    assert "switch_ema.cli" in imported
    assert not imported & {"torch", "numpy", "scipy"}


def test_a_file_with_one_task_is_compared_by_its_name(folder, capsys):
    rest = ("--methods", "plain", "ema", *TINY[2:], "--name", "mine")
    code, out, _ = call(capsys, "compare", "tiny.py", *rest)
    assert code == 0 and (folder / "runs/mine/report.html").is_file()
    code, out, _ = call(capsys, "runs")
    assert code == 0 and "tiny.py: undecided" in out
    rest = (*rest[:-1], "fails")
    code, _, err = call(capsys, "compare", "tiny.py:fail=True", *rest)
    assert code == 2 and "tiny.py, line 37: KeyError" in err
