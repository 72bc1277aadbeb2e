"""Verdicts: right on worked numbers, and as often right as they claim to be."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import nct, skew, t, ttest_rel

from switch_ema.bench.stats.paired import LEVEL, compare, head_to_head, holm, leaders

NAN, INF = math.nan, math.inf
OPEN, SAME = "undecided", "no difference"


def ends(*values):
    """Curves of one epoch, one per seed."""
    return {seed: [value] for seed, value in enumerate(values)}


def against_plain(plain, method, higher_is_better=True, smallest_effect=0.01):
    curves = {"plain": plain, "ema": method}
    return compare(
        curves, higher_is_better=higher_is_better, smallest_effect=smallest_effect
    )[1]


# Differences 1, 2, 3: mean 2, sd 1, error 1/sqrt(3), t = 3.4641 with 2 degrees of
# freedom. There p = 1 - t / sqrt(t^2 + 2) = 0.074180, and t(0.985) = 5.642778, for the
# level of 3% that decides, makes the interval 2 -+ 3.257859.
WORKED = ends(10.0, 20.0, 30.0), ends(11.0, 22.0, 33.0)


def test_hand_worked_difference():
    result = against_plain(*WORKED)
    d, last = result.difference, result.last
    assert (d.mean, d.sd, d.n) == (2.0, 1.0, 3)
    assert (d.low, d.high) == pytest.approx((-1.257859, 5.257859), abs=1e-6)
    assert d.p == d.p_holm == pytest.approx(0.074180, abs=1e-6)
    assert result.verdict == OPEN
    assert (last.mean, last.sd, last.n) == (22.0, 11.0, 3)
    # Two seeds have a p: t = 3 with 1 degree of freedom, p = 1 - 2 / pi * atan(3).
    p = against_plain(ends(0.0, 0.137), ends(1.0, 2.137)).difference.p
    assert p == pytest.approx(1 - 2 / math.pi * math.atan(3))


def test_agrees_with_scipy_and_keeps_the_order():
    swa, plain, ema = np.random.default_rng(0).normal(size=(3, 6))
    curves = {"swa": ends(*swa), "plain": ends(*plain), "ema": ends(*ema + 2)}
    first, base, second = compare(curves, higher_is_better=True)
    assert [r.method for r in (first, base, second)] == list(curves)
    assert (base.verdict, base.difference, base.speed_up) == ("baseline", None, None)
    for result, values in ((first, swa), (second, ema + 2)):
        test, found = ttest_rel(values, plain), result.difference
        assert found.p == pytest.approx(test.pvalue)
        level = LEVEL * found.p / found.p_holm
        interval = tuple(test.confidence_interval(1 - level))
        assert (found.low, found.high) == pytest.approx(interval)
    assert second.difference.p_holm == pytest.approx(2 * second.difference.p)
    assert first.difference.p_holm == first.difference.p > second.difference.p_holm


def test_holm_worked_example():
    # 3 * 0.01, then 2 * 0.03, then 0.04, which may not fall below 0.06.
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.5]) == [1.0, 1.0]
    assert holm([]) == []


def test_correction_counts_only_the_methods_that_can_be_tested():
    curves = {"plain": WORKED[0], "ema": WORKED[1], "swa": ends(1.0)}
    _, ema, swa = compare(curves, higher_is_better=True, smallest_effect=0.01)
    assert ema.difference == against_plain(*WORKED).difference
    assert (swa.verdict, swa.difference) == (OPEN, None)
    assert (swa.last.mean, swa.last.sd, swa.speed_up.n) == (1.0, None, 1)


def test_lower_is_better_turns_the_sign_but_not_the_summary():
    plain, better = ends(1.0, 1.1, 0.9, 1.2), ends(0.501, 0.607, 0.422, 0.7)
    result = against_plain(plain, better, higher_is_better=False)
    assert result.difference.mean == pytest.approx(0.4925)
    assert (result.verdict, result.difference.low > 0) == ("helps", True)
    assert result.last.mean == pytest.approx(0.5575)
    assert against_plain(better, plain, higher_is_better=False).verdict == "hurts"
    assert against_plain(plain, better).verdict == "hurts"


@given(st.lists(st.tuples(*[st.floats(-100, 100)] * 2), min_size=2, max_size=8))
def test_swapping_the_two_or_turning_the_metric_mirrors_the_difference(pairs):
    plain, ema = (ends(*values) for values in zip(*pairs, strict=True))
    one = against_plain(plain, ema).difference
    turned = against_plain(plain, ema, higher_is_better=False).difference
    for other in (against_plain(ema, plain).difference, turned):
        assert other.mean == -one.mean and (other.p, other.sd) == (one.p, one.sd)
        mirrored = (-one.high, -one.low)
        assert (other.low, other.high) == pytest.approx(mirrored, nan_ok=True)
    assert 0 <= one.p <= 1 and (one.sd == 0 or one.low <= one.mean <= one.high)


def test_best_is_taken_per_seed_and_ignores_what_is_not_finite():
    plain = {0: [1.0, 3.0, 2.0], 1: [NAN, 1.0, 5.0]}
    for higher_is_better, best in ((True, 4.0), (False, 1.0)):
        (result,) = compare({"plain": plain}, higher_is_better=higher_is_better)
        assert (result.last.mean, result.best.mean) == (3.5, best)


@pytest.mark.parametrize("bad", [None, [], [1.0], [1.0, NAN], [1.0, INF], [1.0, -INF]])
@pytest.mark.parametrize("side", ["plain", "ema"])
def test_a_seed_that_did_not_finish_is_left_out_of_its_pairs_only(bad, side):
    curves = {
        method: {seed: [0.0, *curve] for seed, curve in seeds.items()}
        for method, seeds in zip(["plain", "ema"], WORKED, strict=True)
    }
    whole = against_plain(*curves.values())
    curves["plain"][7] = curves["ema"][7] = [0.0, 100.0]
    curves[side][7] = bad
    if bad is None:
        del curves[side][7]
    found = compare(curves, higher_is_better=True, smallest_effect=0.01)
    results = {result.method: result for result in found}
    assert results["ema"].difference == whole.difference
    assert results["ema"].speed_up == whole.speed_up
    assert results[side].last.n == 3
    assert sum(result.last.n for result in results.values()) == 7


def test_nothing_finished():
    results = compare({"plain": {}, "ema": ends(NAN, NAN)}, higher_is_better=True)
    assert [r.verdict for r in results] == ["baseline", OPEN]
    assert math.isnan(results[1].best.mean) and results[1].speed_up is None
    with pytest.raises(ValueError, match=r"baseline must be in \['ema'\], got 'plain'"):
        compare({"ema": ends(1.0)}, higher_is_better=True)


def test_differences_without_spread():
    same = against_plain(WORKED[0], WORKED[0])
    assert (same.difference.p, same.verdict) == (1.0, OPEN)  # steps of 10, n = 3
    assert math.isnan(same.difference.detectable)
    # 0.1 more in every seed, but for rounding: the sign test, 2 * 0.5**8 = 0.0078125.
    plain = [0.1 * seed for seed in range(8)]
    shifted = [value + 0.1 for value in plain]
    assert len({b - a for a, b in zip(plain, shifted, strict=True)}) > 1
    result = against_plain(ends(*plain), ends(*shifted))
    assert (result.difference.p, result.difference.sd) == (0.0078125, 0)
    assert result.verdict == "helps"
    assert against_plain(ends(*plain[:5]), ends(*shifted[:5])).verdict == OPEN


@pytest.mark.parametrize("samples", [360, 1_000, 10_000])
@pytest.mark.parametrize("seeds", [3, 8])
def test_one_test_sample_more_in_each_seed_is_no_strong_evidence(samples, seeds):
    """Rounded to float32 the differences spread a little, which is not noise."""
    hits = np.random.default_rng(samples).integers(0.9 * samples, samples - 2, seeds)

    def accuracy(count):
        return [float(np.float32(100) * np.float32(c / samples)) for c in count]

    plain, ema = accuracy(hits), accuracy(hits + 1)
    result = against_plain(ends(*plain), ends(*ema))
    assert result.difference.p == 2 * 0.5**seeds
    assert result.verdict == ("helps" if seeds == 8 else OPEN)
    # One seed differs by two samples: still less spread than a sample.
    hits[0] -= 1
    result = against_plain(ends(*accuracy(hits)), ends(*ema))
    assert result.difference.p == 2 * 0.5**seeds


def test_two_seeds_have_no_verdict():
    """It was "hurts, p < 0.0001" for one sample less in each of two seeds."""
    plain, worse = ends(97.22222, 96.66667), ends(96.944441, 96.388893)
    result = against_plain(plain, worse)
    assert result.verdict == OPEN
    assert result.difference.mean == pytest.approx(-0.27778, abs=1e-4)
    assert result.difference.p == 0.5


def test_values_without_steps_are_tested_by_t():
    rng = np.random.default_rng(1)
    for _ in range(100):
        plain = rng.normal(size=8)
        ema = plain + rng.normal(0.5, 0.01, size=8)
        found = against_plain(ends(*plain), ends(*ema)).difference
        assert found.p == pytest.approx(ttest_rel(ema, plain).pvalue)


def small_gains(rng, seeds=8):
    """Losses in which two methods are a little better than plain, in every seed."""
    plain = rng.normal(0.3, 0.001, size=seeds)
    gains = rng.normal(0.002, 0.0005, size=(2, seeds))
    return {
        "plain": ends(*plain),
        "ema": ends(*plain - gains[0]),
        "swa": ends(*plain - gains[1]),
        "lookahead": ends(*plain + rng.normal(0, 0.001, size=seeds)),
    }


@pytest.mark.parametrize("value", [4321.0, 3e7, -3e7])
def test_an_exploded_seed_of_one_method_changes_no_other_verdict(value):
    """It was "undecided" for everybody: the losses looked like ties."""
    curves = small_gains(np.random.default_rng(5))
    whole = compare(curves, higher_is_better=False)
    assert [r.verdict for r in whole[1:3]] == ["helps"] * 2
    curves["lookahead"][3] = [value]
    results = compare(curves, higher_is_better=False)
    assert [r.difference.p for r in results[1:3]] == [
        r.difference.p for r in whole[1:3]
    ]
    assert [r.verdict for r in results[1:]] == ["helps", "helps", OPEN]


@pytest.mark.parametrize("sides", [("plain", "ema"), ("ema", "plain")])
def test_an_exploded_seed_without_a_partner_decides_nothing(sides):
    curves = small_gains(np.random.default_rng(5))
    whole = against_plain(curves["plain"], curves["ema"], higher_is_better=False)
    for side, value in zip(sides, (3e7, NAN), strict=True):
        curves[side][8] = [value]
    found = against_plain(curves["plain"], curves["ema"], higher_is_better=False)
    assert (found.difference, found.verdict) == (whole.difference, "helps")


def test_a_seed_in_which_both_explode_is_a_tie_beside_the_others():
    """Its difference is not known to a unit; those of the others are."""
    curves = small_gains(np.random.default_rng(5))
    curves["plain"][8] = curves["ema"][8] = [3e7]
    found = against_plain(curves["plain"], curves["ema"], higher_is_better=False)
    assert (found.difference.p, found.verdict) == (2 * 0.5**8, "helps")


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_an_exploded_seed_is_not_taken_for_the_step_of_its_own_metric(higher_is_better):
    """31 seeds gain a little and one loses everything: the mean decides, not signs."""
    rng = np.random.default_rng(6)
    plain = rng.normal(0.3, 0.01, size=32)
    sign = 1 if higher_is_better else -1
    ema = plain + sign * rng.normal(0.002, 0.0005, size=32)
    ema[7] = -sign * 4321
    found = against_plain(ends(*plain), ends(*ema), higher_is_better)
    assert found.difference.sd > 700 and found.difference.mean < 0
    assert found.verdict == OPEN


@pytest.mark.parametrize("methods", [1, 2, 5])
def test_an_interval_leaves_out_zero_if_and_only_if_there_is_a_verdict(methods):
    """It was undecided beside a 95% interval without zero."""
    rng = np.random.default_rng(methods)
    told = set()
    for _ in range(300):
        curves = {"plain": ends(*rng.normal(size=6))}
        shifts = rng.uniform(0, 2.5, size=methods)
        curves |= {str(s): ends(*rng.normal(s, size=6)) for s in shifts}
        for result in compare(curves, higher_is_better=True)[1:]:
            d = result.difference
            has_verdict = result.verdict not in (SAME, OPEN)
            assert (d.low > 0 or d.high < 0) == has_verdict
            told.add(has_verdict)
    assert told == {True, False}


def simulate(methods, shift, seed):
    """Yield the verdicts of 1,000 comparisons; the first method is better by shift."""
    # Noise of 1 / sqrt(2) on both sides: the paired differences have an sd of 1.
    shape = (1_000, methods + 1, 8)
    noise = np.random.default_rng(seed).normal(scale=0.5**0.5, size=shape)
    noise[:, 1] += shift
    for values in noise:
        curves = {f"method {i}": ends(*row) for i, row in enumerate(values)}
        results = compare(curves, higher_is_better=True, baseline="method 0")
        yield [result.verdict for result in results[1:]]


@pytest.mark.parametrize("methods", [1, 5])
def test_plain_against_plain_is_quiet_and_two_standard_deviations_are_found(methods):
    quiet = [set(v) <= {SAME, OPEN} for v in simulate(methods, shift=0, seed=1)]
    assert 950 <= sum(quiet) <= 990  # nor is the test so timid that it never speaks
    found = [v[0] == "helps" for v in simulate(methods, shift=2, seed=2)]
    assert sum(found) >= 900
    # The exact power, if Holm's help from the other methods is not counted on.
    assert nct.sf(t.isf(LEVEL / methods / 2, 7), 7, 2 * 8**0.5) >= 0.9


def detectable(methods, n):
    """In standard deviations of the differences."""
    curves = {"plain": ends(*[0] * n)}
    curves |= {f"method {i}": ends(*range(n)) for i in range(methods)}
    difference = compare(curves, higher_is_better=True)[1].difference
    return difference.detectable / difference.sd


@pytest.mark.parametrize(("methods", "n"), [(1, 3), (5, 8), (3, 20)])
def test_what_is_called_detectable_is_found_in_4_of_5(methods, n):
    shape = (20_000, n)
    found = np.random.default_rng(3).normal(detectable(methods, n), size=shape)
    p = ttest_rel(found, np.zeros(shape), axis=1).pvalue
    assert np.mean(p < LEVEL / methods) == pytest.approx(0.8, abs=0.015)


def test_speed_up_hand_worked():
    plain = {0: [1, 2, 3, 4], 1: [1, 5, 2, 5], 2: [1, 2, 3, 9], 3: [1, 1, 2, 2]}
    ema = {0: [2, 4, 4, 4], 1: [5, 5, 5, 5], 2: [8, 8, 8, 8], 3: [0, 0, NAN, 2]}
    # Epochs to the goals 4, 5, 9, 2: plain 4, 2, 4, 3 and ema 2, 1, never, 4.
    found = against_plain(plain, ema).speed_up
    assert (found.reached, found.n, found.epochs) == (3, 4, 2.0)
    assert found.factor == 2.0  # of 2, 2 and 3/4
    turned = [{s: [-v for v in c] for s, c in m.items()} for m in (plain, ema)]
    assert against_plain(*turned, higher_is_better=False).speed_up == found
    never = against_plain({0: [1, 2]}, {0: [1, 1]}).speed_up
    assert (never.reached, never.n, never.epochs, never.factor) == (0, 1, None, None)


def test_values_too_large_to_square_count_as_diverged():
    curves = {
        "plain": {0: [1e308], 1: [1.0], 2: [2.0]},
        "ema": {0: [1.7e308], 1: [1.5], 2: [2.5]},
    }
    plain, ema = compare(curves, higher_is_better=True)
    assert (plain.last.n, ema.last.n) == (2, 2)
    assert ema.best.mean == 2.0 and ema.difference.mean == 0.5


def test_head_to_head():
    curves = {"plain": ends(0.0), "ema": WORKED[0], "switch-ema": WORKED[1]}
    first = head_to_head(
        curves, "switch-ema", "ema", higher_is_better=True, smallest_effect=0.01
    )
    assert first == against_plain(*WORKED).difference
    second = head_to_head(curves, "ema", "switch-ema", higher_is_better=True)
    assert (second.mean, second.p) == (-2.0, first.p)
    for other in ("plain", "swa"):
        assert head_to_head(curves, "ema", other, higher_is_better=True) is None
        assert head_to_head(curves, other, "ema", higher_is_better=True) is None


def skewed(sign, rng, seeds=16):
    """Differences whose mean is on the other side of zero than their long tail."""
    while True:
        values = sign * (rng.lognormal(0, 0.8, size=seeds) - 2.2)
        if sign * values.mean() < 0 and sign * skew(values, bias=False) > 1.2:
            return values


@pytest.mark.parametrize("sign", [1, -1])
def test_a_tail_on_the_other_side_widens_p_and_interval(sign):
    values = skewed(sign, np.random.default_rng(4))
    found = against_plain(ends(*range(16)), ends(*values + range(16))).difference
    assert found.skew == pytest.approx(skew(values, bias=False))
    assert found.allows_for_skew and math.isnan(found.detectable)
    by_t = ttest_rel(values, np.zeros(16))
    assert found.p > by_t.pvalue
    low, high = by_t.confidence_interval(1 - LEVEL)
    assert (low, high)[sign < 0] == pytest.approx((found.low, found.high)[sign < 0])
    assert found.high > high if sign > 0 else found.low < low


def test_skew_on_the_side_of_the_mean_is_left_to_student():
    """There the t-test is timid already; the numbers of stored runs stay."""
    values = skewed(1, np.random.default_rng(4)) + 3
    test = ttest_rel(values, np.zeros(16))
    found = against_plain(ends(*range(16)), ends(*values + range(16))).difference
    assert skew(values) > 1 and (found.mean > 0, found.skew) == (True, 0)
    assert found.p == pytest.approx(test.pvalue)
    interval = tuple(test.confidence_interval(1 - LEVEL))
    assert (found.low, found.high) == pytest.approx(interval)


@pytest.mark.parametrize("seeds", [5, 11, 12])
def test_few_seeds_are_warned_of_skew_and_not_adjusted_for_it(seeds):
    values = np.array([0.31, 0.32, 0.34, 0.35, 0.3, 0.29, 0.33, 0.28, 0.27, 0.36, 0.37])
    values = np.append(values[: seeds - 1], -0.4)
    found = against_plain(ends(*range(seeds)), ends(*values + range(seeds))).difference
    assert found.skew < -1.5 and found.allows_for_skew == (seeds == 12)
    by_t = ttest_rel(values, np.zeros(seeds)).pvalue
    assert (found.p == pytest.approx(by_t)) == (seeds < 12)


@pytest.mark.parametrize("methods", [1, 3])
def test_intervals_of_skewed_differences_fit_their_verdicts(methods):
    rng = np.random.default_rng(methods)
    told = set()
    for _ in range(200):
        curves = {"plain": ends(*range(12))}
        for shift in rng.uniform(0.3, 1.5, size=methods):
            values = shift - rng.lognormal(0, 1, size=12) * rng.uniform(0.1, 1)
            curves[str(shift)] = ends(*values + range(12))
        for result in compare(curves, higher_is_better=True)[1:]:
            d = result.difference
            has_verdict = result.verdict not in (SAME, OPEN)
            assert (d.low > 0 or d.high < 0) == has_verdict
            assert not has_verdict or (d.mean > 0) == (result.verdict == "helps")
            if d.allows_for_skew:
                told.add(has_verdict)
    assert told == {True, False}


@pytest.mark.parametrize(
    ("draw", "seeds", "most"),
    [
        (lambda rng, shape: rng.exponential(size=shape) - 1, 16, 45),
        (lambda rng, shape: rng.lognormal(size=shape) - math.exp(0.5), 32, 35),
        (lambda rng, shape: rng.standard_t(3, size=shape), 16, 35),
    ],
)
def test_skewed_differences_without_a_mean_are_rarely_called_a_difference(
    draw, seeds, most
):
    """Of 1,000; by Student's t alone it was 71, 99 and 22."""
    differences = draw(np.random.default_rng(7), (1_000, seeds))
    plain = ends(*range(seeds))
    found = [
        against_plain(plain, ends(*row + range(seeds))).verdict for row in differences
    ]
    assert sum(verdict not in (SAME, OPEN) for verdict in found) <= most


