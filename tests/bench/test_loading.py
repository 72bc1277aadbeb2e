"""Tasks in the user's own file, and what can be wrong with them."""

import sys
from pathlib import Path

import pytest

from switch_ema.bench.errors import UsageError
from switch_ema.bench.loading import create_task, load_task_class
from tests.zoo.tasks.helpers import measure, train

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_task.py"


def message_of(text, **keywords):
    with pytest.raises(UsageError) as caught:
        create_task(text, (0,), **keywords)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "mine.py"
        path.write_text(text)
        return path

    return write


def test_the_example_is_a_task():
    task = create_task(f"{EXAMPLE}:Wine", (0,))
    model, losses = train(task, 5)
    assert losses[-1] < losses[0]
    assert measure(task, model)["accuracy"] > 80


def test_the_example_takes_options_and_a_split():
    task = create_task(f"{EXAMPLE}:Wine:size=60", (0,), split="validation")
    assert len(task.train[0]) == 48
    assert len(task.test[0]) == 12
    assert "has no option 'sise'; its options are size=100" in message_of(
        f"{EXAMPLE}:Wine:sise=60"
    )


def test_a_file_is_run_once():
    first, _ = load_task_class(f"{EXAMPLE}:Wine")
    second, _ = load_task_class(f"{EXAMPLE}:Wine:size=60")
    assert first is second
    assert sys.modules[first.__module__].Wine is first


def test_missing_file():
    assert message_of("nowhere.py:Mine") == "nowhere.py: no such file."


@pytest.mark.parametrize("ending", [":Beer", ":cross_entropy"])
def test_missing_class_lists_the_tasks_of_the_file(ending):
    assert message_of(f"{EXAMPLE}{ending}").endswith("its tasks are Wine.")


SEVERAL = """
import argparse

from switch_ema.bench.task import Metric, Task

class Base(Task):
    metrics = (Metric(name="error", higher_is_better=False),)
    def model(self): ...
    def optimizer(self, model): ...
    def train_loader(self, epoch): ...
    def loss(self, model, batch): ...

class One(Base):
    def evaluate(self, model): ...

{more}

if __name__ == "__main__":
    argparse.ArgumentParser().parse_args()
"""


@pytest.mark.parametrize("ending", ["", ":size=60"])
def test_a_file_with_one_task_needs_no_class_name(ending):
    task = create_task(f"{EXAMPLE}{ending}", (0,))
    assert type(task).__name__ == "Wine"


def test_only_complete_tasks_of_a_file_count(write):
    task = create_task(str(write(SEVERAL.format(more=""))), (0,))
    assert type(task).__name__ == "One"


def test_a_file_with_several_tasks_lists_them(write):
    path = write(SEVERAL.format(more="class Two(One): ..."))
    said = f"{path} has several tasks; write {path}:One or {path}:Two."
    assert message_of(str(path)) == said


SCRIPT = """
import argparse

import torch
{imports}

class Net(torch.nn.Module): ...

parser = argparse.ArgumentParser()
parser.add_argument("--lr")
parser.add_argument("{seed}")
args = parser.parse_args()
raise ValueError("the training has started")
"""


@pytest.mark.parametrize("name", ["", ":Net", ":main"])
@pytest.mark.parametrize("seed", ["--seed", "--random-seed"])
def test_a_training_script_is_not_run_but_pointed_to_its_option(write, seed, name):
    path = write(SCRIPT.format(imports="", seed=seed))
    assert message_of(f"{path}{name}") == (
        f"{path} is a script, not a task: call switch_ema.trial in it "
        f'(docs/own-runs.md) and write --script "python {path} {seed} {{seed}}".'
    )


def test_a_script_that_calls_trial_only_needs_its_option(write):
    text = SCRIPT.format(imports="from switch_ema import trial", seed="--seed")
    path = write(text.replace("raise", "trial(Net())\nraise"))
    assert message_of(str(path)).endswith(
        f'not a task: write --script "python {path} --seed {{seed}}".'
    )
    example = EXAMPLE.with_name("own_script.py")
    assert "is a script, not a task: write --script" in message_of(str(example))


