"""Makes a notebook of the tutorial: text cells and code cells in the page's order.

    python docs/hooks/notebook.py

writes docs/tutorial.ipynb; the tests see to it that it is the page.
"""

import json
import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "tutorial.md"
NOTEBOOK = PAGE.with_suffix(".ipynb")
_CODE = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


def notebook_of(page: str) -> str:
    """Return the notebook of a page as JSON."""
    cells = []
    for number, part in enumerate(_CODE.split(page)):
        source = part.strip("\n")
        if not source:
            continue
        cell = {"cell_type": "markdown", "id": f"cell-{number}", "metadata": {}}
        if number % 2:
            cell |= {"cell_type": "code", "execution_count": None, "outputs": []}
        cells.append(cell | {"source": source.splitlines(keepends=True)})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = {
        "cells": cells,
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook_of(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
