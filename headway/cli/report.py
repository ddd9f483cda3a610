"""`headway report`: journals and results as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from headway.bench.results import Row, load
from headway.cli.journals import Journals, read_journals, write_text
from headway.errors import UsageError
from headway.report.chart import chart_file
from headway.report.page import chart_of, leading, render_page
from headway.report.tables import ResultRow


def report(
    journals: Annotated[
        list[Path] | None, typer.Argument(help="Journals to show side by side; the lab's events may be one of them.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    results: Annotated[list[Path] | None, typer.Option(help="Results of `headway bench -J`; may be repeated.")] = None,
    chart: Annotated[Path | None, typer.Option(help="Also write the chart of algbw alone, as an SVG file.")] = None,
    title: Annotated[str, typer.Option(help="The page's title.")] = "Headway report",
) -> None:
    """Write one self-contained HTML page: of jobs, algbw over time, decisions, links and plans; of gateways, TTFT."""
    if not journals and not results:
        raise UsageError("nothing to report on", hint="name a journal, or results with --results")
    found = read_journals(journals) if journals else Journals([], [], [])
    runs = found.runs
    rows = [row for path in results or [] for row in _rows(path)]
    write_text(output, render_page(runs, serving=found.serving, results=rows, title=title))
    print(f"wrote {output}")
    if chart is not None:
        lead = leading(runs)
        if lead is None:
            raise UsageError("--chart needs a job's journal")
        write_text(chart, chart_file(chart_of(runs, lead)))
        print(f"wrote {chart}")


def _rows(path: Path) -> Sequence[ResultRow]:
    try:
        found = load(path)
    except OSError as error:
        raise UsageError(f"cannot read the results: {error.strerror}", where=str(path)) from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "document"
        raise UsageError(f"{field}: {first['msg']}", where=str(path), hint="written by headway bench -J?") from None
    return [_row(row) for row in found.rows]


def _row(row: Row) -> ResultRow:
    return ResultRow(
        condition=row.condition,
        backend=row.backend,
        collective=row.collective.value,
        size_bytes=row.size_bytes,
        time_s=_known(row.time_s),
        algbw_Bps=_known(row.algbw_Bps),
        p99_s=_known(row.p99_s),
        variation_percent=_known(row.cv_percent),
        limit_percent=row.limit_percent,
        wrong=row.wrong,
        plan=row.plan,
        bottleneck=row.bottleneck,
        error=row.error,
    )


def _known(value: float) -> float | None:
    return value if isfinite(value) else None
