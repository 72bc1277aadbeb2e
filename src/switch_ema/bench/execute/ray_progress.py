"""Where Ray workers note the epochs they have finished."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from switch_ema.bench.execute.local import OnEpoch
from switch_ema.bench.plan.cells import Cell


class Board:
    """An actor beside the driver that workers write to and the driver reads.

    Nobody ever waits for it: a board that is slow or lost costs the bar its progress,
    not a cell its training.
    """

    def __init__(self) -> None:
        here = ray.get_runtime_context().get_node_id()
        beside_the_driver = NodeAffinitySchedulingStrategy(here, soft=False)
        options = {"num_cpus": 0, "scheduling_strategy": beside_the_driver}
        self.actor: Any = ray.remote(self._notes()).options(**options).remote()
        self._asked = self.actor.read.remote()

    @staticmethod
    def _notes() -> Any:
        # Made in here, so that Ray sends the class itself and its process does not
        # import this module, and torch with it.
        class Notes:
            def __init__(self) -> None:
                self.told: dict[str, tuple[Any, ...]] = {}

            def note(self, cell: str, *told: Any) -> None:
                self.told[cell] = told

            def read(self) -> dict[str, tuple[Any, ...]]:
                return self.told

        return Notes

    def __enter__(self) -> "Board":
        return self

    def __exit__(self, *error: object) -> None:
        ray.kill(self.actor)

    def tell(self, cells: Iterable[Cell], on_epoch: OnEpoch) -> None:
        """Pass on what was noted of the cells, if the board has answered."""
        if not ray.wait([self._asked], timeout=0)[0]:
            return
        with suppress(RayError):
            told = ray.get(self._asked)
            for cell in cells:
                if cell.id in told:
                    on_epoch(cell, *told[cell.id])
        self._asked = self.actor.read.remote()
