"""Display names and colours of methods, the same in every figure and page.

A method has one display name and one colour, whatever it is compared with; both are
attributes of its class. Variants of a method, such as other decays, share its colour
and differ in dashes and markers. The palette is in ``matplotlib_style.py`` and, for
light and dark pages, in the style sheet of reports.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from switch_ema._methods import method_facts

COLOURS, DASHES, MARKERS = 10, 6, 7
"""Number of colours, dashes and markers."""


@dataclass(frozen=True)
class MethodStyle:
    """How one curve is drawn; numbers index the palette, dashes and markers."""

    name: str
    """For legends and titles."""
    colour: int
    dash: int
    marker: int


_KNOWN = {
    "plain": ("plain", 0),
    "plain-again": ("plain again", 0),
    **{m.name: (m.display_name, m.colour) for m in method_facts().values()},
    "sam": ("SAM", 5),
    "sasam": ("SASAM", 6),
    "adan": ("Adan", 9),
}
"""Display name and colour by the method's name."""
_BEST = "+best"  # suffix of methods that return their best average
_ALIASES = {name: method for method, (name, _) in _KNOWN.items()} | {
    "SGD": "plain",
    "Eq. 3": "literal-eq3",
}


def display_name(label: str) -> str:
    """Return the name of a method in figures; other labels stay as they are.

    >>> display_name("switch-ema"), display_name("ema:decay=0.99,update_every=2")
    ('Switch EMA', 'EMA, decay 0.99, update every 2')
    >>> display_name("ema+best"), display_name("ema@lr*f")
    ('EMA, best', 'EMA, lr x f')
    """
    head, _, options = label.partition(":")
    name, _, change = head.partition("@")
    method = name.removesuffix(_BEST)
    if method not in _KNOWN:
        return label
    parts = ["best"] if name.endswith(_BEST) else []
    parts += [part.replace("*", " x ") for part in _split(change)]
    parts += [option.replace("_", " ") for option in _split(options)]
    return ", ".join([_KNOWN[method][0], *(part.replace("=", " ") for part in parts)])


def method_styles(labels: Iterable[str]) -> dict[str, MethodStyle]:
    """Return the style of every curve of a figure.

    >>> labels = ["ema", "switch-ema:decay=0.9", "switch-ema:decay=0.99"]
    >>> found = method_styles(labels)
    >>> [(style.colour, style.dash) for style in found.values()]
    [(1, 1), (2, 2), (2, 3)]
    """
    labels = list(dict.fromkeys(labels))
    methods = {label: _method(label) for label in labels}
    fixed = {_KNOWN[method][1] for method in methods.values() if method in _KNOWN}
    free = [colour for colour in range(COLOURS) if colour not in fixed] or [0]
    used: set[tuple[int, int]] = set()
    styles, others = {}, 0
    for label, method in methods.items():
        if method in _KNOWN:
            colour = _KNOWN[method][1]
        else:
            colour = free[others % len(free)]
            others += 1
        turns = (turn for turn in range(DASHES) if (colour, colour + turn) not in used)
        turn = next(turns, 0)
        used.add((colour, colour + turn))
        styles[label] = MethodStyle(
            display_name(label),
            colour,
            (colour + turn) % DASHES,
            (colour + turn) % MARKERS,
        )
    return styles


def _method(label: str) -> str:
    """Return the method of a label, which may be typed or displayed."""
    name = label.partition(":")[0].partition("@")[0].removesuffix(_BEST)
    return name if name in _KNOWN else _ALIASES.get(name.partition(",")[0], name)


def _split(options: str) -> list[str]:
    """Split options at commas outside brackets."""
    parts, depth = [""], 0
    for character in options:
        depth += (character in "([") - (character in ")]")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part]
