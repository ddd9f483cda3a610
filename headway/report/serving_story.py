"""A serving run in words and tables: who was asked, by which rule, how long it took, what changed. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headway.cluster.units import format_time
from headway.decide.journal import RequestRecord, ServingRecord
from headway.report.serving_figures import Accuracy, Line, ServingSummary, mispredicted, slowest, summarise_serving
from headway.report.serving_run import ServingRun, actual_s
from headway.report.words import counted

CHANGES_TOLD = 60  # of the timeline; of more, the first and the last half of these


@dataclass(frozen=True, slots=True)
class Grid:
    """A table as text: a title, what the columns are called, and the cells. The first column holds names."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Change:
    """One line of the timeline: seconds since the run's start, the event's word, and what happened."""

    time_s: float
    kind: str
    text: str


@dataclass(frozen=True)
class ServingStory:
    """A run in words.

    Attributes:
        title: which run.
        setting: what was asked and how it ended, a sentence each.
        grids: per rule, replica and model.
        timeline: replicas that came and went, models, the guard-rail's moves, and records that are missing.
        left_out: changes that the timeline leaves out (count).
        prediction: how good predictions were; empty where there were none.
        worst: the slowest and the most mispredicted requests.
        summary: the figures behind it.
    """

    title: str
    setting: list[str]
    grids: list[Grid]
    timeline: list[Change]
    left_out: int
    prediction: str
    worst: list[Grid]
    summary: ServingSummary


