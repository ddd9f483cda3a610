"""Tables of results as markdown, for docs/results.md."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from headway.bench.results import Row
from headway.cluster.units import format_bytes


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A markdown table; the first column is text, the others are figures."""
    lines = ["| " + " | ".join(heads) + " |", "| --- |" + " ---: |" * (len(heads) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def rate_cell(row: Row | None) -> str:
    """algbw of the median iteration in MB/s, and the range over iterations where there are several."""
    if row is None:
        return ""
    if row.error or not row.iterations_s:
        return "failed"
    rates = sorted(row.size_bytes / time_s / 1e6 for time_s in row.iterations_s)
    text = f"{statistics.median(rates):.2f}"
    if len(rates) > 1:
        text += f" ({rates[0]:.2f}-{rates[-1]:.2f})"
    return text + (f" {row.wrong} WRONG" if row.wrong else "")


def algbw_table(rows: Sequence[Row], backends: Sequence[str]) -> str:
    """One line per condition and size: algbw of each backend in MB/s, the limit, and the last backend's share of it."""
    found = {(row.condition, row.size_bytes, row.backend): row for row in rows}
    lines = []
    for condition, size in dict.fromkeys((row.condition, row.size_bytes) for row in rows):
        here = [found.get((condition, size, backend)) for backend in backends]
        limit_s = next((row.limit_s for row in here if row is not None and row.limit_s), None)
        cells = [condition, _size(size), *(rate_cell(row) for row in here)]
        cells.append(f"{size / limit_s / 1e6:.2f}" if limit_s else "")
        cells += [_share(row, limit_s) for row in here if row is None or row.backend.startswith("headway")]
        lines.append(cells)
    heads = ["condition", "size", *backends, "limit"]
    heads += [f"{backend} / limit" for backend in backends if backend.startswith("headway")]
    return table(heads, lines)


def _size(size_bytes: int) -> str:
    return f"{size_bytes // 10**6} MB" if size_bytes % 10**6 == 0 else format_bytes(size_bytes)


def _share(row: Row | None, limit_s: float | None) -> str:
    if row is None or limit_s is None or not row.iterations_s:
        return ""
    return f"{100 * limit_s / row.median_s:.0f} %"
