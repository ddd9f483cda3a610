"""Journals into runs, and runs into the figures that people ask for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.decide.journal import (
    DecisionRecord,
    EventRecord,
    FindingRecord,
    OperationRecord,
    Record,
    StartRecord,
)
from headway.report.figures import (
    event_links,
    false_findings,
    limit_of,
    link_key,
    reactions,
    summarise,
    switches,
)
from headway.report.runs import Run, Span, aligned, merged, runs_of


def one(records: list[Record], label: str = "run") -> Run:
    (run,) = runs_of([(label, records)])
    return run


def op(number: int, t_s: float, *, plan: str = "ring", duration_s: float = 1.0, size: int = 1 << 20) -> OperationRecord:
    return OperationRecord(
        t_s=t_s,
        rank=0,
        operation=number,
        collective="all_reduce",
        size_bytes=size,
        plan=plan,
        duration_s=duration_s,
    )


def decision(epoch: int, t_s: float, action: str, before: str, after: str, start: int, *links: str) -> DecisionRecord:
    findings = [FindingRecord(link=k, capacity_Bps=1e6, baseline_Bps=2e6, pattern="steady", samples=9) for k in links]
    return DecisionRecord.model_validate(
        {
            "t_s": t_s,
            "epoch": epoch,
            "action": action,
            "reason": "because",
            "from_operation": start,
            "plan_before": before,
            "plan_after": after,
            "findings": findings,
        }
    )


def event(t_s: float, phase: str, name: str = "udp", *, links: tuple[str, ...] = ("downlink of host3",)) -> EventRecord:
    return EventRecord.model_validate({"t_s": t_s, "event": name, "phase": phase, "what": "load", "links": list(links)})


def test_the_made_up_run_gives_its_figures(records: list[Record]) -> None:
    run = one(records)
    figures = summarise(run)
    assert figures.known
    assert figures.before_Bps == pytest.approx(13.7e6, rel=0.04)
    assert figures.old_plan_Bps == pytest.approx(6.7e6, rel=0.04)
    assert figures.new_plan_Bps == pytest.approx(11.8e6, rel=0.04), "the failed trial is left out"
    assert figures.after_Bps == pytest.approx(13.7e6, rel=0.04)
    assert figures.gain == pytest.approx(0.76, abs=0.08)
    assert figures.limit_share == pytest.approx(11.8 / 12.5, rel=0.03)
    assert figures.switches == 4
    (reaction,) = reactions(run)
    assert reaction.blame_right is True
    assert reaction.blamed == ("downlink of host 3",)
    assert reaction.better_after_operations == 15
    assert reaction.detection_s is not None
    assert reaction.reaction_s is not None
    assert reaction.recovery_s is not None
    assert 0 < reaction.detection_s < reaction.reaction_s


def test_a_run_without_a_tuner_reacts_to_nothing(untuned: list[Record]) -> None:
    run = one(untuned)
    figures = summarise(run)
    assert figures.old_plan_Bps is not None
    assert figures.new_plan_Bps is None
    assert figures.gain is None
    (reaction,) = reactions(run)
    assert (reaction.detected_s, reaction.better_s, reaction.blame_right) == (None, None, None)


def test_without_events_the_findings_say_when(records: list[Record]) -> None:
    run = one([r for r in records if not isinstance(r, EventRecord)])
    (span,) = run.congested()
    assert not span.known
    assert span.links == ("downlink of host 3",)
    (reaction,) = reactions(run)
    assert reaction.blame_right is None, "nobody knows the truth"
    assert reaction.detection_s == 0.0
    assert not summarise(run).known


def test_events_go_to_the_runs_that_they_overlap(records: list[Record], untuned: list[Record]) -> None:
    separate = [r for r in records if isinstance(r, EventRecord)]
    rest: list[Record] = [r for r in records if not isinstance(r, EventRecord)]
    tuned, gloo = runs_of([("headway", rest), ("lab", separate), ("gloo", untuned)])
    assert (tuned.label, gloo.label) == ("headway", "gloo")
    assert tuned.events == one(records).events
    assert len(gloo.events) == 1
    assert gloo.events[0].begin_s < gloo.end_s


def test_a_second_start_begins_another_run() -> None:
    start = StartRecord(t_s=0.0, world_size=2, hosts=["a", "b"], policy="off")
    first, second = runs_of(
        [("j", [start, op(0, 1.0), start.model_copy(update={"t_s": 10.0}), op(0, 11.5), op(1, 12.5)])]
    )
    assert (first.label, second.label) == ("j", "j (2)")
    assert (len(first.operations), len(second.operations)) == (1, 2)
    assert second.zero_s == 10.0
    assert second.end_s == 2.5


def test_groups_are_runs_of_their_own() -> None:
    records: list[Record] = [op(0, 1.0), op(0, 1.0).model_copy(update={"group": "tp"})]
    assert [run.label for run in runs_of([("j", records)])] == ["j, group default", "j, group tp"]


def test_times_count_from_the_begin_of_the_first_operation_where_there_is_no_start() -> None:
    run = one([op(4, 101.0), op(5, 102.0), op(6, 103.5)])
    assert run.zero_s == 100.0
    assert run.operation_at(-0.5) is None
    assert run.operation_at(0.0) == 4
    assert run.operation_at(1.9) == 5
    assert run.operation_at(99.0) == 6


def test_runs_are_aligned_at_their_first_event(records: list[Record], untuned: list[Record]) -> None:
    late = [r.model_copy(update={"t_s": r.t_s + 7.0}) if not isinstance(r, StartRecord) else r for r in untuned]
    tuned, gloo = aligned(runs_of([("a", records), ("b", late)]))
    assert tuned.events[0].begin_s == pytest.approx(gloo.events[0].begin_s)
    before, _ = runs_of([("a", records), ("b", late)])
    first = before.main_operations()[0]
    moved_s = tuned.events[0].begin_s - before.events[0].begin_s
    assert moved_s > 6
    assert tuned.began_s(first) == pytest.approx(before.began_s(first) + moved_s)
    calm = one([op(0, 1.0)])
    assert aligned([tuned, calm]) == [tuned, calm], "a run without events has nothing to align at"


def test_events_are_clipped_and_may_stay_open() -> None:
    records: list[Record] = [
        event(90.0, "begin", "before"), event(95.0, "end", "before"),
        event(96.0, "begin", "across"), op(0, 101.0), event(102.0, "end", "across"),
        event(103.0, "begin", "open"), op(1, 105.0),
        event(200.0, "begin", "later"),
    ]  # fmt: skip
    run = one(records)
    assert [(e.name, e.begin_s, e.end_s) for e in run.events] == [("across", 0.0, 2.0), ("open", 3.0, 5.0)]


def test_small_operations_and_other_collectives_do_not_count() -> None:
    records: list[Record] = [
        op(0, 1.0),
        op(1, 2.0, size=1000),
        op(2, 3.0).model_copy(update={"collective": "broadcast", "size_bytes": 1 << 19}),
        op(3, 4.0).model_copy(update={"rank": 1}),
        op(4, 5.0),
    ]
    assert [o.operation for o in one(records).main_operations()] == [0, 4]


def test_an_operation_that_saw_both_counts_for_neither() -> None:
    records: list[Record] = [op(0, 1.0), event(1.5, "begin"), op(1, 2.0), op(2, 3.0, duration_s=0.9), event(3.0, "end")]
    figures = summarise(one([*records, op(3, 4.0, duration_s=0.5)]))
    assert figures.before_Bps == pytest.approx(2**20)
    assert figures.old_plan_Bps == pytest.approx(2**20 / 0.9)
    assert figures.after_Bps == pytest.approx(2**20 / 0.5)


def test_a_second_event_finds_the_chosen_plan_in_force() -> None:
    records: list[Record] = [
        op(0, 1.0), event(1.0, "begin"), op(1, 2.0), op(2, 3.0),
        decision(0, 3.0, "try", "ring", "chains", 3, "downlink of host 3"),
        op(3, 4.0, plan="chains", duration_s=0.5),
        decision(1, 4.0, "keep", "chains", "chains", 4, "downlink of host 3"),
        event(4.0, "end"), op(4, 5.0, plan="chains"), event(5.0, "begin"),
        op(5, 6.0, plan="chains", duration_s=0.5), event(6.0, "end"), op(6, 7.0, plan="chains"),
    ]  # fmt: skip
    run = one(records)
    figures = summarise(run)
    assert figures.old_plan_Bps == pytest.approx(2**20)
    assert figures.new_plan_Bps == pytest.approx(2**21)
    first, second = reactions(run)
    assert (first.better_after_operations, second.better_after_operations) == (2, None)


def test_a_plan_of_another_collective_or_of_small_operations_is_no_idle_plan() -> None:
    broadcast = op(0, 1.0, plan="chain").model_copy(update={"collective": "broadcast"})
    records: list[Record] = [
        broadcast, op(1, 2.0), op(2, 3.0, size=1000, plan="chain"), event(3.0, "begin"),
        op(3, 4.0), op(4, 5.0, size=1000),
        decision(0, 5.0, "try", "ring", "chain", 5, "downlink of host 3"), op(5, 5.5, plan="chain", duration_s=0.5),
        decision(1, 5.5, "keep", "chain", "chain", 6, "downlink of host 3"), op(6, 6.0, plan="chain", duration_s=0.5),
        event(6.0, "end"), decision(2, 6.0, "try", "chain", "ring", 7), op(7, 7.0),
        decision(3, 7.0, "restore", "ring", "ring", 8), op(8, 8.0),
    ]  # fmt: skip
    run = one(records)
    figures = summarise(run)
    assert (figures.old_plan_operations, figures.new_plan_operations) == (1, 2)
    assert figures.gain == pytest.approx(1.0)
    (reaction,) = reactions(run)
    assert reaction.away
    assert reaction.recovery_s == 0.0, "the summary does not contradict the restore"
    assert reaction.better_after_operations == 1, "the small one does not count"


def test_a_trial_without_a_verdict_counts_for_nothing() -> None:
    records: list[Record] = [
        op(0, 1.0), event(1.0, "begin"), op(1, 2.0),
        decision(0, 2.0, "try", "ring", "chains", 2, "downlink of host 3"), op(2, 3.0, plan="chains"),
        decision(1, 3.0, "try", "chains", "tree", 3, "downlink of host 3"), op(3, 4.0, plan="tree"),
    ]  # fmt: skip
    figures = summarise(one(records))
    assert (figures.old_plan_operations, figures.new_plan_operations) == (1, 0)


def test_a_finding_of_the_epoch_in_which_the_event_ended_is_not_false() -> None:
    records: list[Record] = [
        op(0, 1.0), event(1.0, "begin"), op(1, 2.0), decision(0, 2.0, "hold", "ring", "ring", 2), op(2, 3.0),
        event(3.0, "end"), decision(1, 3.5, "hold", "ring", "ring", 3, "downlink of host 3"), op(3, 4.0),
        decision(2, 4.5, "hold", "ring", "ring", 4, "downlink of host 3", "uplink of host 1"), op(4, 5.0),
    ]  # fmt: skip
    assert [span.name for span in false_findings(one(records))] == ["uplink of host 1"]
    calm: list[Record] = [r for r in records if not isinstance(r, EventRecord)]
    assert false_findings(one(calm)) == [], "without events nobody knows"


def test_a_wrong_blame_is_called_wrong() -> None:
    records: list[Record] = [
        op(0, 1.0),
        event(1.0, "begin", links=("uplink of host2",)),
        decision(0, 2.0, "hold", "ring", "ring", 1, "downlink of host 2"),
        op(1, 2.5),
    ]
    (reaction,) = reactions(one(records))
    assert reaction.blame_right is False
    assert reaction.detection_s == 1.0


def test_a_finding_from_before_does_not_detect_another_link() -> None:
    records: list[Record] = [
        op(0, 1.0),
        event(1.0, "begin"),
        decision(0, 1.5, "hold", "ring", "ring", 1, "uplink of host 0"),
        decision(1, 3.0, "hold", "ring", "ring", 1, "uplink of host 0", "downlink of host 3"),
        op(1, 4.0),
    ]
    (reaction,) = reactions(one(records))
    assert reaction.detection_s == 2.0
    assert reaction.blame_right is True


def test_a_failed_return_is_no_recovery() -> None:
    records: list[Record] = [
        op(0, 1.0), event(1.0, "begin"),
        decision(0, 2.0, "try", "ring", "chains", 1, "downlink of host 3"), op(1, 3.0, plan="chains"),
        decision(1, 3.0, "keep", "chains", "chains", 2, "downlink of host 3"), event(3.0, "end"),
        decision(2, 4.0, "try", "chains", "ring", 2), op(2, 5.0),
        decision(3, 5.0, "revert", "ring", "chains", 3), op(3, 6.0, plan="chains"),
        decision(4, 6.0, "try", "chains", "ring", 4), op(4, 7.0), op(5, 8.0),
        decision(5, 8.0, "restore", "ring", "ring", 6), op(6, 9.0),
    ]  # fmt: skip
    run = one(records)
    (reaction,) = reactions(run)
    assert reaction.recovery_s == 3.0, "the begin of the trial that the restore confirmed"
    assert switches(run) == 4


def test_the_limit_comes_from_the_operation_or_else_from_the_last_decision() -> None:
    own = op(5, 9.0).model_copy(update={"limit_s": 0.7})
    slow = decision(0, 1.5, "try", "ring", "chains", 1, "downlink of host 3").model_copy(
        update={"limit_s": 0.9, "size_bytes": 1 << 20}
    )
    run = one(
        [
            op(0, 1.0),
            slow,
            op(1, 3.0),
            op(2, 4.0, size=1 << 21),
            decision(1, 4.5, "hold", "chains", "chains", 3, "downlink of host 3"),
            op(3, 6.0),
            decision(2, 6.5, "hold", "chains", "chains", 4),
            op(4, 8.0),
            own,
        ]
    )
    assert limit_of(run) == {1: 0.9, 2: 1.8, 3: 0.9, 5: 0.7}, "another state of the network has another limit"


@pytest.mark.parametrize(
    ("one_name", "other"),
    [
        ("downlink of host 3", "Downlink of h3"),
        ("uplink of host 03", "uplink of host3"),
        ("uplink of rack 1", "uplink of rack1"),
        ("path host 1 to host 2", "path host1 to host2"),
        ("uplink of Alpha", "uplink of alpha"),
    ],
)
def test_names_of_one_link(one_name: str, other: str) -> None:
    assert link_key(one_name) == link_key(other)


def test_names_of_different_links() -> None:
    names = ["uplink of host 1", "downlink of host 1", "uplink of rack 1", "path host 1 to host 2", "uplink of host 2"]
    assert len({link_key(name) for name in names}) == len(names)


@pytest.mark.parametrize(
    ("what", "links"),
    [
        ("downlink of host3 loaded with UDP at 100Mbit", {"downlink of host 3"}),
        ("up- and downlink of host3 loaded with 1 TCP flow", {"uplink of host 3", "downlink of host 3"}),
        ("uplink of rack1 by spine 0 at 50%", {"uplink of rack 1"}),
        ("the weather", set()),
    ],
)
def test_links_are_found_in_words(what: str, links: set[str]) -> None:
    span = Span("e", 0.0, 1.0, what, (), known=True)
    assert event_links(span) == {link_key(link) for link in links}


def test_spans_merge() -> None:
    spans = [Span("a", 4.0, 6.0, "", (), True), Span("b", 0.0, 2.0, "", (), True), Span("c", 1.0, 3.0, "", (), True)]
    assert merged(spans) == [(0.0, 3.0), (4.0, 6.0)]
    assert merged([replace(spans[0], begin_s=3.0), *spans[1:]]) == [(0.0, 6.0)]
