"""Sentences: they say what was seen, blamed, tried, predicted, measured, kept or reverted, and how far the limit is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.cli.explain import explain
from headway.decide.journal import DroppedRecord, EventRecord, FailureRecord, OperationRecord, Record, to_line
from headway.errors import UsageError
from headway.report.explain import Story, tell
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
        r"Kept chains over 7, host 3 last: .* 3 % more than predicted, 9\d % of the limit", by_kind["keep"]
    )
    assert "Held ring for 4 epochs" in by_kind["hold"]
    assert told.timeline[-2].text.startswith("Back to the idle plan ring: ")
    assert not any(re.search(r"\.\.|\?\.|None|nan|  ", m.text) for m in told.timeline)
    (verdict,) = told.verdict
    assert re.search(r"detected after 1\d\.\d s, and the blame was right \(named: downlink of host 3\)", verdict)
    assert re.search(
        r"The better plan was in force after \d\d\.\d s \(15 operations\)\. Back on the idle plan", verdict
    )
    closing = " ".join(told.closing)
    assert "4 changes of plan" in closing
    assert re.search(
        r"6\.\d+ MB/s with the idle plan \(10 operations\), 11\.\d MB/s with the chosen one \(25\): \+7\d %", closing
    )
    assert re.search(r"under congestion it reached 9\d % of what any plan can", closing)


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
    assert "the blame was right" in text
    assert "Kept chains over 7, host 3 last" in text
    explain([job])
    assert "the blame was right" not in capsys.readouterr().out


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
