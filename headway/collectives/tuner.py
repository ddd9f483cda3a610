"""Decides, epoch by epoch, which plan the large operations of a group run. Pure: same epochs in, same verdicts out.

    WATCH --congestion, and a plan predicted better--> TRIAL --better--> WATCH with that plan (keep)
      ^                                                  | not better
      +--------------------------------------------------+ (revert; the plan is tabu for a while that grows)

    WATCH with a tuned plan --no congestion seen any more, or long enough ago--> TRIAL of the idle plan
      --not worse, and nothing slow under it--> idle plan (restore)
      --worse--> tuned plan again (revert; the next look comes later)

What keeps it calm:
- Without a finding nothing is ever tried. A finding acts when it is steady, or when it kept coming back.
- A plan is tried when the model says it is at least 5 % better than the plan in force, and kept when it measured so.
- A wrong finding costs at most `rounds` trials of a few operations each, then a pause that doubles.
- The way back waits `BackOff` seconds, doubled each time that congestion was found again soon after, or that the
  idle plan turned out worse. Load that comes and goes leaves the tuned plan in force: that costs less than changing,
  and the number of changes per hour stays bounded because every round trip includes that wait.
- Two tuners on the same links wait differently long (stretched by the group's name).
"""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from headway.cluster.model import Cluster, LinkKind
from headway.collectives.agreement import LARGE_BYTES
from headway.collectives.plan import Collective, Plan
from headway.collectives.reroutes import Reroutes
from headway.collectives.tuner_measures import (
    bucket_time,
    doubtful_pairs,
    epoch_weight,
    hypotheses,
    lead_operations,
    link_key,
    main_collective,
    times_by_key,
    typical_size,
    typical_time,
    worth_tuning,
)
from headway.collectives.tuner_memory import TunerMemory
from headway.collectives.tuner_settings import TunerSettings
from headway.collectives.verdict import EpochMeasures, OperationTime, Option, Planner, Verdict, link_name
from headway.decide.patience import Patience
from headway.decide.tabu import BackOff, Tabu
from headway.decide.trial import Outcome, Trial, TrialRules
from headway.observe.detector import Detector
from headway.observe.findings import Finding
from headway.observe.thresholds import Thresholds


@dataclass
class _Running:
    """A trial under way."""

    trial: Trial
    collective: Collective
    challenger: Plan
    back: bool
    reference_s: float
    option: Option | None