def tell_serving(run: ServingRun, *, worst: int = 5) -> ServingStory:
    """Tell a run, with the `worst` slowest and most mispredicted requests."""
    summary = summarise_serving(run)
    timeline = changes(run)
    left_out = max(0, len(timeline) - CHANGES_TOLD)
    if left_out:
        timeline = timeline[: CHANGES_TOLD // 2] + timeline[-CHANGES_TOLD // 2 :]
    grids = [_grid("By rule", "rule", summary.rules), _grid("By replica", "replica", summary.replicas)]
    if len(summary.models) > 1:
        grids.append(_grid("By model", "model", summary.models))
    return ServingStory(
        title=run.label,
        setting=_setting(run, summary),
        grids=[grid for grid in grids if grid.rows],
        timeline=timeline,
        left_out=left_out,
        prediction=_prediction(summary.accuracy),
        worst=_worst(run, worst),
        summary=summary,
    )


def _setting(run: ServingRun, summary: ServingSummary) -> list[str]:
    if not summary.requests:
        return ["The journal holds no request, only changes of the fleet."]
    policies = ", ".join(summary.policies)
    span_s = round(summary.span_s, 1)  # as it is shown, so that the rate is that of the figures beside it
    came = f", which came in {span_s:.1f} s ({summary.requests / span_s:.3g} per second)" if span_s > 0 else ""
    lines = [
        f"{counted(summary.requests, 'request')} for {', '.join(run.models)}{came}; the journal goes on for "
        f"{run.end_s:.1f} s; {'policies' if len(summary.policies) > 1 else 'policy'} {policies}."
    ]
    ends = ", ".join(f"{count} {end}" for end, count in summary.ends.items())
    retried = f" {counted(summary.retried, 'request')} needed more than one attempt." if summary.retried else ""
    lines.append(f"How they ended: {ends}.{retried}")
    if summary.ttft is not None:
        t = summary.ttft
        lines.append(
            f"First token after {format_time(t.mean_s)} in the mean, {format_time(t.p50_s)} in the median, "
            f"{format_time(t.p99_s)} at the 99th percentile."
        )
    if summary.goals:
        share = 100 * summary.goals_met / summary.goals
        lines.append(f"{summary.goals_met} of {summary.goals} met their goal for the first token ({share:.0f} %).")
    return lines


def _grid(title: str, what: str, lines: Sequence[Line]) -> Grid:
    predicted = any(line.accuracy is not None for line in lines)
    found = any(line.hit_share is not None for line in lines)
    columns: tuple[str, ...] = (what, "requests", "share", "mean TTFT", "p50", "p99")
    columns += ("in cache",) if found else ()
    columns += ("predicted off by", "bias") if predicted else ()
    rows = []
    for line in lines:
        t = line.ttft
        row: tuple[str, ...] = (line.name, str(line.requests), f"{100 * line.share:.1f} %")
        row += (format_time(t.mean_s), format_time(t.p50_s), format_time(t.p99_s)) if t is not None else ("-",) * 3
        if found:
            row += (f"{100 * line.hit_share:.0f} %" if line.hit_share is not None else "-",)
        if predicted:
            a = line.accuracy
            row += (format_time(a.error_s), _signed(a.bias_s)) if a is not None else ("-", "-")
        rows.append(row)
    return Grid(title, columns, tuple(rows))


def changes(run: ServingRun) -> list[Change]:
    """Replicas that came and went, models, the guard-rail's moves, missing records; in order."""
    found = list(_folded(run.changes, run.zero_s))
    for dropped in run.dropped:
        text = f"{counted(dropped.count, 'record')} before this point are missing from the journal: {dropped.what}."
        found.append(Change(dropped.t_s - run.zero_s, "dropped", text))
    return sorted(found, key=lambda change: change.time_s)


def _folded(records: Sequence[ServingRecord], zero_s: float) -> Iterator[Change]:
    """One line each; what is said of a replica again and again, as while a dead one is tried, is one line."""
    repeated: dict[str, list[ServingRecord]] = {}
    for record in records:
        same = repeated.setdefault(record.replica, [])
        if record.replica and same and same[0].event == record.event:
            same.append(record)
            continue
        if same:
            yield _told(same, zero_s)
        repeated[record.replica] = [record]
    for same in repeated.values():
        yield _told(same, zero_s)


def _told(same: Sequence[ServingRecord], zero_s: float) -> Change:
    first, last = same[0], same[-1]
    text = first.what if first.what.endswith((".", "?", "!")) else f"{first.what}."  # often begins with a name
    if first.samples is not None and str(first.samples) not in text:
        text += f" ({counted(first.samples, 'request')})"
    if len(same) > 1:
        text += f" The same {counted(len(same) - 1, 'more time')}, the last at {last.t_s - zero_s:.1f} s: {last.what}."
    return Change(first.t_s - zero_s, first.event, text)


def _prediction(found: Accuracy | None) -> str:
    if found is None:
        return ""
    way = "more" if found.bias_s >= 0 else "less"
    return (
        f"Of {counted(found.count, 'prediction')} half were off by no more than {format_time(found.error_s)} "
        f"({100 * found.error_share:.0f} % of the actual time). In the mean it took {format_time(abs(found.bias_s))} "
        f"{way} than predicted."
    )


def _worst(run: ServingRun, count: int) -> list[Grid]:
    columns = ("request", "replica", "rule", "prompt", "hit", "TTFT", "predicted", "actual", "reason")
    grids = [
        Grid("Slowest", columns, tuple(map(_row, slowest(run, count)))),
        Grid("Most mispredicted", columns, tuple(map(_row, mispredicted(run, count)))),
    ]
    return [grid for grid in grids if grid.rows]


def _row(record: RequestRecord) -> tuple[str, ...]:
    return (
        record.request,
        record.replica,
        record.by,
        str(record.input_tokens),
        str(record.hit_tokens) if record.hit_tokens is not None else "-",
        _time(record.ttft_s),
        _time(record.predicted_ttft_s),
        _time(actual_s(record)),
        record.reason,
    )


def _time(time_s: float | None) -> str:
    return format_time(max(0.0, time_s)) if time_s is not None else "-"


def _signed(time_s: float) -> str:
    return f"{'+' if time_s >= 0 else '-'}{format_time(abs(time_s))}"
