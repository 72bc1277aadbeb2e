"""`switch-ema reproduce` as a user meets it."""

import pytest

from switch_ema.bench.plan.config import CompareConfig
from switch_ema.paper import TABLES
from switch_ema.paper.reproduce import estimate, plan
from switch_ema.paper.show.figures.figure import PaperFigure
from tests.bench.conftest import TINY_TASK
from tests.bench.report.test_machine import parsed
from tests.paper.show.test_table_section import VIDEO
from tests.test_cli import call


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to run in, where every row trains for less than a second."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "tiny.py").write_text(TINY_TASK)

    def row_config(row, settings):
        methods = tuple(m for m in row.methods if m in ("plain", "ema", "switch-ema"))
        return CompareConfig(
            tasks=("tiny.py:Tiny",),
            methods=methods,
            seeds=settings.seeds,
            epochs=settings.epochs or 1,
        )

    monkeypatch.setattr(plan, "row_config", row_config)
    return tmp_path


RUN = (
    "reproduce",
    "table-5",
    "--executor",
    "inline",
    "--device",
    "cpu",
    "--seeds",
    "2",
)


def test_a_recipe_is_shown_without_training(folder, capsys):
    code, out, err = call(capsys, *RUN, "--show", "mae")
    assert code == 0 and err == ""
    assert "table-5 mae: MAE, DeiT-B" in out and "tiny.py:Tiny" in out
    assert "Parameter group 1" in out and "a switch keeps" not in out
    assert "Method switch-ema" in out and "Plan" not in out
    assert not (folder / "runs").exists()
    code, _, err = call(capsys, *RUN, "--show", "nothing")
    assert code != 0 and "no row of table-5 matches 'nothing'" in err


def test_a_row_is_planned_trained_and_shown(folder, capsys):
    code, out, err = call(capsys, *RUN, "--rows", "mae")
    assert code == 0 and err == ""
    assert "Plan" in out and "in all, estimated from one epoch per row" in out
    assert "MAE, DeiT-B, 800ep" in out and "83.48" in out and "+0.15" in out
    assert "current recipes: byol, moco-v3 and simmim." in out
    assert "comparable with the" in out
    assert (folder / "runs/reproduce-table-5/mae/results.sqlite").is_file()
    page = (folder / "runs/reproduce-table-5/report.html").read_text()
    assert "DeiT-B" in page and "83.48" in page and "tiny.py:Tiny" in page
    code, out, _ = call(capsys, *RUN, "--rows", "mae")
    assert code == 0 and "mae: plain" in out and "done" in out


def test_json_has_the_verdicts_on_every_row(folder, capsys):
    code, out, err = call(capsys, *RUN, "--rows", "mae", "--format", "json")
    document = parsed(out)
    assert code == 0 and "MAE, DeiT-B, 800ep" in err and document["name"] == "table-5"
    (task,) = document["tasks"]
    assert (task["task"], task["setting"]) == ("tiny.py:Tiny", "mae")
    code, out, err = call(capsys, "reproduce", "--list", "--format", "json")
    assert (code, out) == (2, "") and "--format json is for tables by name" in err


def test_a_dry_run_estimates_and_trains_nothing(folder, capsys, monkeypatch):
    monkeypatch.setattr(estimate, "_measure_epoch", None)
    code, out, _ = call(capsys, *RUN, "--dry-run")
    assert code == 0
    assert all(name in out for name in ("byol", "moco-v3", "simmim", "mae"))
    assert "in all, estimated from times measured on our machine" in out
    assert not (folder / "runs").exists()


def test_the_papers_scale_is_planned_without_measuring(folder, capsys, monkeypatch):
    monkeypatch.setattr(estimate, "_measure_epoch", None)
    code, out, _ = call(capsys, *RUN, "--scale", "paper", "--dry-run")
    assert code == 0 and "unknown" in out


