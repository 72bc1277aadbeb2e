"""Commands parsed without tyro: the same names, values and help."""

import re
from pathlib import Path

import pytest
import tyro

from switch_ema.bench.errors import UsageError
from switch_ema.commands.judge import Judge
from switch_ema.commands.merge import Merge
from switch_ema.commands.parsing import parse_plain
from switch_ema.commands.suggest import Suggest

LINES = [
    (Suggest, "--steps-per-epoch 63 --epochs 30"),
    (Suggest, "--steps_per_epoch=63 --epochs 30 --over-trains --schedule one-cycle"),
    (Suggest, "--epochs 30 --steps-per-epoch 63 --no-over-trains"),
    (Merge, "a.pt b.pt --out c"),
    (Merge, "--out c.pt a.pt b.pt"),
    (Merge, "a b c --out d --decay 0.75 0.25 --key model --sigma-rel 1e-1"),
    (Merge, "a b --profile cosine --out d --allow-non-finite"),
    (Judge, "plain ema --metric val_loss --lower-is-better --unit % --format csv"),
    (Judge, "plain=logs/*_1 ema=logs/*_2 --baseline ema --title=my_title --verbose"),
]


@pytest.mark.parametrize(("command", "line"), LINES)
def test_a_line_means_the_same_with_and_without_tyro(command, line):
    found = parse_plain(command, "switch-ema", line.split())
    assert found == tyro.cli(command, args=line.split())


@pytest.mark.parametrize("command", [Suggest, Merge, Judge])
def test_the_help_has_the_same_options_and_their_descriptions(command, capsys):
    texts = []
    for parse in (
        lambda: parse_plain(command, "switch-ema", ["--help"]),
        lambda: tyro.cli(command, args=["--help"]),
    ):
        with pytest.raises(SystemExit) as left:
            parse()
        assert left.value.code == 0
        texts.append(capsys.readouterr().out)
    plain, styled = ({*re.findall(r"--[a-z][a-z-]+", text)} for text in texts)
    assert plain == styled
    words = " ".join(texts[0].split())
    assert "".join(command.__doc__.split()) in "".join(texts[0].split())
    described = {Suggest: "Number of epochs.", Merge: "oldest first.", Judge: "Files,"}
    assert described[command] in words


@pytest.mark.parametrize(
    ("command", "line", "sentence"),
    [
        (Suggest, "--epochs 3", "arguments are required: --steps-per-epoch; "),
        (Suggest, "--epochs x --steps-per-epoch 3", "--epochs: invalid int value: 'x'"),
        (Suggest, "--epoch 3", "unknown option '--epoch'; did you mean --epochs?"),
        (
            Suggest,
            "--epochs 3 --steps-per-epoch 3 more",
            "unrecognized arguments: more",
        ),
        (Merge, "a b --out c --profile average", "invalid choice: 'average'"),
        (
            Merge,
            "a b --out",
            "--out: expected one argument; m --help lists the options",
        ),
    ],
)
def test_mistakes_are_one_sentence(command, line, sentence):
    with pytest.raises(UsageError) as raised:
        parse_plain(command, "m", line.split())
    assert sentence in str(raised.value) and str(raised.value).endswith(".")


def test_types_are_those_that_were_declared():
    found = parse_plain(Merge, "m", ["a", "--out", "b", "--decay", "1", "0"])
    assert found.checkpoints == (Path("a"),) and found.out == Path("b")
    assert found.decay == (1.0, 0.0) and isinstance(found.decay[0], float)
