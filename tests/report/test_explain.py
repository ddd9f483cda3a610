"""Sentences: they say what was seen, blamed, tried, predicted, measured, kept or reverted, and how far the limit is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.cli.explain import explain
from headway.decide.journal import (
    DecisionRecord,
    DroppedRecord,
    EventRecord,
    FailureRecord,
    OperationRecord,
    Record,
    to_line,
)
from headway.errors import UsageError
from headway.report.explain import Story, reroute_words, tell
from headway.report.runs import runs_of

Write = Callable[[str, list[Record]], Path]


def story(records: list[Record], first: int | None = None, last: int | None = None) -> Story:
    (run,) = runs_of([("run", records)])
    return tell(run, first=first, last=last)


def test_the_story_of_the_made_up_run(records: list[Record]) -> None:
    told = story(records)
    kinds = [m.kind for m in told.timeline]
    expected = "hold event finding try revert try keep hold event finding try restore hold"
    assert kinds == expected.split()
    by_kind = {m.kind: m.text for m in reversed(told.timeline)}
    assert by_kind["finding"].startswith(
        "The downlink of host 3 gives 97.6 Mbit/s, 51 % of its usual 190 Mbit/s (steady"
    )
    trial = by_kind["try"]
    assert "Tries direct with shares instead of ring from operation 25" in trial
    assert re.search(r"Predicted 1\.36 s per operation, 4\d % less than the 2\.\d\d s measured now, 99 % of the", trial)
    assert "it would then be held up by the downlink of host 3" in trial
    assert "Also considered: chains over 7, host 3 last 1.37 s (held up by the uplink of host 0)" in trial
    assert re.search(r"Measured 2\.\d\d s per operation, \d % more than the", by_kind["revert"])
    assert re.search(
        r"Kept chains over 7, host 3 last instead of ring: .* 3 % more than predicted, 9\d % of the limit \(estimate\)",
        by_kind["keep"],
    )
    assert "Held ring for 4 epochs" in by_kind["hold"]
    assert told.timeline[-2].text.startswith("Back to the idle plan ring (from chains over 7, host 3 last): ")
    assert not any(re.search(r"\.\.|\?\.|None|nan|  ", m.text) for m in told.timeline)
    (verdict,) = told.verdict
    assert re.search(
        r"detected after 1\d\.\d s\. 1 link named while it lasted: 1 right "
        r"\(downlink of host 3; first after 1\d\.\d s\), 0 wrong\. "
        r"The better plan was in force after \d\d\.\d s \(15 operations\); "
        r"its trial was based on downlink of host 3 at 51 % \(right\)\. Back on the idle plan",
        verdict,
    )
    closing = " ".join(told.closing)
    assert "4 changes of plan" in closing
    assert re.search(
        r"6\.\d+ MB/s with the idle plan \(10 operations\), 11\.\d MB/s with the chosen one \(25\): \+7\d %", closing
    )
    assert re.search(
        r"limit \(estimate\): under congestion it reached 9\d %\. The limit counts a neighbour at", closing
    )
    assert "False findings outside of events: 0." in closing


def replaying(records: list[Record], **changes: DecisionRecord) -> list[Record]:
    """The records with the first decision of an action changed."""
    left = dict(changes)
    return [left.pop(r.action, r) if isinstance(r, DecisionRecord) else r for r in records]


def test_right_and_wrong_links_are_told_apart(records: list[Record]) -> None:
    trial = next(r for r in records if isinstance(r, DecisionRecord) and r.action == "try")
    (found,) = trial.findings
    other = found.model_copy(update={"link": "uplink of host 3", "capacity_Bps": found.baseline_Bps / 4})
    changed: list[Record] = [
        r.model_copy(update={"findings": [other, found]}) if isinstance(r, DecisionRecord) and r.findings else r
        for r in records
    ]
    (verdict,) = story(changed).verdict
    assert "2 links named while it lasted: 1 right (downlink of host 3; first after" in verdict
    assert "1 wrong (uplink of host 3)" in verdict
    assert "based on uplink of host 3 at 25 % (wrong) and downlink of host 3 at 51 % (right)" in verdict
    changed = [
        r.model_copy(update={"findings": [other]}) if isinstance(r, DecisionRecord) and r.findings else r
        for r in records
    ]
    (verdict,) = story(changed).verdict
    assert re.search(r"seen after 1\d\.\d s, but the right link was not named; wrong: uplink of host 3\.", verdict)


def test_findings_outside_of_events_are_counted(records: list[Record]) -> None:
    trial = next(r for r in records if isinstance(r, DecisionRecord) and r.findings)
    hold = next(r for r in records if isinstance(r, DecisionRecord) and r.action == "hold")
    told = story(replaying(records, hold=hold.model_copy(update={"findings": trial.findings})))
    (line,) = [line for line in told.closing if line.startswith("False")]
    assert re.fullmatch(r"False findings outside of events: 1 \(downlink of host 3 at \d\.\d s\)\.", line)
    assert told.summary is not None
    assert told.summary.false_findings == 1


def test_a_finding_that_is_gone_is_not_said_to_be_free(records: list[Record]) -> None:
    gone = next(m.text for m in story(records).timeline if "any more" in m.text)
    assert gone == "The downlink of host 3 is not seen congested any more."
    doubt = next(r for r in records if isinstance(r, DecisionRecord) and r.action == "keep")
    told = story(replaying(records, keep=doubt.model_copy(update={"findings": [], "plan_before": "chain"})))
    assert any(
        m.text == "The downlink of host 3 is not seen congested any more; the plan is now chain, which may use it less "
        "than ring did."
        for m in told.timeline
    )


def test_new_connections_are_told(records: list[Record]) -> None:
    hold = next(r for r in records if isinstance(r, DecisionRecord) and r.action == "hold")
    told = story(replaying(records, hold=hold.model_copy(update={"reroutes": ["rank 4 to rank 3"]})))
    (moment,) = [m for m in told.timeline if m.kind == "reroute"]
    assert moment.text.startswith("The flow rank 4 to rank 3 gets a new connection")
    both = hold.model_copy(update={"reroutes": ["rank 4 to rank 3", "rank 1 to rank 3"]})
    assert reroute_words(both).startswith("The flows rank 4 to rank 3, rank 1 to rank 3 get new connections")


def test_epochs_of_small_operations_alone_are_left_out() -> None:
    def op(number: int, size_bytes: int, plan: str) -> OperationRecord:
        return OperationRecord(
            t_s=float(number), rank=0, operation=number, collective="all_reduce", size_bytes=size_bytes, plan=plan,
            duration_s=0.5,
        )  # fmt: skip

    def hold(epoch: int, t_s: float, plan: str, start: int, measured_s: float) -> DecisionRecord:
        return DecisionRecord(
            t_s=t_s, epoch=epoch, action="hold", reason="no congestion", from_operation=start, plan_before=plan,
            plan_after=plan, measured_s=measured_s,
        )  # fmt: skip

    told = story(
        [
            op(1, 1 << 20, "ring"), hold(0, 1.1, "ring", 2, 0.5), op(2, 1000, "direct"), hold(1, 2.1, "direct", 3, 0.1),
            op(3, 1 << 20, "ring"), hold(2, 3.1, "ring", 4, 0.5),
        ]
    )  # fmt: skip
    assert [m.text for m in told.timeline] == ["Held ring for 2 epochs: no congestion. 500.0 ms per operation."]


def test_a_range_of_operations(records: list[Record]) -> None:
    told = story(records, 25, 40)
    assert [m.kind for m in told.timeline] == ["finding", "try", "revert", "try", "keep"]
    assert story(records, last=4).timeline == []
    assert story(records, first=1000).timeline == []
    assert told.closing == story(records).closing, "the summary is of the whole run"


def test_failures_and_gaps_are_told(records: list[Record]) -> None:
    last_s = records[-1].t_s
    known = FailureRecord(t_s=last_s + 1, rank=0, blamed_rank=3, operation="all_reduce #90", what="connection reset")
    unknown = FailureRecord(t_s=last_s + 2, rank=1, operation="all_reduce #91", what="timeout")
    gap = DroppedRecord(t_s=last_s + 3, count=12, what="disk full")
    texts = [m.text for m in story([*records, known, unknown, gap]).timeline[-3:]]
    assert texts == [
        "all_reduce #90 failed on rank 0: connection reset; rank 3 on host 3 is blamed.",
        "all_reduce #91 failed on rank 1: timeout; nobody could be blamed.",
        "12 records before this point are missing from the journal: disk full.",
    ]


def test_a_calm_run_is_told_in_few_words() -> None:
    ops: list[Record] = [
        OperationRecord(
            t_s=float(n), rank=0, operation=n, collective="all_reduce", size_bytes=1 << 20, plan="ring", duration_s=0.5
        )
        for n in range(1, 9)
    ]
    told = story(ops)
    assert told.timeline == []
    assert told.verdict == []
    assert told.closing == [
        "No congestion was found in 7.5 s; 0 changes of plan.",
        "algbw: 2.1 MB/s (median).",
    ]
    assert told.setting[0] == "Group default: the journal does not have its start."


def test_a_run_without_decisions_is_not_blamed_for_detecting_nothing(untuned: list[Record]) -> None:
    (verdict,) = story(untuned).verdict
    assert verdict.endswith(": nobody looked.")


def test_the_command_prints_it(records: list[Record], write_journal: Write, capsys: pytest.CaptureFixture[str]) -> None:
    events: list[Record] = [r for r in records if isinstance(r, EventRecord)]
    rest: list[Record] = [r for r in records if not isinstance(r, EventRecord)]
    job, lab = write_journal("job.jsonl", rest), write_journal("lab.jsonl", events)
    explain([job, lab])
    text = " ".join(capsys.readouterr().out.split())
    assert "1 right (downlink of host 3;" in text
    assert "Kept chains over 7, host 3 last" in text
    explain([job])
    assert "1 right" not in capsys.readouterr().out


def test_the_command_prints_json(
    records: list[Record], write_journal: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    explain([write_journal("job.jsonl", records)], first=30, last=50, as_json=True)
    document = json.loads(capsys.readouterr().out)
    (run,) = document["runs"]
    assert [m["kind"] for m in run["timeline"]] == ["revert", "try", "keep", "hold"]
    assert run["summary"]["switches"] == 4
    assert run["reactions"][0]["blame_right"] is True
    assert document["cut_off"] == []


def test_an_unfinished_journal_is_told_and_said_to_be(
    records: list[Record], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.jsonl"
    path.write_text("".join(to_line(r) + "\n" for r in records[:60]) + to_line(records[60])[:40])
    explain([path])
    assert "the last line is unfinished and was left out" in " ".join(capsys.readouterr().out.split())


def test_bad_input_is_one_line(write_journal: Write, records: list[Record], tmp_path: Path) -> None:
    lab = write_journal("lab.jsonl", [r for r in records if isinstance(r, EventRecord)])
    with pytest.raises(UsageError, match="no run"):
        explain([lab])
    with pytest.raises(UsageError, match="cannot read the journal"):
        explain([tmp_path / "missing.jsonl"])
    with pytest.raises(UsageError, match="comes after"):
        explain([lab], first=5, last=4)
