"""The short form of the chaos suite."""

import pytest

from tests.chaos import bench


@pytest.mark.parametrize("kind", bench.DAMAGE)
def test_damaged_checkpoints_are_not_believed(kind):
    assert bench.damaged_checkpoints(20, kind).broken == 0


@pytest.mark.parametrize("kind", bench.DAMAGE)
def test_damaged_stores_are_one_sentence(kind):
    assert bench.damaged_stores(10, kind).broken == 0


def test_a_kill_while_a_store_is_made_bricks_nothing():
    assert bench.creation_kills(10).broken == 0


def test_mutated_configurations_are_one_sentence():
    assert bench.mutated_configurations(200).broken == 0


def test_damaged_sections_do_not_stop_a_page():
    assert bench.damaged_sections(50).broken == 0


def test_an_exploded_seed_is_its_own_methods_affair():
    assert bench.exploded_seeds(100).broken == 0


def test_hostile_logs_are_judged_or_one_sentence():
    assert bench.hostile_logs(60).broken == 0


def test_a_full_disk_leaves_the_checkpoint_before():
    assert bench.full_disks(5).broken == 0


def test_a_comparison_killed_at_its_writes_ends_with_the_same_values():
    outcome = bench.kills_at_writes(2)
    assert outcome.tried > 0 and outcome.broken == 0


def test_scripts_of_a_killed_comparison_leave_no_process():
    assert bench.killed_scripts(3).broken == 0