def test_a_command_is_pointed_to_its_option():
    assert message_of("python train.py").endswith(
        'no such file; a command is --script "python train.py --seed {seed}".'
    )


@pytest.mark.parametrize("text", ["x = 1\n", "class Mine:\n    metrics = ()\n"])
def test_file_without_tasks(write, text):
    assert message_of(f"{write(text)}:Mine").endswith(
        "no task 'Mine'; it has no class that derives from switch_ema.bench.task.Task."
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import os\n\nclass Mine(\n", "line 3: SyntaxError: '(' was never closed"),
        ("x = 1\ny = z\n", "line 2: NameError: name 'z' is not defined"),
        (
            "def f():\n    return {}['k']\n\nf()\n",
            "line 2: KeyError: 'k'",
        ),
        (
            "import nothing_like_this\n",
            "line 1: ModuleNotFoundError: No module named 'nothing_like_this'",
        ),
        ("raise SystemExit('enough')\n", "line 1: SystemExit: enough"),
        ("import torch\ntorch.ones(2) @ torch.ones(3)\n", "line 2: RuntimeError: "),
        ("raise ValueError('one\\ntwo')\n", "line 1: ValueError: one"),
    ],
)
def test_errors_while_importing_name_the_line(write, text, expected):
    def imported():
        return {name for name in sys.modules if name.startswith("switch_ema_user")}

    path, before = write(text), imported()
    assert message_of(f"{path}:Mine").startswith(f"{path}, {expected}")
    assert imported() == before


MINE = """
from switch_ema.bench.task import Metric, Task

class Mine(Task):
    metrics = (Metric(name="error", higher_is_better=False),)
    {body}
    def model(self): ...
    def optimizer(self, model): ...
    def train_loader(self, epoch): ...
    def loss(self, model, batch): ...
    {last}
"""
EVALUATE = "def evaluate(self, model): ..."


def test_errors_in_the_constructor_name_the_line(write):
    body = "def __init__(self, seed): self.x = 1 / seed"
    path = write(MINE.format(body=body, last=EVALUATE))
    expected = f"{path}, line 6: ZeroDivisionError: division by zero"
    assert message_of(f"{path}:Mine") == expected


def test_constructor_without_a_seed(write):
    path = write(MINE.format(body="def __init__(self): ...", last=EVALUATE))
    message = message_of(f"{path}:Mine")
    assert message.startswith(f"{path}: TypeError: ")
    assert "argument" in message


def test_missing_methods_are_named(write):
    path = write(MINE.format(body="", last=""))
    assert message_of(f"{path}:Mine") == f"{path}: Mine must define evaluate."


def test_missing_metrics(write):
    path = write(MINE.format(body="metrics = ()", last=EVALUATE))
    assert "Mine.metrics must be a tuple of Metric" in message_of(f"{path}:Mine")


def test_a_recipe_must_be_one(write):
    path = write(MINE.format(body="recipe = {'epochs': 3}", last=EVALUATE))
    expected = f"{path}: Mine.recipe must be a Recipe, got a dict."
    assert message_of(f"{path}:Mine") == expected


def test_a_wrong_value_in_a_recipe_names_the_line(write):
    body = "from switch_ema.bench.task import Recipe; recipe = Recipe(epochs='3')"
    path = write(MINE.format(body=body, last=EVALUATE))
    expected = f"{path}, line 6: epochs must be a whole number of at least 1, got '3'."
    assert message_of(f"{path}:Mine") == expected


def test_without_a_split_there_is_no_tuning(write):
    path = write(MINE.format(body="", last=EVALUATE))
    assert create_task(f"{path}:Mine", (7,)).seed == 7
    message = message_of(f"{path}:Mine", split="validation")
    assert "has no keyword split" in message


def test_neighbours_can_be_imported(write, tmp_path):
    (tmp_path / "neighbour_of_mine.py").write_text("VALUE = 3\n")
    text = "from neighbour_of_mine import VALUE\n" + MINE
    path = write(text.format(body="value = VALUE", last=EVALUATE))
    assert create_task(f"{path}:Mine", (0,)).value == 3