# Differences 0.1, 0.2, 0.3, -0.1, -0.2 and -0.3 in two halves: mean 0, sd 0.2366.
# With n = 6 and the level of 3% the half width is 0.2366 / sqrt(6) * 3.0029 = 0.290.
SMALL = ends(*[90.0] * 6), ends(90.1, 90.2, 90.3, 89.9, 89.8, 89.7)


def test_no_difference_needs_an_interval_within_the_smallest_effect():
    result = against_plain(*SMALL)
    assert result.difference.high == pytest.approx(0.290, abs=1e-3)
    for smallest, verdict in ((0.5, SAME), (0.295, SAME), (0.285, OPEN)):
        found = against_plain(*SMALL, smallest_effect=smallest)
        assert found.verdict == verdict
        assert found.difference.smallest_effect == smallest
    # Only one end of the interval, from 0.11 to 0.69, need lie beyond it.
    shifted = {seed: [value[0] + 0.2] for seed, value in SMALL[1].items()}
    assert against_plain(SMALL[0], shifted, smallest_effect=0.45).verdict == OPEN


def test_an_interval_without_zero_is_a_difference_however_small():
    plain, ema = ends(90.0, 91.0, 92.0, 93.0), ends(90.01, 91.011, 92.012, 93.009)
    assert against_plain(plain, ema, smallest_effect=5.0).verdict == "helps"
    assert against_plain(ema, plain, smallest_effect=5.0).verdict == "hurts"