def test_the_plan_of_a_cluster_says_what_it_costs_and_what_is_refused(
    tmp_path, capsys, monkeypatch
):
    pytest.importorskip("ray")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWITCH_EMA_DATA", str(tmp_path))
    plan = ("reproduce", "table-5", "--scale", "paper", "--rows", "mae")
    cluster = ("--executor", "ray", "--workers-per-training", "8", "--dry-run")
    code, out, _ = call(capsys, *plan, *cluster)
    words = " ".join(out.split())
    assert code == 0 and "Total GPU-hours: unknown until every row was" in words
    assert "Each training splits its batches over 8 workers" in words
    assert "cannot be divided" not in words
    methods = ("--methods", "plain", "posthoc-ema")
    code, out, _ = call(capsys, *plan, *cluster, *methods)
    words = " ".join(out.split())
    assert "cannot be divided among several workers, because posthoc-ema" in words


def test_the_plan_breaks_no_names_in_80_columns(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("SWITCH_EMA_DATA", str(tmp_path))
    plan = ("reproduce", "table-7", "--scale", "paper", "--dry-run")
    code, out, _ = call(capsys, *plan)
    lines = [line.split() for line in out.splitlines()]
    assert code == 0 and ["table-7", "retinanet-swin-t-1x", "3", "unknown"] in lines
    assert all(
        part in out
        for part in ("backbone=swin-t, ", "weights=imagenet", "switch-ema:decay=0.999")
    )
    assert max(map(len, out.splitlines())) <= 80


def test_pretraining_on_imagenet_is_planned_without_its_data(tmp_path, capsys):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SWITCH_EMA_DATA", str(tmp_path))
        code, out, err = call(
            capsys, "reproduce", "table-5", "--scale", "paper", "--dry-run"
        )
    assert code == 0 and err == ""
    assert all(name in out for name in ("byol", "moco-v3", "simmim", "mae"))


def test_a_missing_folder_ends_a_run_with_one_sentence(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWITCH_EMA_DATA", str(tmp_path))
    run = (
        "reproduce",
        "table-5",
        "--scale",
        "paper",
        "--executor",
        "inline",
        "--device",
        "cpu",
    )
    code, _, err = call(capsys, *run, "--rows", "byol")
    assert code == 2 and err.count("\n") == 1 and "Traceback" not in err
    assert "the data imagenet was not found" in err
    assert "not imagenet/{train,val}" in err


def test_a_folder_of_another_layout_is_told(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "imagenet" / "train" / "n01440764").mkdir(parents=True)
    (tmp_path / "imagenet" / "val").mkdir()
    monkeypatch.setenv("SWITCH_EMA_DATA", str(tmp_path))
    run = (
        "reproduce",
        "table-5",
        "--scale",
        "paper",
        "--executor",
        "inline",
        "--device",
        "cpu",
    )
    code, _, err = call(capsys, *run, "--rows", "mae")
    assert code == 2 and err.count("\n") == 1
    assert "must contain train/<class>/<image> and val/<class>/<image>" in err
    assert "train/ with 1 folders and 0 files and val/ with 0 folders" in err


def test_trainings_go_to_the_executor_that_was_asked_for(folder, capsys, monkeypatch):
    chosen = []
    monkeypatch.setattr(
        "switch_ema.commands.reproduce.train_rows",
        lambda plans, options, console, stored: chosen.append(options),
    )
    pytest.importorskip("ray")
    ray = ("--executor", "ray", "--address", "head:6379")
    code, out, _ = call(capsys, *RUN, "--rows", "mae", *ray)
    assert code == 0 and "unknown" in out
    assert (chosen[0].executor, chosen[0].address) == ("ray", "head:6379")


def test_the_list_is_the_papers_table(folder, capsys):
    code, out, _ = call(capsys, "reproduce", "table-3", "--list", "--rows", "swin-?")
    assert code == 0
    (line,) = [line for line in out.splitlines() if "Swin-T" in line]
    for cell in ("79.07", "79.17", "79.30", "79.28", "79.74", "+0.67"):
        assert cell in line
    assert "VGG" not in out
    code, out, _ = call(capsys, "reproduce", "--list")
    assert code == 0 and all(name in out for name in TABLES)


def test_the_list_has_a_line_for_each_metric(folder, capsys, monkeypatch):
    monkeypatch.setitem(TABLES, "table-x", VIDEO)
    code, out, _ = call(capsys, "reproduce", "table-x", "--list")
    assert code == 0
    mse, psnr = (line for line in out.splitlines() if "simvp" in line)
    assert "MSE, lower is better, gains in %" in mse and "32.06" in mse
    assert "PSNR (dB), higher is better, gains in %" in psnr and "21.85" in psnr


def test_docs_are_written_from_what_is_published(folder, capsys):
    call(capsys, *RUN, "--rows", "simmim", "--publish")
    before = (folder / "evidence/table-5/simmim.jsonl").read_bytes()
    code, out, _ = call(capsys, "reproduce", "--write-docs", "docs/results.md")
    assert code == 0 and "docs/results.md" in out
    overview = (folder / "docs/results.md").read_text()
    pages = {page.stem: page.read_text() for page in folder.glob("docs/results/*.md")}
    text = "".join(pages.values())
    tables = sum(not isinstance(table, PaperFigure) for table in TABLES.values())
    assert "`switch-ema reproduce --write-docs docs/results.md`" in overview
    families = {t.family for t in TABLES.values() if not isinstance(t, PaperFigure)}
    assert set(pages) == families and "" not in families
    link = (
        "results/language.md#table-11-language-modelling-on-penn-treebank-by-optimizer"
    )
    assert f"]({link})" in overview
    assert text.count("No row of this table has been run") == tables - 1
    assert "| SimMIM, DeiT-B, 800ep |  |" in text
    opening = overview.partition("\n## ")[0]
    assert "![Differences by row](figures/results.svg)" in opening
    assert "of 1 row without any difference, 0.0 are expected" in opening
    picture = (folder / "docs/figures/results.svg").read_bytes()
    assert b"SimMIM, DeiT-B" in picture and b"Switch EMA - EMA in the paper" in picture
    call(capsys, "reproduce", "--write-docs", "docs/results.md")
    assert (folder / "docs/figures/results.svg").read_bytes() == picture
    assert "| 84.16 | +0.31 |" in text
    after = (folder / "evidence/table-5/simmim.jsonl").read_bytes()
    assert after == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("reproduce",), "name a table: table-1, table-2, table-3"),
        (("reproduce", "table-x"), "unknown table 'table-x'; did you mean"),
        ((*RUN, "--rows", "moby"), "no row of table-5 matches 'moby'; the rows"),
        ((*RUN, "--seeds", "0"), "seeds must be at least 1, got 0"),
        ((*RUN, "--epochs", "-1"), "epochs must be at least 1, got -1"),
        ((*RUN, "--jobs", "-1"), "jobs must be at least 0, got -1"),
        (("reproduce", "table-5", "--list", "--rows", "x"), "matches 'x'"),
        (
            (*RUN, "--executor", "moon"),
            "executor must be local, ray, slurm or inline, got 'moon'",
        ),
        ((*RUN, "--address", "here:1"), "address needs --executor ray"),
        (
            (*RUN, "--scale", "paper", "--dataset", "digits"),
            "dataset needs the small scale",
        ),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_two(
    folder, capsys, arguments, message
):
    code, _, err = call(capsys, *arguments)
    assert code == 2
    assert message in err
    assert err.startswith("switch-ema: ") and err.count("\n") == 1
    assert "Traceback" not in err


def test_other_settings_than_the_stored_are_refused(folder, capsys):
    call(capsys, *RUN, "--rows", "mae")
    code, _, err = call(capsys, *RUN, "--rows", "mae", "--epochs", "2")
    assert code == 2 and "holds this row with other settings" in err


def test_help_has_examples(folder, capsys):
    code, out, _ = call(capsys, "reproduce", "--help")
    assert code == 0 and "switch-ema reproduce --write-docs docs/results.md" in out
