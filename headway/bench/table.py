"""nccl-tests' table, then our columns. Times in microseconds, GB/s = 1e9 bytes per second."""

from __future__ import annotations

import math

from headway.bench.results import Results, Row

_FORMAT = (
    "{size:>12}  {count:>12}  {type:>8}  {redop:>6}  {root:>4}  {time:>10}  {algbw:>7}  {busbw:>7}  {wrong:>6}"
    "  {p99:>10}  {cv:>6}  {limit:>6}  {backend:<16}  {plan:<28}  {bottleneck}"
)


def header(results: Results) -> str:
    """The lines above the rows: where, units, names of columns."""
    names = _FORMAT.format(
        size="size", count="count", type="type", redop="redop", root="root", time="time", algbw="algbw",
        busbw="busbw", wrong="#wrong", p99="i_p99", cv="i_cv%", limit="limit%", backend="backend", plan="plan",
        bottleneck="bottleneck",
    )  # fmt: skip
    units = _FORMAT.format(
        size="(B)", count="(elements)", type="", redop="", root="", time="(us)", algbw="(GB/s)", busbw="(GB/s)",
        wrong="", p99="(us)", cv="", limit="", backend="", plan="", bottleneck="",
    )  # fmt: skip
    return "\n".join(
        (
            f"# headway {results.headway}: {results.where}",
            "# time: mean over iterations of the maximum over ranks; GB/s = 1e9 bytes per second",
            f"#{names[1:].rstrip()}",
            f"#{units[1:].rstrip()}",
        )
    )


def line(row: Row) -> str:
    """One row of the table; a backend that gave no figure says why instead."""
    if row.error:
        return f"{row.size_bytes:>12}  {row.backend}: {row.error}"
    limit = row.limit_percent
    return _FORMAT.format(
        size=row.size_bytes,
        count=row.count,
        type=row.type,
        redop=row.redop,
        root=row.root,
        time=microseconds(row.time_s),
        algbw=gigabytes(row.algbw_Bps),
        busbw=gigabytes(row.busbw_Bps),
        wrong="N/A" if row.wrong is None else row.wrong,
        p99=microseconds(row.p99_s),
        cv=f"{row.cv_percent:.1f}",
        limit="-" if limit is None else f"{limit:.1f}",
        backend=row.backend,
        plan=row.plan or "-",
        bottleneck=row.bottleneck or "-",
    ).rstrip()


def microseconds(time_s: float) -> str:
    """As nccl-tests prints a time: two digits after the point until there are many before it."""
    value = time_s * 1e6
    return f"{value:.2f}" if value < 1e4 else f"{value:.0f}"


def gigabytes(rate_Bps: float) -> str:
    """GB/s with the digits that a slow network needs."""
    value = rate_Bps / 1e9
    if math.isnan(value):
        return "-"
    return f"{value:.2f}" if value >= 10 else f"{value:.4f}"
