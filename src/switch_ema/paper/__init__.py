"""The paper's tables as data, with the training settings of their rows.

To add a table, write a data file in ``tables`` and add the table to ``TABLES``. Figures
are registered in ``show.figures``.
"""

from switch_ema.paper.show.figures import make_figures
from switch_ema.paper.tables.ablations import make_table_13
from switch_ema.paper.tables.classification import TABLE_2, TABLE_3
from switch_ema.paper.tables.detection import TABLE_6, TABLE_7
from switch_ema.paper.tables.generation import TABLE_8
from switch_ema.paper.tables.language import TABLE_11, TABLE_12
from switch_ema.paper.tables.properties import TABLE_1
from switch_ema.paper.tables.regression import TABLE_10
from switch_ema.paper.tables.selfsupervised import TABLE_4, TABLE_5
from switch_ema.paper.tables.table import PaperTable
from switch_ema.paper.tables.video import TABLE_9

TABLES: dict[str, PaperTable] = {
    table.name: table
    for table in (
        *(TABLE_1, TABLE_2, TABLE_3, TABLE_4, TABLE_5),
        *(TABLE_6, TABLE_7, TABLE_8, TABLE_9),
        *(TABLE_10, TABLE_11, TABLE_12),
    )
}
TABLES["table-13"] = make_table_13(TABLES)
TABLES |= {figure.name: figure for figure in make_figures(TABLES)}
"""By their names on the command line."""
