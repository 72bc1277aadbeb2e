"""From rows of the paper to comparisons."""

from hashlib import sha1

import pytest

from switch_ema import swa_budget
from switch_ema.averaging.schedules.auto import surviving_share
from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.recipe import Metric
from switch_ema.bench.spec import parse_spec
from switch_ema.paper import TABLES
from switch_ema.paper.reproduce.plan import plan_row
from switch_ema.paper.reproduce.presets import RowSettings, row_config
from switch_ema.paper.show.figures.figure import PaperFigure
from switch_ema.paper.tables.table import (
    FRESH,
    PaperMetric,
    PaperRow,
    RowSetting,
    values_of,
)
from switch_ema.zoo.data.vision import TRAINING_IMAGES
from switch_ema.zoo.decays import Decays
from switch_ema.zoo.procedures import create_procedure
from switch_ema.zoo.tasks.ssl.settings import BYOL, MOCO_V2, MOCO_V3

FINE_TUNED = {
    **dict.fromkeys(("mask-rcnn-2x", "cascade-mask-rcnn-3x"), "imagenet"),
    **dict.fromkeys(("cascade-mask-rcnn-9x", "retinanet-r50-2x"), "imagenet"),
    "retinanet-swin-t-1x": "imagenet",
    "bert-yelp": "bert-base-uncased",
}
"""Rows that Appendix B starts from pre-trained weights, and these."""

ROWS = [
    pytest.param(row, id=f"{table.name}-{row.name}")
    for table in TABLES.values()
    for row in table.rows
]

CNN = (
    "vgg13-bn",
    "resnet18",
    "resnext50-32x4d",
    "resnet101",
    "wrn28-10",
    "densenet121",
)
_PRINTED_OPTIMIZERS = {
    row.name: "sgd" if row.name in CNN else "adamw" for row in TABLES["table-3"].rows
} | {"wrn28-8": "sgd"}
"""Table 3 is trained by SGD or AdamW, by network; Table 2 has them in the names."""


def find(table, name):
    return next(row for row in TABLES[table].rows if row.name == name)