def test_the_smallest_effect_is_one_percent_of_the_baseline_unless_given():
    def smallest(*plain):
        curves = {"plain": ends(*plain), "ema": ends(*plain)}
        return compare(curves, higher_is_better=False)[1].difference.smallest_effect

    assert smallest(2.0, 2.5, 3.0) == smallest(-2.0, -2.5, -3.0) == 0.025
    assert smallest(2.0, 2.5, 3e9) == 0.025  # exploded: the mean would excuse anything
    assert smallest(0.0, 0.0, 0.0) == 0.0


@pytest.mark.parametrize(("seeds", "verdict"), [(3, OPEN), (12, SAME)])
def test_ties_are_no_difference_once_a_step_cannot_hide_one(seeds, verdict):
    """With n = 3, a spread of one sample of 360 gives an interval of +-0.9 points."""
    values = ends(*(100 * (330 + seed % 7) / 360 for seed in range(seeds)))
    found = against_plain(values, values, smallest_effect=0.5)
    assert (found.difference.sd, found.verdict) == (0, verdict)


@pytest.mark.parametrize(("smallest", "verdict"), [(0.5, SAME), (0.0, "helps")])
def test_ties_far_below_the_smallest_effect_do_not_help(smallest, verdict):
    """The sign test has p = 0.0002, and the gain is 2e-6 of the value."""
    plain = [4.0 + seed / 100 for seed in range(13)]
    ema = ends(*(value * (1 + 2e-6) for value in plain))
    found = against_plain(ends(*plain), ema, smallest_effect=smallest)
    assert (found.difference.sd, found.verdict) == (0, verdict)
    assert found.difference.p < 0.001


