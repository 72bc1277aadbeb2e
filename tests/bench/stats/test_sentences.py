"""The words of a verdict, with the numbers that they rest on."""

from switch_ema.bench.stats.paired import compare
from switch_ema.bench.stats.sentences import sentence
from switch_ema.bench.task import Metric
from tests.bench.stats.test_paired import WORKED, against_plain, ends

ACCURACY = Metric(name="accuracy", higher_is_better=True, unit="%")
LOSS = Metric(name="loss", higher_is_better=False)


def say(plain, method, metric):
    return sentence(
        against_plain(plain, method, metric.higher_is_better), metric=metric
    )


def test_sentences_where_higher_is_better():
    plain, more = ends(90.0, 91.0, 92.0, 93.0), ends(92.3, 93.5, 94.4, 95.4)
    # Differences 2.3, 2.5, 2.4, 2.4: sd 0.0816, half width 0.1299, t = 58.8
    assert say(plain, more, ACCURACY) == (
        "ema helps: +2.40 % accuracy over plain "
        "(95% CI 2.27 to 2.53, n = 4, p < 0.0001 after Holm)."
    )
    hurts = "ema hurts: -2.40 % accuracy against plain (95% CI -2.53 to -2.27, n = 4, "
    assert say(more, plain, ACCURACY).startswith(hurts)
    assert say(*WORKED, ACCURACY) == (
        "No difference found between ema and plain: +2.0 % accuracy over plain "
        "(95% CI -0.5 to 4.5, n = 3, p = 0.074 after Holm); with n = 3 a difference of "
        "4.2 % or more would have been found in 4 of 5 comparisons."
    )


def test_a_p_value_that_stands_by_itself_is_not_called_corrected():
    text = sentence(against_plain(*WORKED), metric=ACCURACY, corrected=False)
    assert "n = 3, p = 0.074, not corrected)" in text
    assert "Holm" not in text


def test_sentences_where_lower_is_better():
    less, more = ends(0.10, 0.11, 0.12, 0.13), ends(0.33, 0.36, 0.36, 0.37)
    # Differences 0.23, 0.25, 0.24, 0.24 in the direction that is said.
    numbers = "by 0.240 than plain (lower is better; 95% CI 0.227 to 0.253, n = 4, "
    assert say(more, less, LOSS).startswith(f"ema helps: loss better {numbers}")
    assert say(less, more, LOSS).startswith(f"ema hurts: loss worse {numbers}")
    worse = "loss worse by 2.0 than plain (lower is better; 95% CI -0.5 to 4.5, "
    assert f"No difference found between ema and plain: {worse}" in say(*WORKED, LOSS)


def test_sentences_without_a_test():
    plain = ends(1.0, 2.0)
    same = "(the same in all n = 2 seeds, p = 1 by sign test and Holm)."
    assert say(plain, plain, ACCURACY).endswith(same)
    assert say(plain, {}, LOSS) == "Too few seeds finished to compare ema with plain."
    text = sentence(against_plain(plain, plain), metric=ACCURACY, corrected=False)
    assert text.endswith("n = 2 seeds, p = 1 by sign test, not corrected).")
    text = sentence(compare({"plain": plain}, higher_is_better=True)[0], metric=LOSS)
    assert text == "plain is the baseline: 1.5 loss (sd 0.71, n = 2)."
    lost = compare({"plain": ends(float("nan"))}, higher_is_better=True)[0]
    assert sentence(lost, metric=LOSS) == (
        "plain is the baseline, and has no finite loss."
    )
