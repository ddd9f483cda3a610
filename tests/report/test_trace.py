"""The trace is what Perfetto's JSON importer asks for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.cli.trace import trace
from headway.decide.journal import FailureRecord, OperationRecord, Record
from headway.errors import UsageError
from headway.report.runs import runs_of
from headway.report.trace import PER_RUN, trace_json


def events_of(text: str, phase: str) -> list[dict[str, object]]:
    return [event for event in json.loads(text)["traceEvents"] if event["ph"] == phase]


def test_operations_decisions_events_and_counters(records: list[Record]) -> None:
    failure = FailureRecord(t_s=records[-1].t_s + 1, rank=0, operation="all_reduce #90", what="timeout")
    text = trace_json(runs_of([("run", [*records, failure])]))
    spans = events_of(text, "X")
    operations = [e for e in spans if e["cat"] == "operation"]
    assert len(operations) == sum(isinstance(r, OperationRecord) for r in records)
    assert operations[0]["name"] == "all_reduce #0"
    assert operations[0]["pid"] == 0
    (neighbour,) = [e for e in spans if e["cat"] == "event"]
    assert neighbour["args"] == {"id": "neighbour", "links": "downlink of host 3"}
    instants = events_of(text, "i")
    assert {"try: chains over 7, host 3 last", "keep: chains over 7, host 3 last", "failed: all_reduce #90"} <= {
        str(e["name"]) for e in instants
    }
    counters = {str(e["name"]) for e in events_of(text, "C")}
    assert {"algbw", "host 3 down", "host 0 up"} <= counters
    names = {e["args"]["name"] for e in json.loads(text)["traceEvents"] if e["name"] == "process_name"}
    assert names == {"rank 0 on host 0", "network", "decisions"}
    for event in json.loads(text)["traceEvents"]:
        assert event["ph"] == "M" or event["ts"] >= 0
        assert event.get("dur", 1) > 0


def test_operations_that_overlap_get_lanes() -> None:
    def op(number: int, t_s: float) -> OperationRecord:
        return OperationRecord(
            t_s=t_s, rank=1, operation=number, collective="all_reduce", size_bytes=8, plan="ring", duration_s=2.0
        )

    text = trace_json(runs_of([("run", [op(0, 2.0), op(1, 3.0), op(2, 4.0), op(3, 5.5)])]))
    assert [e["tid"] for e in events_of(text, "X")] == [0, 1, 0, 1]
    assert {e["pid"] for e in events_of(text, "X")} == {1}


def test_two_runs_share_a_clock_and_no_process(records: list[Record], untuned: list[Record]) -> None:
    text = trace_json(runs_of([("headway", records), ("gloo", untuned)]))
    operations = [e for e in events_of(text, "X") if e["cat"] == "operation"]
    assert {e["pid"] for e in operations} == {0, PER_RUN}
    first = min(float(str(e["ts"])) for e in operations if e["pid"] == 0)
    assert first == pytest.approx(3600e6, rel=1e-3), "the other run was an hour earlier"


def test_the_command_writes_it(
    records: list[Record], write_journal: Callable[[str, list[Record]], Path], tmp_path: Path
) -> None:
    journal = write_journal("job.jsonl", records)
    trace([journal], tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text())["displayTimeUnit"] == "ms"
    with pytest.raises(UsageError, match="cannot write"):
        trace([journal], tmp_path / "missing" / "trace.json")
