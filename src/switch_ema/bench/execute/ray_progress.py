"""Collects the progress of Ray workers."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from switch_ema.bench.execute.local import OnEpoch
from switch_ema.bench.plan.cells import Cell


class Board:
    """An actor next to the driver that workers write to and the driver reads.

    Nothing waits for it: if it is slow or lost, the progress bar stalls, not training.
    """

    def __init__(self) -> None:
        here = ray.get_runtime_context().get_node_id()
        beside_the_driver = NodeAffinitySchedulingStrategy(here, soft=False)
        options = {"num_cpus": 0, "scheduling_strategy": beside_the_driver}
        self.actor: Any = ray.remote(self._notes()).options(**options).remote()
        self._asked = self.actor.read.remote()

    @staticmethod
    def _notes() -> Any:
        # Local, so Ray pickles the class by value and the actor's process does not
        # import this module, and torch with it.
        class Notes:
            def __init__(self) -> None:
                self.latest: dict[str, tuple[Any, ...]] = {}

            def note(self, cell: str, *event: Any) -> None:
                self.latest[cell] = event

            def read(self) -> dict[str, tuple[Any, ...]]:
                return self.latest

        return Notes

    def __enter__(self) -> "Board":
        return self

    def __exit__(self, *error: object) -> None:
        ray.kill(self.actor)

    def report(self, cells: Iterable[Cell], on_epoch: OnEpoch) -> None:
        """Report the latest progress of the cells, if the board has answered."""
        if not ray.wait([self._asked], timeout=0)[0]:
            return
        with suppress(RayError):
            latest = ray.get(self._asked)
            for cell in cells:
                if cell.id in latest:
                    on_epoch(cell, *latest[cell.id])
        self._asked = self.actor.read.remote()
