"""Tables on the terminal, whole: where it is too narrow their lines are longer than its own, and nothing is cut."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

GAP = 2  # columns between two columns


def plain_table() -> Table:
    """A table without lines; columns that must not be wrapped are added with `no_wrap`."""
    return Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="")


def print_table(table: Table, *, plain_width: int) -> None:
    """Print a table made by `plain_table`; it is at most `plain_width` wide where the output is no terminal."""
    console = Console(highlight=False)
    least, natural = _widths(table)
    width = console.width if console.is_terminal else plain_width
    if width < least:
        width = max(least, min(natural, plain_width))
    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _widths(table: Table) -> tuple[int, int]:
    """(with all that may be wrapped in lines of single words, without wrapping anything)."""
    least = natural = 0
    for column in table.columns:
        cells = [str(column.header), *(str(cell) for cell in column.cells)]
        whole = max(map(cell_len, cells)) + GAP
        word = max((cell_len(word) for cell in cells for word in cell.split()), default=0) + GAP
        natural += whole
        least += whole if column.no_wrap else word
    return least, natural
