"""Names and options as users type them."""

import pytest

from switch_ema.bench.errors import UsageError
from switch_ema.bench.loading import (
    create_task,
    described_options,
    load_task_class,
    options_of,
)
from switch_ema.bench.spec import Spec
from switch_ema.bench.task import SeedBatchTask
from switch_ema.zoo.tasks.registry import DATA, TASKS, describe_task, import_task
from switch_ema.zoo.tasks.toy.digits import NoisyDigits


def test_descriptions_are_one_sentence_of_the_docstring():
    for name in TASKS:
        description = describe_task(name)
        assert description.endswith("."), name
        assert (import_task(name).__doc__ or "").partition("\n")[0] == description


def test_text_and_spec_mean_the_same():
    by_text = create_task("noisy-digits:noise=0.5,size=100", (3,))
    by_spec = create_task(Spec("noisy-digits", {"noise": 0.5, "size": 100}), (3,))
    assert type(by_text) is type(by_spec) is NoisyDigits
    assert by_text.seed == by_spec.seed == 3
    assert by_text.y.equal(by_spec.y)


def test_class_comes_with_its_options():
    task_class, spec = load_task_class("images:noise=0.3")
    assert task_class is import_task("images")
    assert spec == Spec("images", {"noise": 0.3})


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(UsageError) as caught:
        load_task_class("digit")
    message = str(caught.value)
    assert "'digit'" in message
    assert all(name in message for name in TASKS)


@pytest.mark.parametrize("name", TASKS)
def test_unknown_option_lists_the_known_ones_with_defaults(name):
    with pytest.raises(UsageError) as caught:
        load_task_class(f"{name}:epoch=3")
    message = str(caught.value)
    assert f"{name} has no option 'epoch'" in message
    for option in options_of(import_task(name)).values():
        assert f"{option.name}={option.default}" in message
    assert "split" not in message
    assert "seed" not in message


@pytest.mark.parametrize("name", TASKS)
def test_every_option_is_described_with_its_values(name):
    for option in described_options(import_task(name)):
        assert option.meaning, option.name
        if option.default.isidentifier() and option.default not in (
            *("None", "True", "False"),
        ):  # a name is one of those that are listed
            assert option.default in f"{option.meaning} {option.values}", option.name


@pytest.mark.parametrize("name", TASKS)
def test_tasks_that_need_data_are_marked(name, monkeypatch, tmp_path):
    monkeypatch.delenv("SWITCH_EMA_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if name not in DATA:
        create_task(name, (0,))
        return
    with pytest.raises(UsageError, match=f"the data {DATA[name]} was not found"):
        create_task(name, (0,))


@pytest.mark.parametrize("option", ["split=validation", "seed=3", "seeds=3"])
def test_seed_and_split_are_not_options(option):
    with pytest.raises(UsageError, match="has no option"):
        load_task_class(f"digits:{option}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("digits:noise=much", "noise must be a number, got 'much'"),
        ("digits:size=10.5", "size must be a whole number, got 10.5"),
        ("images:size=few", "size must be a whole number or None, got 'few'"),
        ("images:augment=1", "augment must be True or False, got 1"),
        ("images:dataset=3", "dataset must be text, got 3"),
        ("digits:noise=1.5", r"noise must be in \[0, 1\), got 1.5"),
        ("digits:size=1797", "size must be below 1797"),
        ("images:size=5000", "size must be at most 1000, got 5000"),
        ("images:dataset=stl10", "dataset must be 'digits' or 'mnist'"),
        ("images:network=vgg", "network must be 'small-cnn'"),
        ("mnist1d:network=rnn", "network must be 'mlp' or 'cnn'"),
        ("rotation:dataset=faces", "dataset must be 'digits' or 'rcf'"),
        ("rotation:size=2000", "size must be at most 1000, got 2000"),
        ("lm:dataset=shakespeare", "dataset must be 'pydoc' or 'wikitext2'"),
        ("lm:dropout=1", r"dropout must be in \[0, 1\), got 1"),
        ("circles:batch=0", "batch must be a whole number of at least 1, got 0"),
    ],
)
def test_bad_values_are_told_in_one_line(text, message):
    with pytest.raises(UsageError, match=message) as caught:
        create_task(text, (0,))
    assert "\n" not in str(caught.value)


def test_only_stacked_tasks_take_several_seeds():
    stacked = create_task("moons", (4, 5))
    assert isinstance(stacked, SeedBatchTask)
    assert stacked.seeds == (4, 5)
    assert create_task("digits", (4, 5)).seeds == (4, 5)
    with pytest.raises(UsageError, match="mnist1d takes one seed, got 2"):
        create_task("mnist1d:network=gru", (4, 5))
