"""Tables on the terminal."""

from collections.abc import Sequence

from attnres.cost.tables import Table


def show(tables: Sequence[Table]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable

    for table in tables:
        shown = RichTable(
            title=table.title,
            caption=table.note or None,
            box=box.SIMPLE,
            pad_edge=False,
            collapse_padding=True,
        )
        for i, column in enumerate(table.columns):
            justify = "right" if i else "left"
            shown.add_column(column, justify=justify, overflow="fold", no_wrap=not i)
        for row in table.rows:
            shown.add_row(*row)
        Console().print(shown)
