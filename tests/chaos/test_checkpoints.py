"""The short form of the chaos suite: checkpoints of unknown origin."""

from tests.chaos import checkpoints


def test_mutated_checkpoints_are_merged_or_refused_and_nothing_else():
    outcomes = list(checkpoints.hostile_checkpoints(300))
    assert sum(outcome.tried for outcome in outcomes) == 300
    assert [outcome.name for outcome in outcomes if outcome.broken] == []


def test_the_watch_sees_processes_imports_and_files():
    (ended,) = checkpoints.run(1, "canary")
    assert ended.startswith("acts:")
    for act in ("os.system", "opened /etc/hostname", "import ('evil'", "it ran"):
        assert act in ended
