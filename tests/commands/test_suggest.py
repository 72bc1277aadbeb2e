"""`switch-ema suggest` prints what the library suggests, and refuses bad input."""

import pytest

from switch_ema import suggest
from switch_ema.cli import main


def test_it_prints_the_suggestion(capsys):
    main(["suggest", "--steps-per-epoch", "63", "--epochs", "30", "--over-trains"])
    expected = suggest(steps_per_epoch=63, epochs=30, over_trains=True)
    assert capsys.readouterr().out == f"{expected}\n"


def test_bad_input_is_one_sentence(capsys):
    with pytest.raises(SystemExit) as left:
        main(["suggest", "--steps-per-epoch", "0", "--epochs", "30"])
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("switch-ema: steps_per_epoch must be a whole number")
