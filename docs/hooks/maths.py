"""Draws formulas when the site is built, so that readers load no script for them.

GitHub shows the same ``$...$`` by its own means. A formula that cannot be drawn fails
the build.
"""

import html
import re
from io import StringIO

from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import TextPath, text_to_path
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

FORMULA = re.compile(
    r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL
)
SYNONYMS = {
    r"\\tfrac(\d)(\d)": r"\\frac{\1}{\2}",
    r"\\mathcal (\w)": r"\\mathcal{\1}",
    r"\\iff\b": r"\\Longleftrightarrow",
    r"\\le\b": r"\\leq",
    r"\\ge\b": r"\\geq",
}
"""TeX that matplotlib does not know, as what it knows."""
SIZE = 10.0
FONT = FontProperties(size=SIZE, math_fontfamily="cm")


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put a drawing in the place of each formula."""
    return FORMULA.sub(_drawn, html)


def _drawn(match: re.Match[str]) -> str:
    tag, source = match[1], " ".join(html.unescape(match[2]).split())
    text = source
    for pattern, replacement in SYNONYMS.items():
        text = re.sub(pattern, replacement, text)
    return f'<{tag} class="formula">{_svg(f"${text}$", source)}</{tag}>'


def _svg(text: str, label: str) -> str:
    width, height, descent = text_to_path.get_text_width_height_descent(
        text, FONT, ismath=True
    )
    outline = _outline(TextPath((0, 0), text, prop=FONT))
    box = f"0 {descent - height:.2f} {width:.2f} {height:.2f}"
    # In units of the surrounding text, whose baseline is `descent` above the bottom.
    style = (
        f"width:{width / SIZE:.3f}em;height:{height / SIZE:.3f}em;"
        f"vertical-align:{-descent / SIZE:.3f}em"
    )
    return (
        f'<svg role="img" aria-label="{html.escape(label)}" viewBox="{box}" '
        f'style="{style}"><path d="{outline}"/></svg>'
    )


def _outline(path: Path) -> str:
    letters = {
        Path.MOVETO: "M",
        Path.LINETO: "L",
        Path.CURVE3: "Q",
        Path.CURVE4: "C",
        Path.CLOSEPOLY: "Z",
    }
    out = StringIO()
    for points, code in path.iter_segments(curves=True, simplify=False):
        out.write(letters[code])
        if code != Path.CLOSEPOLY:
            flipped = (f"{x:.2f} {-y:.2f}" for x, y in points.reshape(-1, 2))
            out.write(" ".join(flipped))
    return out.getvalue()