@pytest.fixture(autouse=True)
def without_data(monkeypatch, tmp_path):
    monkeypatch.delenv("SWITCH_EMA_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def config_of(row, **settings):
    return row_config(row, RowSettings(**settings))


@pytest.mark.parametrize("scale", ["small", "paper"])
@pytest.mark.parametrize("row", ROWS)
def test_every_row_can_be_planned_without_its_data(row, scale):
    config = config_of(row, scale=scale)
    cells = make_plan(config)
    named = [row.method_of(label) for label in config.methods]
    assert named == [*row.methods_at(scale)]
    trained = sorted(
        label for cell in cells for label in cell.methods for _ in cell.seeds
    )
    assert trained == sorted(config.seeds * len(config.tasks) * config.methods)
    if scale == "paper" and row.paper.epochs is not None:  # else the task's own
        scheduled = {cell.recipe.scheduled_epochs for cell in cells}
        assert scheduled == {row.paper.epochs}
    # SWA trains for a quarter longer where the paper prints a value of it.
    printed = row.metrics[0].value("swa") is not None
    for cell in cells:
        is_swa = any(row.method_of(m) == "swa" and printed for m in cell.methods)
        total = swa_budget(cell.recipe.scheduled_epochs)[0]
        assert cell.recipe.epochs == (total if is_swa else cell.recipe.scheduled_epochs)


def test_methods_that_only_read_the_weights_share_a_training():
    cells = make_plan(config_of(find("table-3", "resnet18"), seeds=1))
    assert len(cells) == 4 * 2
    assert {cell.methods for cell in cells} == {
        ("plain", "ema"),
        ("swa:budget=1.25",),
        ("lookahead",),
        ("switch-ema",),
    }


def test_an_average_that_teaches_has_a_training_of_its_own():
    cells = make_plan(config_of(find("table-4", "byol-cifar100"), seeds=1))
    assert [cell.methods for cell in cells] == [
        ("ema",),
        ("plain",),
        ("swa:budget=1.25",),
        ("switch-ema",),
    ]


def test_decays_are_those_of_the_paper():
    config = config_of(find("table-2", "deit-s-adamw"), scale="paper")
    assert config.methods == ("plain", "ema:decay=0.9999", "switch-ema:decay=0.999")
    config = config_of(find("table-4", "simmim-cifar100"), scale="paper")
    assert config.methods[1:] == (
        *("ema:decay=0.9", "swa:budget=1.25", "switch-ema:decay=0.999"),
    )


def test_decays_of_teachers_can_be_those_of_the_table():
    row, alone = find("table-4", "byol-stl10"), find("table-4", "simclr-stl10")
    found = {
        kind: config_of(row, scale="paper", teachers=kind).methods
        for kind in ("method", "table", "half")
    }
    assert found["method"] == ("ema", "plain", "swa:budget=1.25", "switch-ema")
    # Table A1, STL-10, contrastive.
    assert found["table"][0] == "ema:decay=0.9999,warmup=none"
    assert found["table"][3] == "switch-ema:decay=0.999,warmup=none"
    for label in (found["half"][0], found["half"][3]):
        options = parse_spec(label).options
        assert options["warmup"] == "none"
        # An epoch has 25 steps of 4,096 images.
        share = surviving_share(options["decay"], 25)
        assert share == pytest.approx(0.5, abs=1e-3)
    other = config_of(alone, scale="paper", teachers="table")
    assert other == config_of(alone, scale="paper")


@pytest.mark.parametrize("name", ["moco-v2", "byol", "moco-v3"])
def test_steps_per_epoch_of_teachers_are_those_of_their_settings(name):
    settings = {"moco-v2": MOCO_V2, "byol": BYOL, "moco-v3": MOCO_V3}[name]
    teacher = find("table-4", f"{name}-cifar100").paper.teacher
    assert teacher.steps == TRAINING_IMAGES["cifar100"] // settings.batch


@pytest.mark.parametrize("row", ROWS)
def test_procedures_have_the_same_decays_epochs_and_optimizers(row):
    options = row.paper.options
    if "procedure" in options:
        procedure = create_procedure(options["procedure"], network=options["network"])
        decays = Decays(procedure.ema_decay, procedure.switch_ema_decay)
        assert decays == row.paper.decays
        assert procedure.epochs == row.paper.epochs
        by_name = row.name.removeprefix(f"{options['network']}-")
        named = _PRINTED_OPTIMIZERS.get(row.name, by_name)
        assert parse_spec(procedure.optimizer).name == named


def test_no_two_rows_are_the_same_training():
    """Or the same luck would be counted twice."""
    configs = {}
    for table in TABLES.values():
        if isinstance(table, PaperFigure):  # it shows one training, or those of tables
            continue
        for row in table.rows:
            for scale in ("small", "paper"):
                config = config_of(row, scale=scale)
                key = config.to_json()
                assert configs.setdefault(key, row) is row


def test_masked_methods_are_fine_tuned_at_the_papers_scale():
    row = find("table-5", "mae")
    assert "protocol=fine-tune" in config_of(row, scale="paper").tasks[0]
    assert "protocol" not in config_of(row).tasks[0]


def test_the_protocol_is_measured_once_at_the_papers_scale():
    for row in (find("table-5", "byol"), find("table-5", "mae")):
        config = config_of(row, scale="paper")
        assert f"protocol_every={row.paper.epochs}" in config.tasks[0]
        short = config_of(row, scale="paper", epochs=3)
        assert "protocol_every=3" in short.tasks[0]
        assert "protocol_every" not in config_of(row).tasks[0]
    classified = find("table-2", "deit-s-lamb")
    assert "protocol_every" not in config_of(classified, scale="paper").tasks[0]


def test_epochs_and_data_can_be_given():
    row = find("table-3", "resnet18")
    assert config_of(row, scale="paper", epochs=2).epochs == 2
    config = config_of(row, epochs=2, dataset="cifar10")
    assert config.epochs == 2 and "dataset=cifar10" in config.tasks[0]


@pytest.mark.parametrize(
    ("table", "name", "share"),
    [("table-3", "wrn28-10", 0.80), ("table-2", "deit-s-adamw", 0.43)],
)
def test_rows_of_classification_keep_the_papers_surviving_share(table, name, share):
    """Without and with augmentation, of networks that fit their images."""
    config = config_of(find(table, name))
    without, augmented = config.tasks
    assert "augment=False" in without and "augment=True" in augmented
    for cell in make_plan(config):
        decay = cell.recipe.methods["switch-ema"]["decay"]
        assert surviving_share(decay, 1000 / 50) == pytest.approx(share, abs=0.005)
        assert cell.recipe.schedule == "cosine"
        assert cell.recipe.scheduled_epochs == (40 if cell.task == without else 120)


def test_rows_of_classification_take_the_hardest_data_there_is(monkeypatch, tmp_path):
    row = find("table-3", "resnet18")
    assert all("dataset=digits" in task for task in config_of(row).tasks)
    (tmp_path / "cifar10.npz").touch()
    monkeypatch.setenv("SWITCH_EMA_DATA", str(tmp_path))
    assert all("dataset=cifar10" in task for task in config_of(row).tasks)
    chosen = config_of(row, dataset="cifar100")
    assert all("dataset=cifar100" in task for task in chosen.tasks)


def test_rows_have_as_many_seeds_as_can_be_trained():
    stacked, alone = find("table-3", "resnet18"), find("table-3", "vgg13-bn")
    assert [len(cell.seeds) for cell in make_plan(config_of(stacked))] == 8 * [16]
    cells = make_plan(config_of(alone))
    assert {cell.seeds for cell in cells} == {
        (seed,) for seed in range(FRESH, FRESH + 5)
    }
    assert config_of(alone, seeds=2).seeds == 2
    assert config_of(find("table-8", "cifar10")).seeds == 3


def synthetic(**paper):
    metric = PaperMetric(
        metric=Metric(name="perplexity", higher_is_better=False, decimals=1),
        values=values_of(("plain", "ema:update_every=2", "switch-ema"), "67 66 65"),
        printed_gain=0.4,
    )
    return PaperRow(
        name="adam",
        title="Adam",
        small=RowSetting(task="lm", optimizer="adam:lr=0.003"),
        paper=RowSetting(task="lm", options={"batch": 20}, **paper),
        metrics=(metric,),
    )


def test_the_optimizer_of_a_row_is_passed_on():
    row = synthetic(optimizer="adabelief", epochs=200, decays=Decays(0.9999, 0.999))
    assert config_of(row).optimizer == "adam:lr=0.003"
    config = config_of(row, scale="paper")
    assert (config.optimizer, config.epochs) == ("adabelief", 200)
    assert config.tasks == ("lm:batch=20",)
    assert config.methods == (
        *("plain", "ema:decay=0.9999,update_every=2", "switch-ema:decay=0.999"),
    )
    found = [row.method_of(label) for label in config.methods]
    assert found == ["plain", "ema:update_every=2", "switch-ema"]


STORED = {
    "table-2": ("83b9a3239bb3a5f6", "a58b3c754f2ca5f0", "6f614ee13383bc15"),
    "table-3": ("6c10b4ff9afa84e7", "e2e82ce59ae2cc7a", "90be47e5e485e1a9"),
    "table-4": ("0a2069801a0f02c8", "0eeef13835479ac9", "75ecead883b00254"),
    "table-5": ("9a7a37697768e01b", "39cbe393cd7f6f1d", "749241509406c871"),
}
"""Hashes of the configurations of all rows, as runs that are stored have them."""


@pytest.mark.parametrize("name", STORED)
def test_rows_that_are_stored_are_found_again(name):
    settings = ({}, {"scale": "paper"}, {"scale": "paper", "epochs": 3})
    for given, stored in zip(settings, STORED[name], strict=True):
        texts = [
            row.name + config_of(row.shortened(), **given).to_json()
            for row in TABLES[name].rows
        ]
        assert sha1("\n".join(texts).encode()).hexdigest()[:16] == stored


def test_step_options_reach_every_row():
    row = find("table-3", "resnet18")
    given = {"accumulate": 2, "evaluate_every": 5, "compile": True, "tf32": True}
    recipe = make_plan(config_of(row, seeds=1, **given))[0].recipe
    found = (recipe.accumulate, recipe.evaluate_every, recipe.compile, recipe.tf32)
    assert found == (2, 5, True, True)


def test_bf16_is_the_default_at_the_papers_scale_only():
    row = find("table-3", "resnet18")
    assert config_of(row).precision is None
    assert config_of(row, scale="paper").precision == "auto"
    assert config_of(row, scale="paper", precision="no").precision == "no"


def test_set_replaces_options_of_the_task():
    row = find("table-3", "resnet18")
    config = config_of(row, scale="paper", set="noise=0.5,batch=64")
    options = parse_spec(config.tasks[0]).options
    assert (options["noise"], options["batch"]) == (0.5, 64)
    assert options["network"] == "resnet18"
    with pytest.raises(UsageError, match="has no option 'wrong'"):
        make_plan(config_of(row, set="wrong=1"))
    with pytest.raises(UsageError, match="--set: options are written as key=value"):
        config_of(row, set="workers")


def test_processes_that_read_are_not_part_of_a_row(tmp_path):
    def plan(table, row, given):
        settings = RowSettings(scale="paper", set=given)
        return plan_row(TABLES[table], find(table, row), settings, tmp_path)

    first = plan("table-3", "resnet18", "workers=16,batch=50")
    assert first.readers == 16 and "workers" not in first.config.tasks[0]
    first.folder.mkdir(parents=True)
    (first.folder / "config.json").write_text(first.config.to_json())
    again = plan("table-3", "resnet18", "workers=2,batch=50")
    assert again.readers == 2 and again.config == first.config
    with pytest.raises(UsageError, match="holds this row with other settings"):
        plan("table-3", "resnet18", "workers=16,batch=25")
    with pytest.raises(UsageError, match="awd-lstm has no option 'workers'"):
        plan("table-11", "lstm-sgd", "workers=2")
    with pytest.raises(UsageError, match="workers must be a whole number"):
        plan("table-3", "vgg13-bn", "workers=two")


def test_bad_settings_are_told():
    with pytest.raises(UsageError, match="precision must be no, bf16, fp16 or auto"):
        RowSettings(precision="fp8")
    with pytest.raises(UsageError, match="scale must be small or paper, got 'huge'"):
        RowSettings(scale="huge")
    with pytest.raises(UsageError, match="dataset needs the small scale"):
        RowSettings(scale="paper", dataset="digits")


def test_other_methods_take_the_decays_of_the_row():
    row = next(r for r in TABLES["table-3"].rows if r.name == "resnet18")
    methods = ("ema", "plain", "ema@lr*f", "ema+best", "ema:decay=0.5", "lookahead")
    settings = RowSettings(scale="paper", methods=methods)
    assert row_config(row, settings).methods == (
        *("plain", "ema:decay=0.99", "ema@lr*f:decay=0.99", "ema+best:decay=0.99"),
        *("ema:decay=0.5", "lookahead"),
    )
    with pytest.raises(UsageError, match="must include plain, the baseline of resnet1"):
        row_config(row, RowSettings(methods=("ema", "switch-ema")))


@pytest.mark.parametrize("row", ROWS)
def test_rows_ask_for_pre_trained_weights_where_the_paper_does(row):
    for from_scratch in (False, True):
        settings = RowSettings(scale="paper", from_scratch=from_scratch)
        (task, *_) = row_config(row, settings).tasks
        wanted = FINE_TUNED.get(row.name)
        expected = "none" if wanted and from_scratch else wanted
        assert parse_spec(task).options.get("weights") == expected
    (small, *_) = row_config(row, RowSettings()).tasks
    assert "weights" not in parse_spec(small).options


def test_weights_can_be_given_and_small_rows_have_none():
    (row,) = [row for row in TABLES["table-7"].rows if row.name == "retinanet-r50-2x"]
    (task,) = row_config(row, RowSettings(scale="paper", set="weights=r50.pth")).tasks
    assert parse_spec(task).options["weights"] == "r50.pth"
    with pytest.raises(UsageError, match="from_scratch needs the paper's scale"):
        RowSettings(from_scratch=True)
