"""What interleaving learnt, in a sentence. Pure."""

from __future__ import annotations

from headway.cluster.units import format_bytes, format_time
from headway.decide.journal import InterleaveRecord


def interleaving(record: InterleaveRecord) -> str:
    """One rank's record."""
    seen = f"Interleaving by {record.actuator}, seen by rank {record.rank}: {record.iterations} iterations"
    if record.iteration_bytes is None or record.period_s is None or record.isolated_s is None:
        return f"{seen}, not periodic at the end: plain TCP."
    what = (
        f"{seen}, of {format_bytes(record.iteration_bytes)} in {format_time(record.period_s)}, "
        f"{format_time(record.isolated_s)} if it were alone (estimate)"
    )
    if record.settled_after is None:
        return f"{what}; not settled, {(record.overlap or 0.0) * 100:.0f} % of its sending time was others' doing."
    end = "" if record.settled else ", but not at the end"
    return f"{what}; settled after {record.settled_after}{end}."
