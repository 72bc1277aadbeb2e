"""Averaging without changing the training loop: the loader marks the epochs."""

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
    method: str = "switch-ema",
    **options: "Unpack[MethodOptions]",
) -> "Attached":
    """Average beside a training loop that stays as it is.

    The optimizer tells the steps and the loader the epochs; iterate over what this
    returns in place of the loader. There is no ``update`` or ``end_epoch`` to call.

    Args:
        optimizer: one or several, see :class:`Averager`.
        loader: gives the batches of one epoch each time it is iterated, such as a
            DataLoader. Without it only what goes by steps happens, until
            :meth:`Attached.watch` is given one.
        model: see :class:`Averager`. Without it the parameters that the optimizer
            has now are averaged, and nothing else: buffers, such as the statistics of
            batch norm, stay live, there is no model for ``recalibrate`` to call, and
            the state dicts carry the model's names only if the optimizer was made
            from ``model.named_parameters()``. Models under FSDP2 must be given.
        method: a name in ``METHODS``.
        options: the options of the method, such as ``decay`` or ``switch_every``.

    >>> import torch
    >>> model = nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> loader = attach(optimizer, [torch.ones(4, 2)] * 3, model=model)
    >>> for x in loader:
    ...     model(x).sum().backward()
    ...     optimizer.step()
    >>> loader.averager.steps, loader.averager.epochs, loader.averager.switches
    (3, 1, 1)
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
    """A loader that tells an averager when an epoch ends; returned by ``attach``.

    It has the length and the public attributes of the loader inside. An epoch ends

    - when a pass comes to its end, before the loop is left, so that what follows the
      loop already sees the switch;
    - when a pass was broken off, at the start of the next one (after the very last,
      ``averager.end_epoch()`` does it by hand).

    A pass in which the optimizer takes no step is no epoch: a look at the first batch,
    or an evaluation on the training data, also while an epoch is running. What fetches
    batches ahead of the loop must be inside the loader that is attached, not around it.

    Args:
        epochs: counts them; shared by all loaders of one averager.
        loader: the one inside; None if :meth:`watch` gives each epoch its own.
    """

    def __init__(self, epochs: "_Epochs", loader: Iterable[Any] | None) -> None:
        self._epochs = epochs
        self._loader = loader

    @property
    def averager(self) -> Averager:
        """The averager, with the average, the counters and the state."""
        return self._epochs.averager

    def watch(self, loader: Iterable[Any]) -> "Attached":
        """Return another loader for the same averager, as where each epoch has its own.

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
        return len(self._loader)  # type: ignore[arg-type]  # says so if it has none

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # not there yet while this is being unpickled
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}.")
        return getattr(self._loader, name)


class _Epochs:
    """Finds the ends of epochs in passes over loaders."""

    def __init__(self, averager: Averager, model: nn.Module) -> None:
        self.averager = averager
        self._model = model
        self._broken_off: tuple[int, int] | None = None
        """Steps and epochs of the averager when a pass was broken off."""

    def run(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Make one pass. Being a generator, it notices when it is left."""
        self._end_what_was_broken_off()
        averager = self.averager
        trained, before = False, averager.steps
        try:
            for batch in loader:
                before = averager.steps
                yield batch
                # Steps between two batches tell training from looking at the data.
                trained = trained or averager.steps > before
        except BaseException:
            # Nothing is switched here: after an error, the weights stay as they were.
            if trained or averager.steps > before:
                self._broken_off = averager.steps, averager.epochs
            raise
        if trained:
            self._broken_off = None
            averager.end_epoch()

    def _end_what_was_broken_off(self) -> None:
        if self._broken_off is None or stage_of(self._model).blocks:
            return
        steps, epochs = self._broken_off
        position = self.averager.position
        # Not if the epoch was ended by hand, or a checkpoint was loaded since then.
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
    """Name parameters as the optimizer does, else by their places in it."""
    for i, optimizer in enumerate(optimizers):
        prefix = f"optimizer{i}." if len(optimizers) > 1 else ""
        for j, group in enumerate(optimizer.param_groups):
            places = [f"group{j}.{k}" for k in range(len(group["params"]))]
            names = group.get("param_names", places)
            for name, parameter in zip(names, group["params"], strict=True):
                yield prefix + name, parameter


def _module_over(parameters: Iterable[tuple[str, nn.Parameter]]) -> nn.Module:
    """Build a module that holds parameters under the given dotted names."""
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
