"""Translates what Markdown does not know in docstrings: roles and doctests."""

import re
from typing import Any

import griffe

import switch_ema
from switch_ema._lazy import exported_names

ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):`~?\.?([\w.]+)`")
DOCTEST = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Shows ``:class:`Name``` as code, with a link where the package exports it."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is None:
            return

        def code(match: re.Match[str]) -> str:
            name = match[1].removeprefix("switch_ema.").removeprefix("contrib.")
            if name in switch_ema.__all__:
                return f"[`{name}`][switch_ema.{name}]"
            if name in exported_names("switch_ema.averaging.contrib"):
                return f"[`{name}`][switch_ema.contrib.{name}]"
            return f"`{name}`"

        text = ROLE.sub(code, obj.docstring.value)
        obj.docstring.value = DOCTEST.sub(r"```pycon\n\g<0>\n```", text)
