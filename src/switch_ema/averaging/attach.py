"""Averaging without changes to the training loop: the loader marks the epochs."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from torch import nn

from switch_ema.averaging.averager import Averager
from switch_ema.averaging.model.names import unwrap
from switch_ema.averaging.registry import MethodOptions, create_averager
from switch_ema.averaging.step.hooks import Optimizers, as_optimizers
from switch_ema.averaging.view.stage import stage_of

if TYPE_CHECKING:
    from typing_extensions import Unpack


def attach(
    optimizer: Optimizers,
    loader: Iterable[Any] | None = None,
    model: nn.Module | None = None,
    method: str = "ema",
    **options: "Unpack[MethodOptions]",
) -> "Attached":
    """Average without changing the training loop.

    Steps are counted by the optimizer and epochs by the loader: iterate over the
    returned loader instead of your own. ``update`` and ``end_epoch`` are not needed.

    Args:
        optimizer: one or several, see :class:`Averager`.
        loader: yields the batches of one epoch per iteration, such as a DataLoader.
            Without it, epochs are counted only for loaders given to
            :meth:`Attached.watch`.
        model: see :class:`Averager`. Without it, only the parameters that the
            optimizer holds now are averaged: buffers, such as batch-norm statistics,
            stay live, ``recalibrate`` has no model to call, and state dicts have the
            model's names only if the optimizer was made from
            ``model.named_parameters()``. Required under FSDP2.
        method: a name in ``METHODS``; "ema" leaves the training as it is,
            "switch-ema" continues it from the average after each pass.
        options: the options of the method, such as ``decay`` or ``switch_every``.

    >>> import torch
    >>> model = nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> loader = attach(optimizer, [torch.ones(4, 2)] * 3, model=model)
    >>> for x in loader:
    ...     model(x).sum().backward()
    ...     optimizer.step()
    >>> loader.averager.steps, loader.averager.epochs, loader.averager.switches
    (3, 1, 0)
    """
    optimizers = as_optimizers(optimizer)
    if not optimizers:
        raise ValueError("attach() needs an optimizer, got none.")
    _check_loader(loader)
    if model is None:
        model = _module_over(_named_parameters(optimizers))
    averager = create_averager(method, model, optimizers, **options)
    return Attached(_Epochs(averager, unwrap(model)), loader)


class Attached:
    """A loader that reports the ends of epochs to an averager; see ``attach``.

    It has the length and the public attributes of the wrapped loader. An epoch ends

    - when a pass is exhausted, before the loop exits, so code after the loop already
      sees the switch;
    - at the start of the next pass if the loop was left with ``break`` (after the last
      epoch, call ``averager.end_epoch()``).

    A pass without an optimizer step is not an epoch, for example a look at the first
    batch or an evaluation on the training data, even in the middle of an epoch.
    Prefetchers must be inside the attached loader, not around it.

    Args:
        epochs: counts epochs; shared by all loaders of one averager.
        loader: the wrapped loader; None if :meth:`watch` gives each epoch its own.
    """

    def __init__(self, epochs: "_Epochs", loader: Iterable[Any] | None) -> None:
        self._epochs = epochs
        self._loader = loader

    def __repr__(self) -> str:
        """Return the averager and the kind of the loader."""
        kind = "None" if self._loader is None else type(self._loader).__name__
        return f"Attached({self.averager!r}, loader={kind})"

    @property
    def averager(self) -> Averager:
        """The averager, which has the average, the counters and the state."""
        return self._epochs.averager

    def watch(self, loader: Iterable[Any]) -> "Attached":
        """Wrap another loader for the same averager, such as one made for each epoch.

        >>> import torch
        >>> model = nn.Linear(2, 1)
        >>> attached = attach(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
        >>> [len(batch) for batch in attached.watch([torch.ones(4, 2)])]
        [4]
        """
        _check_loader(loader)
        return Attached(self._epochs, loader)

    def __iter__(self) -> Iterator[Any]:
        if self._loader is None:
            raise TypeError("attach() was given no loader; iterate over watch(loader).")
        return self._epochs.run(self._loader)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # raises if it has none

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # while unpickling, _loader does not exist yet
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}.")
        return getattr(self._loader, name)


class _Epochs:
    """Finds the ends of epochs in passes over loaders."""

    def __init__(self, averager: Averager, model: nn.Module) -> None:
        self.averager = averager
        self._model = model
        self._broken_off: tuple[int, int] | None = None
        """The averager's steps and epochs when a pass was left early."""

    def run(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Make one pass; as a generator, it notices when the loop is left early."""
        self._end_what_was_broken_off()
        averager = self.averager
        trained, before = False, averager.steps
        try:
            for batch in loader:
                before = averager.steps
                yield batch
                # A step between two batches distinguishes training from evaluation.
                trained = trained or averager.steps > before
        except BaseException:
            # No switch here: after an error, the weights must stay unchanged.
            if trained or averager.steps > before:
                self._broken_off = averager.steps, averager.epochs
            raise
        if trained:
            self._broken_off = None
            averager.end_epoch()

    def _end_what_was_broken_off(self) -> None:
        if self._broken_off is None or stage_of(self._model).is_held:
            return
        steps, epochs = self._broken_off
        position = self.averager.position
        # Skip if end_epoch() was called or a checkpoint was loaded since then.
        if position.steps >= steps and position.epochs == epochs:
            self.averager.end_epoch()
        self._broken_off = None


def _check_loader(loader: Iterable[Any] | None) -> None:
    is_model = isinstance(loader, nn.Module)  # a Sequential is iterable, too
    if is_model or not (loader is None or isinstance(loader, Iterable)):
        raise TypeError(
            f"loader must be an iterable of batches, got {type(loader).__name__}; "
            "pass the model as model=..."
        )


def _named_parameters(optimizers: list[Any]) -> Iterator[tuple[str, nn.Parameter]]:
    """Name parameters as the optimizer does, otherwise by their index."""
    for i, optimizer in enumerate(optimizers):
        prefix = f"optimizer{i}." if len(optimizers) > 1 else ""
        for j, group in enumerate(optimizer.param_groups):
            places = [f"group{j}.{k}" for k in range(len(group["params"]))]
            names = group.get("param_names", places)
            for name, parameter in zip(names, group["params"], strict=True):
                yield prefix + name, parameter


def _module_over(parameters: Iterable[tuple[str, nn.Parameter]]) -> nn.Module:
    """Build a module that holds parameters under dotted names."""
    root = nn.Module()
    for name, parameter in parameters:
        *path, key = name.split(".")
        module = root
        for part in path:
            if part not in dict(module.named_children()):
                module.add_module(part, nn.Module())
            module = module.get_submodule(part)
        module.register_parameter(key, parameter)
    return root
