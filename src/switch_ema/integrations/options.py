"""The options of all methods as arguments by name, for YAML and command lines."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Union, cast, get_type_hints

import torch

from switch_ema._checks import check_choice
from switch_ema.averaging.registry import METHODS, MethodOptions

F = TypeVar("F", bound=Callable[..., Any])

_DTYPES = {"float32": torch.float32, "float64": torch.float64}
_DTYPES["bfloat16"] = torch.bfloat16


def spelled_out(function: F, kind: type = MethodOptions) -> F:
    """Name every option in the signature of a function that ends in ``**options``.

    LightningCLI and other tools that read signatures then offer them all, and a wrong
    name is refused at once. They give an option that nobody has set its default: None,
    which here always is the method's own default. A dtype may be a word, since YAML
    has no others.

    Args:
        function: what is to be spelled out.
        kind: the TypedDict of its options.

    >>> @spelled_out
    ... def make(method="ema", **options):
    ...     return options
    >>> make(decay=0.9, dtype="float64", live_share=None)
    {'decay': 0.9, 'dtype': torch.float64}
    >>> "switch_every" in inspect.signature(make).parameters
    True
    """
    own = inspect.signature(function)
    hints: dict[str, Any] = get_type_hints(kind)
    hints["dtype"] = Union[torch.dtype, str]
    fixed = [
        one
        for one in own.parameters.values()
        if one.kind != inspect.Parameter.VAR_KEYWORD
    ]
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Union[hint, None],
        )
        for name, hint in hints.items()
        if name not in own.parameters
    ]
    signature = own.replace(parameters=[*fixed, *options])

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        signature.bind(*args, **named)
        given = {
            name: value
            for name, value in named.items()
            if name in own.parameters or value is not None
        }
        if isinstance(dtype := given.get("dtype"), str):
            check_choice("dtype", dtype, tuple(_DTYPES))
            given["dtype"] = _DTYPES[dtype]
        return function(*args, **given)

    del call.__wrapped__  # readers of signatures would find the other one behind it
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {
        one.name: one.annotation for one in signature.parameters.values()
    }
    return cast("F", call)


def check_method(method: str, options: Mapping[str, Any]) -> None:
    """Refuse an unknown method, and an option that the method does not take."""
    check_choice("method", method, tuple(METHODS))
    taken = list(inspect.signature(METHODS[method]).parameters)[2:]
    for name in options:
        if name not in taken:
            raise TypeError(
                f"The method {method} takes no option {name!r}; its options are "
                f"{', '.join(taken)}."
            )
