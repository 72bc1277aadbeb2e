"""The short form of the chaos suite: the library.

Faults of ranks are all tried in tests/averaging/distributed/test_ranks.py, broken
compilers in tests/averaging/kernels/native/test_library.py.
"""

from tests.chaos import library


def test_a_damaged_kernel_library_ends_no_process():
    assert library.damaged_libraries(18).broken == 0


def test_a_hostile_state_is_not_half_loaded():
    assert library.hostile_states(400).broken == 0


def test_an_interrupt_loses_no_weights():
    assert library.interrupts(1500).broken == 0
