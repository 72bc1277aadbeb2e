"""Names with options, as they are typed: ``ema:decay=0.99,update_every=2``."""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from switch_ema.bench.errors import UsageError


@dataclass(frozen=True)
class Spec:
    """A name and its options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Spell it as it would be typed, options sorted, so that equal means equal."""
        if not self.options:
            return self.name
        given = (f"{key}={value}" for key, value in sorted(self.options.items()))
        return f"{self.name}:{','.join(given)}"

    def with_defaults(self, defaults: Mapping[str, Any]) -> "Spec":
        """Add the options that are not given."""
        return Spec(self.name, {**defaults, **self.options})


def parse_spec(text: str) -> Spec:
    """Read a name with options.

    Numbers, booleans, None and tuples are recognised; anything else is text.

    >>> parse_spec("ema:decay=0.99,buffers=copy").options
    {'decay': 0.99, 'buffers': 'copy'}
    >>> parse_spec("adamw:betas=(0.9,0.95),lr=1e-3").options
    {'betas': (0.9, 0.95), 'lr': 0.001}
    """
    name, _, rest = text.partition(":")
    options = {}
    for part in _split(rest):
        key, equals, value = part.partition("=")
        if not (equals and key.strip().isidentifier() and value.strip()):
            raise UsageError(
                f"{text!r}: options are written as name:key=value,key=value, "
                f"got {part!r}."
            )
        options[key.strip()] = _value(value.strip())
    return Spec(name.strip(), options)


def _split(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    return re.findall(r"(?:[^,([]|\([^)]*\)|\[[^]]*\])+", text)


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
