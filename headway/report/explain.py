"""A run's journal told in sentences: what was seen, who is blamed, what was tried, predicted, measured, kept. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from headway.cluster.units import format_rate, format_time
from headway.decide.journal import DecisionRecord, FailureRecord, FindingRecord, OptionRecord
from headway.report.figures import Summary, false_findings, reactions, summarise
from headway.report.interleaving import interleaving
from headway.report.reaction_words import reaction_words
from headway.report.runs import Run
from headway.report.words import counted, percent, size_in_words

_NUMBER = re.compile(r"\d+(\.\d+)?")
LIMIT_NOTE = (
    "The limit counts a neighbour at what it sends, or at what was measured of it under another plan; what its packets "
    "lose in the queue is more room for the job, so a little above 100 % can be read."
)
OPTIONS_TOLD = 3  # plans named beside the chosen one; the rest are only counted


@dataclass(frozen=True, slots=True)
class Moment:
    """One line of the timeline.

    Attributes:
        time_s: seconds since the run's start.
        operation: the operation that ran then, or from which a decision holds; None before the first.
        kind: event, finding, try, keep, revert, restore, reroute, hold, failure or dropped.
        text: the sentences.
    """

    time_s: float
    operation: int | None
    kind: str
    text: str


@dataclass(frozen=True)
class Story:
    """A run in words.

    Attributes:
        title: which run.
        setting: who took part and how it went in one sentence each.
        timeline: what happened, in order.
        verdict: for each event or finding: how long detection took, which of the named links were right, how long
            the better plan took and what its trial was based on.
        closing: time congested, switches, gain, distance to the limit.
        summary: the figures behind `closing`.
    """

    title: str
    setting: list[str]
    timeline: list[Moment]
    verdict: list[str] = field(default_factory=list)
    closing: list[str] = field(default_factory=list)
    summary: Summary | None = None


def tell(run: Run, *, first: int | None = None, last: int | None = None) -> Story:
    """Tell a run.

    Args:
        run: the run.
        first: leave out of the timeline what happened before this operation.
        last: leave out what happened after this operation.
    """
    moments = sorted(_moments(run), key=lambda m: (m.time_s, m.kind != "event"))
    wanted = [m for m in moments if (first is None or _number(m) >= first) and (last is None or _number(m) <= last)]
    summary = summarise(run)
    return Story(
        title=run.label,
        setting=_setting(run),
        timeline=wanted,
        verdict=[reaction_words(run, r) for r in reactions(run)],
        closing=_closing(run, summary),
        summary=summary,
    )


def _number(moment: Moment) -> int:
    return -1 if moment.operation is None else moment.operation


def rate_MB(rate_Bps: float) -> str:
    """An algbw as text: `13.7 MB/s` (1 MB = 1e6 bytes)."""
    return f"{rate_Bps / 1e6:.3g} MB/s"


def _end(reason: str) -> str:
    """A reason as the end of a sentence."""
    return reason if reason.endswith((".", "?", "!")) else f"{reason}."


def _setting(run: Run) -> list[str]:
    lines: list[str] = []
    if run.start is not None:
        hosts = len(dict.fromkeys(run.start.hosts)) or run.start.world_size
        sentence = f"Group {run.group}: {counted(run.start.world_size, 'rank')} on {counted(hosts, 'host')}"
        racks = len(dict.fromkeys(run.start.racks))
        sentence += f" in {counted(racks, 'rack')}" if racks > 1 else ""
        lines.append(f"{sentence}, policy {run.start.policy}, starting with the plan {run.first_plan or 'unknown'}.")
        if run.start.settings:
            lines.append("Settings: " + ", ".join(f"{k}={v}" for k, v in sorted(run.start.settings.items())) + ".")
    else:
        lines.append(f"Group {run.group}: the journal does not have its start.")
    main = run.main_operations()
    if main:
        sizes = sorted({o.size_bytes for o in main})
        size = (
            size_in_words(sizes[0]) if len(sizes) == 1 else f"{size_in_words(sizes[0])} to {size_in_words(sizes[-1])}"
        )
        lines.append(
            f"{counted(len(run.operations), 'operation')} in {run.end_s:.1f} s; "
            f"the figures below are of {len(main)} x {main[0].collective} of {size} as rank {main[0].rank} saw them."
        )
    else:
        lines.append("It recorded no operation.")
    return lines


def _moments(run: Run) -> Iterator[Moment]:
    for event in run.events:
        yield Moment(event.begin_s, run.operation_at(event.begin_s), "event", f"Began: {event.what}.")
        if event.end_s < run.end_s:
            lasted = f"after {event.end_s - event.begin_s:.1f} s"
            yield Moment(event.end_s, run.operation_at(event.end_s), "event", f"Ended: {event.what} ({lasted}).")
    for failure in run.failures:
        time_s = failure.t_s - run.zero_s
        yield Moment(time_s, run.operation_at(time_s), "failure", _failure(run, failure))
    for dropped in run.dropped:
        time_s = dropped.t_s - run.zero_s
        text = f"{counted(dropped.count, 'record')} before this point are missing from the journal: {dropped.what}."
        yield Moment(time_s, run.operation_at(time_s), "dropped", text)
    yield from _decisions(run)


def _failure(run: Run, failure: FailureRecord) -> str:
    blamed = failure.blamed_rank
    whom = f"rank {blamed}{_on(run, blamed)} is blamed" if blamed is not None else "nobody could be blamed"
    return f"{failure.operation} failed on rank {failure.rank}: {failure.what}; {whom}."


def _on(run: Run, rank: int) -> str:
    host = run.host(rank)
    return f" on {host}" if not host.endswith(f"rank {rank}") else ""


def _decisions(run: Run) -> Iterator[Moment]:
    seen: dict[str, FindingRecord] = {}
    seen_under: dict[str, str] = {}
    held: list[DecisionRecord] = []
    trial: DecisionRecord | None = None
    on_trial, epoch_from = False, 0
    for decision in run.decisions:
        now_s = decision.t_s - run.zero_s
        found = {f.link: f for f in decision.findings}
        news = [_finding(f) for link, f in found.items() if _changed(seen.get(link), f)]
        gone = [_gone(link, seen_under[link], decision.plan_before) for link in seen if link not in found]
        seen = found
        seen_under |= dict.fromkeys(found, decision.plan_before)
        quiet = decision.action == "hold" and not news and not gone and not decision.reroutes
        # Epochs of small operations or of another collective alone: their figures do not compare with the others'.
        aside = decision.action == "hold" and not run.has_main(epoch_from, decision.from_operation)
        epoch_from = decision.from_operation
        if held and (not quiet or (not aside and _gist(decision) != _gist(held[-1]))):
            yield _hold(run, held)
            held = []
        if news or gone:
            yield Moment(now_s, run.operation_at(now_s), "finding", " ".join([*news, *gone]))
        if decision.reroutes:
            yield Moment(now_s, decision.from_operation, "reroute", reroute_words(decision))
        if decision.action == "hold":
            if not on_trial and not aside:  # what a trial's epochs measured is in the verdict on it
                held.append(decision)
        else:
            on_trial = decision.action == "try"
            yield Moment(now_s, decision.from_operation, decision.action, decision_words(decision, trial))
            trial = decision if on_trial else None
    if held:
        yield _hold(run, held)


def _gist(hold: DecisionRecord) -> tuple[str, str]:
    """Holds alike in this are told as one: the figures in a reason differ from epoch to epoch."""
    return hold.plan_after, _NUMBER.sub("#", hold.reason)


def _changed(before: FindingRecord | None, now: FindingRecord) -> bool:
    """Whether a finding is news: new, of another class, or a capacity at least 15 % different."""
    if before is None or before.pattern != now.pattern:
        return True
    return abs(now.capacity_Bps - before.capacity_Bps) > 0.15 * before.capacity_Bps


def _finding(finding: FindingRecord) -> str:
    left = finding.capacity_Bps / finding.baseline_Bps if finding.baseline_Bps > 0 else 0.0
    return (
        f"The {finding.link} gives {format_rate(finding.capacity_Bps)}, {percent(left)} of its usual "
        f"{format_rate(finding.baseline_Bps)} ({finding.pattern}, seen in {counted(finding.samples, 'flow sample')})."
    )


def _gone(link: str, under: str, now: str) -> str:
    """A finding that is not there any more: that need not mean that the link is free."""
    text = f"The {link} is not seen congested any more"
    return f"{text}; the plan is now {now}, which may use it less than {under} did." if now != under else f"{text}."


def _hold(run: Run, held: list[DecisionRecord]) -> Moment:
    first, last = held[0], held[-1]
    sentence = f"Held {first.plan_after or 'the plan'} for {counted(len(held), 'epoch')}: {_end(last.reason)}"
    measured = [d.measured_s for d in held if d.measured_s is not None]
    if measured:
        mean_s = sum(measured) / len(measured)
        sentence += f" {format_time(mean_s)} per operation{_of_limit(mean_s, last.limit_s)}."
    return Moment(first.t_s - run.zero_s, first.from_operation, "hold", sentence)


def _of_limit(measured_s: float, limit_s: float | None) -> str:
    if limit_s is None or measured_s <= 0:
        return ""
    return f", {percent(limit_s / measured_s)} of the limit (estimate) of {format_time(limit_s)}"


def _faster(now_s: float, before_s: float) -> str:
    """How much less or more time; relative to the time before."""
    change = 1 - now_s / before_s
    return f"{percent(abs(change))} {'less' if change >= 0 else 'more'}"


def replaced(d: DecisionRecord, trial: DecisionRecord | None) -> str:
    """The plan that a decision puts another in the place of.

    `plan_before` is that of the epoch that ends: for a keep or restore, the plan on trial itself. What it replaces is
    what was in force before `trial`, the last trial before it.
    """
    if d.action in ("keep", "restore") and trial is not None and trial.plan_after == d.plan_after:
        return trial.plan_before
    return d.plan_before


def last_trials(run: Run) -> Iterator[tuple[DecisionRecord, DecisionRecord | None]]:
    """Each decision with the trial that was on when it was made."""
    trial: DecisionRecord | None = None
    for decision in run.decisions:
        yield decision, trial
        if decision.action != "hold":
            trial = decision if decision.action == "try" else None


def reroute_words(d: DecisionRecord) -> str:
    """Which flows got a new connection."""
    verb = "gets a new connection, which" if len(d.reroutes) == 1 else "get new connections, which"
    flows = "The flow" if len(d.reroutes) == 1 else "The flows"
    return f"{flows} {', '.join(d.reroutes)} {verb} the network may put on another path."


def decision_words(d: DecisionRecord, trial: DecisionRecord | None = None) -> str:
    """A try, keep, revert or restore in sentences; `trial` is the one that it judges."""
    if d.action == "try":
        return _trial(d)
    before = replaced(d, trial)
    if d.action == "keep":
        instead = f" instead of {before}" if before not in ("", d.plan_after) else ""
        return f"Kept {d.plan_after}{instead}: {_end(d.reason)} {_measured(d)}".strip()
    if d.action == "revert":
        text = f"Reverted from {d.plan_before} to {d.plan_after} from operation {d.from_operation}: {_end(d.reason)}"
        return f"{text} {_measured(d)}".strip()
    came = f" (from {before})" if before not in ("", d.plan_after) else ""
    return f"Back to the idle plan {d.plan_after}{came}: {_end(d.reason)} {_measured(d)}".strip()


def _measured(d: DecisionRecord) -> str:
    if d.measured_s is None:
        return ""
    text = f"Measured {format_time(d.measured_s)} per operation"
    against = (
        [f"{_faster(d.measured_s, d.reference_s)} than the {format_time(d.reference_s)} before"]
        if d.reference_s
        else []
    )
    against += [f"{_faster(d.measured_s, d.predicted_s)} than predicted"] if d.predicted_s else []
    text += f", {' and '.join(against)}" if against else ""
    return text + _of_limit(d.measured_s, d.limit_s) + "."


def _trial(d: DecisionRecord) -> str:
    text = f"Tries {d.plan_after} instead of {d.plan_before} from operation {d.from_operation}: {_end(d.reason)}"
    if d.predicted_s is not None:
        text += f" Predicted {format_time(d.predicted_s)} per operation"
        if d.reference_s:
            text += f", {_faster(d.predicted_s, d.reference_s)} than the {format_time(d.reference_s)} measured now"
        text += _of_limit(d.predicted_s, d.limit_s)
        chosen = next((o for o in d.options if o.plan == d.plan_after and o.bottleneck), None)
        text += f"; it would then be held up by the {chosen.bottleneck}." if chosen is not None else "."
    others = sorted((o for o in d.options if o.plan != d.plan_after), key=lambda o: o.predicted_s)
    if others:
        told = "; ".join(_option(o) for o in others[:OPTIONS_TOLD])
        more = len(others) - OPTIONS_TOLD
        text += f" Also considered: {told}{f'; and {more} more' if more > 0 else ''}."
    return text


def _option(option: OptionRecord) -> str:
    notes = ([f"held up by the {option.bottleneck}"] if option.bottleneck else []) + (["tabu"] if option.tabu else [])
    why = f" ({', '.join(notes)})" if notes else ""
    return f"{option.plan} {format_time(option.predicted_s)}{why}"


def _closing(run: Run, figures: Summary) -> list[str]:
    if run.congested():
        lasted = f"{figures.congested_s:.1f} s of {figures.total_s:.1f} s"
        source = "the scenario's events say" if figures.known else "the detector found"
        opening = f"Congested for {lasted} ({percent(figures.congested_s / figures.total_s)}), as {source}"
    else:
        opening = f"No congestion was found in {figures.total_s:.1f} s"
    lines = [f"{opening}; {counted(figures.switches, 'change')} of plan."]
    if run.events and run.decisions:
        false = false_findings(run)
        named = ", ".join(f"{f.name} at {f.begin_s:.1f} s" for f in false)
        lines.append(f"False findings outside of events: {len(false)}{f' ({named})' if named else ''}.")
    if figures.before_Bps is not None:
        when = " before congestion" if run.congested() else ""
        lines.append(f"algbw{when}: {rate_MB(figures.before_Bps)} (median).")
    if figures.old_plan_Bps is not None:
        count = counted(figures.old_plan_operations, "operation")
        text = f"Under congestion: {rate_MB(figures.old_plan_Bps)} with the idle plan ({count})"
        if figures.new_plan_Bps is not None and figures.gain is not None:
            gain = f"({figures.new_plan_operations}): {figures.gain * 100:+.0f} %"
            text += f", {rate_MB(figures.new_plan_Bps)} with the chosen one {gain}"
        lines.append(text + ".")
    elif figures.new_plan_Bps is not None:
        count = counted(figures.new_plan_operations, "operation")
        lines.append(f"Under congestion: {rate_MB(figures.new_plan_Bps)} with the chosen plan ({count}).")
    if figures.after_Bps is not None:
        lines.append(f"After it: {rate_MB(figures.after_Bps)}.")
    if figures.limit_share is not None:
        under = figures.old_plan_Bps is not None or figures.new_plan_Bps is not None
        when = "under congestion it" if under else "it"
        lines.append(f"Distance to the limit (estimate): {when} reached {percent(figures.limit_share)}. {LIMIT_NOTE}")
    if run.failures:
        lines.append(f"{counted(len(run.failures), 'failure')} recorded.")
    return [*lines, *map(interleaving, run.interleaved)]
