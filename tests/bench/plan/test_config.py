"""Configurations are checked, stored and read back."""

import subprocess
import sys

import pytest

from switch_ema.bench.errors import UsageError
from switch_ema.bench.plan.config import CompareConfig
from switch_ema.bench.task import Recipe


def test_json_round_trip():
    config = CompareConfig(tasks=("moons",), seeds=3, clip=1.5, schedule="cosine")
    assert CompareConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "must be a JSON object"),
        ('{"sedes": 3}', "unknown keys sedes; known are"),
        ('{"seeds": 0}', "seeds must be at least 1, got 0"),
        ('{"seeds": "8"}', "seeds must be a whole number, got '8'"),
        ('{"seeds": 2.5}', "seeds must be a whole number, got 2.5"),
        ('{"seeds": true}', "seeds must be a whole number, got True"),
        ('{"epochs": "3"}', "epochs must be a whole number or None, got '3'"),
        ('{"clip": "1"}', "clip must be a number or None, got '1'"),
        ('{"tasks": "digits"}', "tasks must be a list of texts, got 'digits'"),
        ('{"methods": [["plain"]]}', r"methods must be a list of texts, got \[\["),
        ('{"methods": [1]}', r"methods must be a list of texts, got \[1\]"),
    ],
)
def test_json_that_is_wrong(text, message):
    with pytest.raises(UsageError, match=message):
        CompareConfig.from_json(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"methods": ()}, "methods must be given once each, got none"),
        ({"smallest_effect": 0.0}, "smallest_effect must be a number above 0, got 0.0"),
        ({"smallest_effect": float("nan")}, "smallest_effect must be a number above 0"),
        ({"tasks": ("moons", "moons")}, r"got \['moons'\] twice"),
    ],
)
def test_values_that_are_wrong(options, message):
    with pytest.raises(UsageError, match=message):
        CompareConfig(**options)


def test_only_given_parts_of_a_recipe_are_replaced():
    recipe = Recipe(epochs=30, clip=2.0, methods={"ema": {"decay": 0.9}})
    changed = CompareConfig(epochs=3, schedule="cosine").recipe_for(recipe)
    assert (changed.epochs, changed.schedule) == (3, "cosine")
    assert (changed.clip, changed.methods) == (2.0, {"ema": {"decay": 0.9}})


def test_names_of_runs_follow_the_settings():
    first, second = CompareConfig(), CompareConfig(epochs=4)
    assert first.default_name.startswith("noisy-digits-digits-")
    assert first.default_name == CompareConfig().default_name != second.default_name
    assert CompareConfig(seeds=4).default_name == first.default_name
    odd = CompareConfig(tasks=("../my dir/file.py:Task:a=1",))
    assert "/" not in odd.default_name and " " not in odd.default_name


def test_names_of_runs_are_names_in_any_script():
    assert CompareConfig(tasks=("задача.py:Task",)).default_name.startswith("задача-")
    assert CompareConfig(tasks=("___.py:Task",)).default_name.startswith("run-")


def test_an_edited_task_is_another_run(tmp_path):
    file = tmp_path / "task.py"
    file.write_text("size = 1\n")
    config = CompareConfig(tasks=(f"{file}:Mine:size=50",))
    first = config.default_name
    assert first == config.default_name
    file.write_text("size = 2\n")
    assert config.default_name != first
    assert CompareConfig().sources == ""


def test_a_configuration_imports_nothing_that_trains():
    code = (
        "import sys\n"
        "import switch_ema.bench.plan.config, switch_ema.bench.execute.options\n"
        "heavy = {'torch', 'numpy', 'scipy', 'accelerate', 'matplotlib', 'rich'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 200_000, "nested too deeply"),
        ('{"seeds": ' + "9" * 5000 + "}", "is not JSON: Exceeds the limit"),
        ('{"seeds": 1000000000000000000000000000000}', "seeds must be at most 100000"),
        (
            '{"first_seed": 1000000000000000000000000000000}',
            "first_seed must be at most",
        ),
        (
            '{"epochs": 1000000000000000000000000000000}',
            "epochs must be at most 1000000",
        ),
        ('{"tasks": ["\\ud800"]}', "is not valid text"),
        ('{"tasks": ["a\\u0000.py:A"]}', "is not valid text"),
        ('{"tasks": ' + "[" * 900 + "]" * 900 + "}", "tasks must be a list of texts"),
    ],
)
def test_hostile_values_are_one_sentence(text, message):
    with pytest.raises(UsageError, match=message) as refused:
        CompareConfig.from_json(text)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"epochs": 2}, 0.5),  # 5 of 20 epochs do not fit: as large a share of 2
        ({"epochs": 10}, 5.0),
        ({"epochs": 2, "warmup_epochs": 1.0}, 1.0),
        ({}, 5.0),
    ],
)
def test_a_warmup_that_does_not_fit_keeps_its_share(given, expected):
    recipe = Recipe(epochs=20, warmup_epochs=5)
    assert CompareConfig(**given).recipe_for(recipe).warmup_epochs == expected