class Tuner:
    """One group's tuner, on the rank that decides.

    Args:
        cluster: hosts with their nominal rates.
        planner: makes and predicts plans.
        name: the group's; two groups get different waiting times.
        settings: how eager it is.
        thresholds: the detector's.
        trust_nominal: whether the cluster's rates are the true ones.
    """

    def __init__(
        self,
        cluster: Cluster,
        planner: Planner,
        *,
        name: str,
        settings: TunerSettings | None = None,
        thresholds: Thresholds | None = None,
        trust_nominal: bool = True,
    ) -> None:
        self._cluster = cluster
        self._planner = planner
        self._settings = settings or TunerSettings()
        self._detector = Detector(cluster, thresholds, trust_nominal=trust_nominal)
        s = self._settings
        self._try_rules = TrialRules(accept_ratio=1.0 - s.gain)
        self._back_rules = TrialRules(accept_ratio=s.restore_ratio, hopeless_ratio=1.3, most=6, clear_margin=0.1)
        self._tabu = Tabu(name, base_s=s.pause_s, most_s=s.pause_most_s, calm_s=s.calm_s)
        self._restore = BackOff(name, s.restore_s, s.restore_most_s, s.calm_s)
        self._patience = Patience(s.rounds, BackOff(name, s.pause_s, s.pause_most_s, s.calm_s))
        self._tuned: dict[Collective, Plan] = {}
        self._running: _Running | None = None
        self._nothing_better: Hashable = None
        self._ask_again_s = float("-inf")
        self._memory = TunerMemory(epochs=s.memory_epochs, recur_share=s.recur_share)
        self._reroutes = Reroutes(cluster, s.reroutes)
        self._restore_from_s = float("inf")
        self._restored_s = float("-inf")

    def usual_cluster(self) -> Cluster:
        """The cluster with the rates that its links carry when they are free, as far as they are known by now."""
        return self._detector.usual_cluster()

    def plan(self, collective: Collective) -> Plan | None:
        """The tuned plan in force for `collective`, a challenger on trial included; None: the idle plan."""
        running = self._running
        if running is not None and running.collective is collective:
            return None if running.back else running.challenger
        return self._tuned.get(collective)

    def decide(self, measures: EpochMeasures) -> Verdict:
        """Take in one epoch, and say what holds from now on."""
        large = worth_tuning(measures.operations)
        total_s = sum(op.duration_s for op in measures.operations)
        large_s = sum(op.duration_s for op in large)
        if not large or large_s < self._settings.large_share * total_s:
            return self._hold(large, None, (), "small operations only: their flows say nothing about capacity")
        idle = not self._tuned and (self._running is None or self._running.back)
        findings = tuple(self._detector.update(measures.now_s, measures.summaries, idle_plan=idle))
        acting = self._memory.acting(findings, on_trial=self._running is not None)
        if not findings:
            self._reroutes.forget()
        self._tabu.prune(measures.now_s)
        if self._running is not None:
            return self._go_on(self._running, measures.now_s, large, findings)
        subject = main_collective(large)
        self._memory.add(large)
        slow_paths = [each for each in findings if each.kind is LinkKind.PATH and each.current]
        reroutes = self._reroutes.take([(each.host, each.peer) for each in slow_paths if each.peer is not None])
        if reroutes:
            named = ", ".join(self._words(finding) for finding in slow_paths)
            held = self._hold(large, subject, findings, f"{named}: new connections, which may get other paths")
            return replace(held, reroutes=reroutes)
        if acting:
            verdict = self._try_better(subject, measures.now_s, large, findings, acting)
            if verdict is not None:
                return verdict
        if self._tuned:
            return self._maybe_go_back(subject, measures.now_s, large, findings)
        held = self._hold(large, subject, findings, self._calm_reason(measures.now_s, findings, acting))
        return replace(held, reroutes=self._reroutes.take(doubtful_pairs(findings)))

    def _try_better(
        self,
        subject: Collective,
        now_s: float,
        large: Sequence[OperationTime],
        findings: tuple[Finding, ...],
        acting: Sequence[Finding],
    ) -> Verdict | None:
        recent = self._memory.recent(subject)
        causes = frozenset(link_key(finding) for finding in acting if finding.peer is None)
        if not self._patience.allows(causes, now_s) or len(recent) < self._try_rules.least:
            return None
        size_bytes = typical_size(recent)
        current = self._in_force(subject, size_bytes)
        asked = (subject, current.name, frozenset((link_key(each), round(10 * each.ratio)) for each in acting))
        if asked == self._nothing_better and now_s < self._ask_again_s:
            return None
        options = self._options(subject, size_bytes, acting, current)
        barred = frozenset(
            option.plan.name for option in options if self._tabu.barred((subject, option.plan.name), now_s)
        )
        unchanged = self._planner.predict(subject, size_bytes, acting, current)
        expected_s = unchanged.predicted_s
        better = [
            option
            for option in options
            if option.plan.name not in barred
            and option.plan.trees != current.trees
            and option.predicted_s <= (1 - self._settings.gain) * expected_s
        ]
        limit_s = self._planner.limit_s(subject, size_bytes, acting)
        if not better:
            self._nothing_better, self._ask_again_s = asked, now_s + self._settings.ask_again_s
            return None
        best = better[0]
        reference = times_by_key(recent)
        reference_s = typical_time(recent)
        self._running = _Running(
            Trial(reference, self._try_rules), subject, best.plan, back=False, reference_s=reference_s, option=best
        )
        blamed = ", ".join(self._words(finding) for finding in acting)
        return self._verdict(
            "try",
            f"{blamed}: {best.plan.name} is predicted at {best.predicted_s / expected_s:.2f} of {current.name}",
            large,
            subject,
            findings,
            plans={subject: best.plan},
            plan_before=current,
            plan_after=best.plan,
            options=(*(each for each in options if each.plan.trees != current.trees), unchanged),
            barred=barred,
            predicted_s=best.predicted_s,
            reference_s=reference_s,
            limit_s=limit_s,
        )

    def _options(self, subject: Collective, size_bytes: int, acting: Sequence[Finding], current: Plan) -> list[Option]:
        """Plans for what the findings say together, then for each way that a doubtful one could be meant."""
        ranked: list[Option] = []
        for index, hypothesis in enumerate(hypotheses(acting)):
            options = self._planner.options(subject, size_bytes, hypothesis, current)
            known = {option.plan.name for option in ranked}
            new = [option for option in options if option.plan.name not in known]
            if index:
                new = [self._planner.predict(subject, size_bytes, hypothesis, option.plan) for option in new[:1]]
            ranked += new[: self._settings.rounds]
        return ranked

    def _go_on(
        self, running: _Running, now_s: float, large: Sequence[OperationTime], findings: tuple[Finding, ...]
    ) -> Verdict:
        own = [op for op in large if op.collective is running.collective]
        running.trial.add(bucket_time(op) for op in own)
        outcome = running.trial.outcome
        subject = running.collective
        ratio = running.trial.ratio
        measured_s = None if ratio is None else ratio * running.reference_s
        size_bytes = typical_size(own) if own else LARGE_BYTES
        incumbent = self._tuned.get(subject) or self._planner.idle(subject, size_bytes)
        if outcome is Outcome.UNDECIDED:
            return self._verdict(
                "hold",
                "the trial goes on",
                large,
                subject,
                findings,
                plan_before=running.challenger,
                plan_after=running.challenger,
                measured_s=measured_s,
                reference_s=running.reference_s,
            )
        self._running = None
        self._memory.forget(subject)
        said = "not comparable" if ratio is None else f"measured at {ratio:.2f} of {incumbent.name}"
        limit_s = self._planner.limit_s(subject, size_bytes, findings)
        base = self._verdict(
            "hold",
            "",
            large,
            subject,
            findings,
            plan_before=running.challenger,
            predicted_s=running.option.predicted_s if running.option else None,
            measured_s=measured_s,
            reference_s=running.reference_s,
            limit_s=limit_s,
        )
        if outcome is Outcome.REJECTED:
            return self._reject(running, now_s, base, incumbent, said)
        self._memory.add(own)
        if running.back:
            self._tuned.pop(subject, None)
            self._restored_s = now_s
            self._restore_from_s = now_s if self._tuned else float("inf")
            self._patience.succeeded()
            reason = f"{running.challenger.name} {said}: congestion has ended"
            return replace(base, action="restore", reason=reason, plan_after=running.challenger)
        if now_s - self._restored_s < self._settings.soon_s:
            self._restore.fail(now_s)
        self._patience.succeeded()
        self._tuned[subject] = running.challenger
        least_s = self._settings.restore_operations * running.reference_s
        self._restore_from_s = now_s + max(least_s, self._restore.wait_s(now_s))
        return replace(base, action="keep", reason=f"{running.challenger.name} {said}", plan_after=running.challenger)

    def _reject(self, running: _Running, now_s: float, base: Verdict, incumbent: Plan, said: str) -> Verdict:
        subject = running.collective
        if running.back:
            self._restore.fail(now_s)
            wait_s = self._restore.wait_s(now_s)
            self._restore_from_s = now_s + wait_s
            reason = f"{running.challenger.name} {said}: not yet; next look in {wait_s:.0f} s"
        else:
            self._patience.failed(now_s)
            until_s = self._tabu.bar((subject, running.challenger.name), now_s)
            reason = f"{running.challenger.name} {said}: tabu for {until_s - now_s:.0f} s"
        return replace(
            base, action="revert", reason=reason, plans={subject: self._tuned.get(subject)}, plan_after=incumbent
        )

    def _maybe_go_back(
        self, subject: Collective, now_s: float, large: Sequence[OperationTime], findings: tuple[Finding, ...]
    ) -> Verdict:
        if subject not in self._tuned:
            present = [op.collective for op in large if op.collective in self._tuned]
            if not present:
                return self._hold(large, subject, findings, "the tuned collective did not run")
            subject = present[0]
        recent = self._memory.recent(subject)
        tuned = self._tuned[subject]
        doubt_s = (self._settings.doubt_factor - 1) * self._settings.restore_s if findings else 0.0
        if now_s < self._restore_from_s + doubt_s or len(recent) < self._back_rules.least:
            reason = f"{tuned.name} stays" + (": congestion goes on" if findings else ": too early to look again")
            return self._hold(large, subject, findings, reason)
        idle = self._planner.idle(subject, typical_size(recent))
        reference_s = typical_time(recent)
        self._running = _Running(
            Trial(times_by_key(recent), self._back_rules),
            subject,
            idle,
            back=True,
            reference_s=reference_s,
            option=None,
        )
        why = "congestion was seen long ago" if findings else "no congestion is seen any more"
        return self._verdict(
            "try",
            f"{why}: is {idle.name} good again?",
            large,
            subject,
            findings,
            plans={subject: None},
            plan_before=tuned,
            plan_after=idle,
            predicted_s=self._planner.predict(subject, typical_size(recent), (), idle).predicted_s,
            reference_s=reference_s,
        )

    def _in_force(self, collective: Collective, size_bytes: int) -> Plan:
        return self._tuned.get(collective) or self._planner.idle(collective, size_bytes)

    def _calm_reason(self, now_s: float, findings: Sequence[Finding], acting: Sequence[Finding]) -> str:
        if not findings:
            return "no congestion"
        named = ", ".join(self._words(finding) for finding in findings)
        if not acting:
            return f"{named}: not for long enough yet"
        if not self._patience.allows(frozenset(), now_s):
            return f"{named}: paused after trials that did not help"
        return f"{named}: no other plan is predicted {self._settings.gain:.0%} better"

    def _words(self, finding: Finding) -> str:
        doubt = "" if finding.certain else " (or the other end)"
        return f"{link_name(self._cluster, finding)} at {finding.ratio:.2f} of its rate{doubt}"

    def _hold(
        self,
        large: Sequence[OperationTime],
        subject: Collective | None,
        findings: tuple[Finding, ...],
        reason: str,
    ) -> Verdict:
        if subject is None:
            return self._verdict("hold", reason, large, None, findings)
        own = [op for op in large if op.collective is subject]
        plan = self._in_force(subject, typical_size(own) if own else LARGE_BYTES)
        measured_s = typical_time(own) if own else None
        return self._verdict(
            "hold", reason, large, subject, findings, plan_before=plan, plan_after=plan, measured_s=measured_s
        )

    def _verdict(
        self,
        action: str,
        reason: str,
        large: Sequence[OperationTime],
        subject: Collective | None,
        findings: tuple[Finding, ...],
        *,
        plans: Mapping[Collective, Plan | None] | None = None,
        plan_before: Plan | None = None,
        plan_after: Plan | None = None,
        options: tuple[Option, ...] = (),
        barred: frozenset[str] = frozenset(),
        predicted_s: float | None = None,
        measured_s: float | None = None,
        reference_s: float | None = None,
        limit_s: float | None = None,
    ) -> Verdict:
        operation_s = statistics.median(op.duration_s for op in large) if large else 1.0
        aim_s = self._settings.watch_s if self._running is None else self._settings.trial_s
        return Verdict(
            action="try" if action == "try" else "hold",
            reason=reason,
            collective=subject,
            plans=plans or {},
            epoch_weight=epoch_weight(operation_s, aim_s),
            lead_operations=lead_operations(operation_s, self._settings.round_trip_s),
            plan_before=plan_before,
            plan_after=plan_after,
            findings=findings,
            options=options,
            barred=barred,
            predicted_s=predicted_s,
            measured_s=measured_s,
            reference_s=reference_s,
            limit_s=limit_s,
        )