def test_two_seeds_are_undecided_even_if_they_agree():
    plain, ema = ends(90.0, 91.0), ends(90.001, 91.0015)
    assert against_plain(plain, ema, smallest_effect=5.0).verdict == OPEN


def test_the_best_leads_alone_only_if_it_beats_every_other():
    rng = np.random.default_rng(0)
    noise = rng.normal(scale=0.1, size=(4, 8))
    curves = {
        "a": ends(*noise[0] + 3.0),
        "b": ends(*noise[0] + 2.99 + noise[1] - noise[1].mean()),
        "c": ends(*noise[2] + 1.0),
        "d": ends(*noise[3]),
    }

    def leading(*methods):
        gains = {m: np.mean([v[0] for v in curves[m].values()]) for m in methods}
        return leaders(curves, gains, higher_is_better=True)

    assert leading("c", "a", "b", "d") == ["a", "b"]
    assert leading("d", "a", "c") == ["a"]
    assert leading("c") == ["c"] and leading() == []


def test_equal_methods_rarely_have_a_best():
    """Choosing the best by its mean does not make it beat the others too often."""
    rng, alone = np.random.default_rng(7), 0
    for values in rng.normal(size=(1_000, 4, 8)):
        curves = {str(i): ends(*row) for i, row in enumerate(values)}
        gains = {str(i): row.mean() for i, row in enumerate(values)}
        alone += len(leaders(curves, gains, higher_is_better=True)) == 1
    assert alone <= 30
