"""The figures of a run that people ask for: algbw before, under and after congestion, reaction, blame. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from headway.decide.journal import DecisionRecord, FindingRecord, OperationRecord
from headway.report.runs import Run, Span, merged

_LINK = re.compile(r"(rack )?(uplink|downlink) of (.+)", re.IGNORECASE)
_PATH = re.compile(r"path (.+?) to (.+)", re.IGNORECASE)
_IN_WORDS = re.compile(r"\b(up- and downlink|uplink|downlink) of ((?:host|rack) ?\d+|[\w.-]*\d)", re.IGNORECASE)


def algbw_Bps(op: OperationRecord) -> float:
    """Bytes of the vector per second of the operation (nccl-tests' algbw), bytes per second."""
    return op.size_bytes / op.duration_s


def link_key(link: str) -> tuple[str, str, str]:
    """What a link's name means, so that "downlink of host 3" and "downlink of h3" are the same link.

    Returns:
        (direction, place, second place of a path): places are numbers where the name ends in one, else the name.
    """
    path = _PATH.fullmatch(link.strip())
    if path:
        return ("path", _place(path.group(1)), _place(path.group(2)))
    match = _LINK.fullmatch(link.strip())
    if match:
        return (match.group(2).lower(), _place(match.group(3)), "")
    return (link.strip().lower(), "", "")


def _place(name: str) -> str:
    number = re.search(r"(\d+)$", name.strip())
    kind = "rack " if "rack" in name.lower() else ""
    return kind + (str(int(number.group(1))) if number else name.strip().lower())


def event_links(event: Span) -> set[tuple[str, str, str]]:
    """The links that an event takes capacity from: as recorded, else as its words say."""
    if event.links:
        return {link_key(link) for link in event.links}
    links: set[tuple[str, str, str]] = set()
    for match in _IN_WORDS.finditer(event.what):
        both = match.group(1).lower() == "up- and downlink"
        links |= {
            (word, _place(match.group(2)), "")
            for word in (("uplink", "downlink") if both else (match.group(1).lower(),))
        }
    return links


@dataclass(frozen=True, slots=True)
class Ground:
    """A link that a trial was based on, and how much of its usual capacity it gave then; None where unknown."""

    link: str
    share: float | None


@dataclass(frozen=True, slots=True)
class Reaction:
    """How a run answered one event or one finding. Times are seconds since the run's start, None: never.

    Attributes:
        span: what happened.
        detected_s: when the first decision saw something wrong; the first that names the event's link, if any does.
        blamed: the links it named then.
        blame_right: whether one of them is the event's; None where the truth is unknown, or nothing was found.
        named_right: the event's links that were named while it lasted; empty where the truth is unknown.
        named_wrong: other links that were named while it lasted; empty where the truth is unknown.
        named_right_s: when one of `named_right` was named first.
        better_s: when the plan that was kept took effect.
        better_after_operations: main operations that began between the event and that moment.
        better_grounds: what the trial of that plan was based on.
        away: whether a plan other than the idle one was in force at the end.
        back_s: when the idle plan was in force again after the end, None where it never left or never came back.
    """

    span: Span
    detected_s: float | None
    blamed: tuple[str, ...]
    blame_right: bool | None
    named_right: tuple[str, ...]
    named_wrong: tuple[str, ...]
    named_right_s: float | None
    better_s: float | None
    better_after_operations: int | None
    better_grounds: tuple[Ground, ...]
    away: bool
    back_s: float | None

    @property
    def detection_s(self) -> float | None:
        """Seconds from the begin to the first finding."""
        return None if self.detected_s is None else self.detected_s - self.span.begin_s

    @property
    def reaction_s(self) -> float | None:
        """Seconds from the begin to the better plan."""
        return None if self.better_s is None else self.better_s - self.span.begin_s

    @property
    def recovery_s(self) -> float | None:
        """Seconds from the end to the idle plan."""
        return None if self.back_s is None else self.back_s - self.span.end_s


def reactions(run: Run) -> list[Reaction]:
    """One reaction per event, or per finding where no event is known, in order."""
    return [_reaction(run, span) for span in run.congested()]


def _reaction(run: Run, span: Span) -> Reaction:
    begin_s, end_s = span.begin_s, span.end_s
    during = [d for d in run.decisions if begin_s <= d.t_s - run.zero_s <= end_s]
    right = event_links(span)
    seen = [d for d in during if d.findings]
    # A finding from before the event must not count as its detection, unless it names the event's own link.
    first = next((d for d in seen if any(link_key(f.link) in right for f in d.findings)), seen[0] if seen else None)
    blamed = tuple(f.link for f in first.findings) if first is not None else ()
    judged = span.known and bool(right)
    named: dict[str, float] = {}
    for decision in seen if judged else ():
        for finding in decision.findings:
            named.setdefault(finding.link, decision.t_s - run.zero_s)
    named_right = tuple(link for link in named if link_key(link) in right)
    better = _first_kept(during, run.decisions)
    between = None
    if better is not None:
        began = [o.operation for o in run.main_operations() if run.began_s(o) >= begin_s]
        between = sum(1 for number in began if number < better.from_operation)
    away = _away(run, end_s)
    return Reaction(
        span=span,
        detected_s=first.t_s - run.zero_s if first is not None else None,
        blamed=blamed,
        blame_right=any(link_key(link) in right for link in blamed) if judged and first is not None else None,
        named_right=named_right,
        named_wrong=tuple(link for link in named if link not in named_right),
        named_right_s=min((named[link] for link in named_right), default=None),
        better_s=run.in_force_s(better) if better is not None else None,
        better_after_operations=between,
        better_grounds=tuple(_ground(f) for f in better.findings) if better is not None else (),
        away=away,
        back_s=_back(run, end_s) if away else None,
    )


def _ground(finding: FindingRecord) -> Ground:
    return Ground(finding.link, finding.capacity_Bps / finding.baseline_Bps if finding.baseline_Bps > 0 else None)


def _first_kept(during: Sequence[DecisionRecord], decisions: Sequence[DecisionRecord]) -> DecisionRecord | None:
    """The first trial that was kept later."""
    for trial in during:
        if trial.action != "try":
            continue
        verdicts = (d for d in decisions if d.epoch > trial.epoch and d.action in ("keep", "revert", "restore", "try"))
        verdict = next(verdicts, None)
        if verdict is not None and verdict.action == "keep":
            return trial
    return None


def _away(run: Run, end_s: float) -> bool:
    settled = [d for d in run.decisions if d.action in ("keep", "revert", "restore") and d.t_s - run.zero_s <= end_s]
    return bool(settled) and settled[-1].plan_after not in idle_plans(run)


def _back(run: Run, end_s: float) -> float | None:
    """When the idle plan took over for good after `end_s`: the begin of the trial that a restore confirms."""
    restore = next((d for d in run.decisions if d.action == "restore" and d.t_s - run.zero_s > end_s), None)
    if restore is None:
        return None
    trials = [d for d in run.decisions if d.action == "try" and d.epoch < restore.epoch]
    confirmed = trials[-1] if trials and trials[-1].plan_after == restore.plan_after else restore
    return max(run.in_force_s(confirmed), end_s)


def false_findings(run: Run) -> list[Span]:
    """Findings that began outside of every event; empty where no event is known: the truth is not.

    A decision speaks of the epoch that it ends, so a finding counts as an event's if that epoch saw it.
    """
    if not run.events:
        return []
    made = sorted(d.t_s - run.zero_s for d in run.decisions)

    def outside(found: Span) -> bool:
        epoch_began_s = max((t for t in made if t < found.begin_s), default=0.0)
        return not any(e.begin_s <= found.begin_s and epoch_began_s <= e.end_s for e in run.events)

    return [found for found in run.found() if outside(found)]


def idle_plans(run: Run) -> set[str]:
    """The plans that main operations had before anything was tried: one for each size.

    Plans of other collectives and of small operations do not count: one of them may be chosen for the main ones.
    """
    trial = next((d.from_operation for d in run.decisions if d.action == "try"), None)
    plans = {o.plan for o in run.main_operations() if trial is None or o.operation < trial}
    return plans | ({run.first_plan} if run.first_plan else set())


def switches(run: Run) -> int:
    """How often the plan changed, trials and returns included."""
    return sum(1 for d in run.decisions if d.plan_before != d.plan_after and d.action != "hold")


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in figures. Rates are algbw in bytes per second, medians over operations; None where there are none.

    Attributes:
        before_Bps: before the first congestion.
        old_plan_Bps: under congestion, with the idle plan.
        new_plan_Bps: under congestion, with another plan than the idle one; trials that were not kept are left out.
        after_Bps: after the last congestion.
        limit_share: median of limit over duration of the operations behind `new_plan_Bps` (else `old_plan_Bps`,
            else `before_Bps`). The limit is an estimate: it counts a neighbour at what it sends or at what the
            detector last measured, and what a neighbour's packets lose is more room, so it may exceed 1.
        congested_s: time under congestion.
        total_s: length of the run.
        switches: changes of plan.
        known: whether congestion comes from the lab's events rather than from findings.
        false_findings: findings that began outside of every event; 0 where no event is known.
        old_plan_operations, new_plan_operations: how many operations `old_plan_Bps` and `new_plan_Bps` rest on.
    """

    before_Bps: float | None
    old_plan_Bps: float | None
    new_plan_Bps: float | None
    after_Bps: float | None
    limit_share: float | None
    congested_s: float
    total_s: float
    switches: int
    known: bool
    false_findings: int
    old_plan_operations: int
    new_plan_operations: int

    @property
    def gain(self) -> float | None:
        """Relative gain of the chosen plan under congestion: 0.7 is 70 % faster."""
        if not self.old_plan_Bps or not self.new_plan_Bps:
            return None
        return self.new_plan_Bps / self.old_plan_Bps - 1


def summarise(run: Run) -> Summary:
    """The figures of a run."""
    congested = merged(run.congested())
    before: list[OperationRecord] = []
    old: list[OperationRecord] = []
    new: list[OperationRecord] = []
    after: list[OperationRecord] = []
    first_s = congested[0][0] if congested else float("inf")
    last_s = congested[-1][1] if congested else float("inf")
    idle = idle_plans(run)
    tried = _on_trial(run)
    for op in run.main_operations():
        began_s, ended_s = run.began_s(op), run.ended_s(op)
        if ended_s <= first_s:
            before.append(op)
        elif began_s >= last_s:
            after.append(op)
        else:
            inside = next((c for c in congested if c[0] <= began_s and ended_s <= c[1]), None)
            if inside is None:
                continue  # it saw both: it says nothing about either
            if op.plan in idle:
                old.append(op)
            elif op.operation not in tried:
                new.append(op)
    return Summary(
        before_Bps=_median(before),
        old_plan_Bps=_median(old),
        new_plan_Bps=_median(new),
        after_Bps=_median(after),
        limit_share=_limit_share(run, new or old or before),
        congested_s=sum(end_s - begin_s for begin_s, end_s in congested),
        total_s=run.end_s,
        switches=switches(run),
        known=bool(run.events),
        false_findings=len(false_findings(run)),
        old_plan_operations=len(old),
        new_plan_operations=len(new),
    )


def _on_trial(run: Run) -> set[int]:
    """Operations that ran under a trial that was not kept: reverted, replaced by another, or open to the end."""
    trial: int | None = None
    failed: set[int] = set()
    for decision in run.decisions:
        if trial is not None and decision.action in ("try", "revert", "restore"):
            failed.update(range(trial, decision.from_operation))
        if decision.action != "hold":
            trial = decision.from_operation if decision.action == "try" else None
    if trial is not None:
        failed.update(o.operation for o in run.operations if o.operation >= trial)
    return failed


def limit_of(run: Run) -> dict[int, float]:
    """Lower bound on the duration of each main operation, seconds.

    As the operation's record has it; else from the last decision that has one and says for which size, as long as
    the findings stay the same. It grows with the size: what limits main operations is bandwidth.
    """
    limits: dict[int, float] = {}
    decisions = iter(run.decisions)
    coming = next(decisions, None)
    per_byte: float | None = None
    under: set[str] = set()
    for op in run.main_operations():
        while coming is not None and coming.t_s <= op.t_s:
            found = {finding.link for finding in coming.findings}
            if coming.limit_s is not None and coming.size_bytes:
                per_byte, under = coming.limit_s / coming.size_bytes, found
            elif found != under:
                per_byte = None
            coming = next(decisions, None)
        if op.limit_s is not None:
            limits[op.operation] = op.limit_s
        elif per_byte is not None:
            limits[op.operation] = per_byte * op.size_bytes
    return limits


def share_limits(runs: Sequence[Run]) -> list[Run]:
    """Fill in the limits that one run lacks from another: the same network under the same events has the same limit.

    Only operations that begin and end under the same events give or take a limit, and only between runs of equally
    many ranks and the same collective; it grows with the size.
    """
    known: dict[tuple[int, str, frozenset[str]], list[float]] = {}
    for run in runs:
        limits = limit_of(run)
        for op in run.main_operations():
            state = _state(run, op)
            if state is not None and op.operation in limits:
                key = (run.world_size, op.collective, state)
                known.setdefault(key, []).append(limits[op.operation] / op.size_bytes)
    return [_with_limits(run, known) if run.events and not limit_of(run) else run for run in runs]


def _with_limits(run: Run, known: dict[tuple[int, str, frozenset[str]], list[float]]) -> Run:
    operations: list[OperationRecord] = []
    for op in run.operations:
        state = _state(run, op)
        per_byte = known.get((run.world_size, op.collective, state)) if state is not None else None
        update = {"limit_s": median(per_byte) * op.size_bytes} if per_byte else {}
        operations.append(op.model_copy(update=update))
    return replace(run, operations=tuple(operations))


def _state(run: Run, op: OperationRecord) -> frozenset[str] | None:
    """The events in force during an operation; None where that changed."""
    begin, end = (
        frozenset(e.what for e in run.events if e.begin_s <= time_s < e.end_s)
        for time_s in (run.began_s(op), run.ended_s(op))
    )
    return begin if begin == end else None


def _limit_share(run: Run, operations: Iterable[OperationRecord]) -> float | None:
    limits = limit_of(run)
    shares = [limits[o.operation] / o.duration_s for o in operations if o.operation in limits]
    return median(shares) if shares else None


def _median(operations: Sequence[OperationRecord]) -> float | None:
    return median(algbw_Bps(o) for o in operations) if operations else None
