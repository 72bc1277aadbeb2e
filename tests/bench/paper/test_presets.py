"""From rows of the paper to comparisons."""

import pytest

from switch_ema.bench.errors import UsageError
from switch_ema.bench.paper import TABLES
from switch_ema.bench.paper.presets import DECAYS, RowSettings, kind_of, row_config
from switch_ema.bench.plan.cells import make_plan
from switch_ema.bench.procedures import create_procedure
from switch_ema.bench.spec import parse_spec

ROWS = [
    pytest.param(row, id=f"{table.name}-{row.name}")
    for table in TABLES.values()
    for row in table.rows
]


def find(table, name):
    return next(row for row in TABLES[table].rows if row.name == name)


def config_of(row, **settings):
    return row_config(row, RowSettings(**settings))


@pytest.mark.parametrize("scale", ["small", "paper"])
@pytest.mark.parametrize("row", ROWS)
def test_every_row_can_be_planned_without_its_data(row, scale):
    config = config_of(row, scale=scale)
    cells = make_plan(config)
    assert [parse_spec(method).name for method in config.methods] == [*row.methods]
    trained = sorted(label for cell in cells for label in cell.methods)
    assert trained == sorted(3 * config.methods)
    if scale == "paper":
        assert {cell.recipe.epochs for cell in cells} == {row.epochs}


def test_methods_that_only_read_the_weights_share_a_training():
    cells = make_plan(config_of(find("table-3", "resnet18"), seeds=1))
    assert {cell.methods for cell in cells} == {
        ("plain", "ema", "swa"),
        ("lookahead",),
        ("switch-ema",),
    }


def test_an_average_that_teaches_has_a_training_of_its_own():
    cells = make_plan(config_of(find("table-4", "byol-cifar100"), seeds=1))
    assert [cell.methods for cell in cells] == [
        ("ema",),
        ("plain",),
        ("swa",),
        ("switch-ema",),
    ]


def test_decays_are_those_of_the_paper():
    config = config_of(find("table-2", "deit-s-adamw"), scale="paper")
    assert config.methods == ("plain", "ema:decay=0.9999", "switch-ema:decay=0.999")
    config = config_of(find("table-4", "simmim-cifar100"), scale="paper")
    assert config.methods[1:] == ("ema:decay=0.9", "swa", "switch-ema:decay=0.999")


@pytest.mark.parametrize("row", ROWS)
def test_procedures_have_the_same_decays_epochs_and_optimizers(row):
    if row.procedure:
        procedure = create_procedure(row.procedure, network=row.network)
        decays = (procedure.ema_decay, procedure.switch_ema_decay)
        assert decays == DECAYS[row.dataset, kind_of(row)]
        assert procedure.epochs == row.epochs
        assert parse_spec(procedure.optimizer).name == row.optimizer


def test_no_two_rows_are_the_same_training():
    """Or the same luck would be counted twice."""
    configs = {}
    for table in TABLES.values():
        for row in table.rows:
            for scale in ("small", "paper"):
                config = config_of(row, scale=scale)
                key = (*config.tasks, config.methods, config.first_seed, config.epochs)
                assert configs.setdefault(key, row) is row


def test_masked_methods_are_fine_tuned_at_the_papers_scale():
    row = find("table-5", "mae")
    assert "protocol=fine-tune" in config_of(row, scale="paper").tasks[0]
    assert "protocol" not in config_of(row).tasks[0]


def test_the_protocol_is_measured_once_at_the_papers_scale():
    for row in (find("table-5", "byol"), find("table-5", "mae")):
        config = config_of(row, scale="paper")
        assert f"protocol_every={row.epochs}" in config.tasks[0]
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


def test_bad_settings_are_told():
    with pytest.raises(UsageError, match="scale must be small or paper, got 'huge'"):
        RowSettings(scale="huge")
    with pytest.raises(UsageError, match="dataset is for the small scale"):
        RowSettings(scale="paper", dataset="digits")
