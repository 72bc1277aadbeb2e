"""Method options as explicit keyword arguments, for YAML and command lines."""

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
    """Replace ``**options`` in a function's signature with every option by name.

    LightningCLI and other tools that read signatures then list all options, and unknown
    names are rejected at once. Such tools pass the default, None, for unset options;
    None always stands for the method's default. A dtype may be a string, for YAML.

    Args:
        function: a function that ends in ``**options``.
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

    del call.__wrapped__  # else inspect would follow it to the old signature
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {
        one.name: one.annotation for one in signature.parameters.values()
    }
    return cast("F", call)


def check_method(method: str, options: Mapping[str, Any]) -> None:
    """Reject an unknown method, or an option that the method does not take."""
    check_choice("method", method, tuple(METHODS))
    taken = list(inspect.signature(METHODS[method]).parameters)[2:]
    for name in options:
        if name not in taken:
            raise TypeError(
                f"The method {method} takes no option {name!r}; its options are "
                f"{', '.join(taken)}."
            )
