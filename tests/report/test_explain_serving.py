"""A gateway's journal explained, traced and reported: from made-up records, and from a simulated fleet's own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headway.cli.main import run
from headway.decide.journal import (
    DroppedRecord,
    MemoryJournal,
    OperationRecord,
    Record,
    RequestRecord,
    ServingRecord,
    to_line,
)
from headway.report.page import render_page
from headway.report.serving_figures import mispredicted, slowest, summarise_serving, times
from headway.report.serving_request import tell_request
from headway.report.serving_run import ServingRun, serving_run
from headway.report.serving_story import tell_serving
from headway.report.trace import trace_json
from headway.serving.policies import build
from headway.serving.simulate.replicas import Kill
from headway.serving.simulate.run import simulate
from tests.serving.simulate.loads import fleet, poisson

WALL_S = 1_800_000_000.0


def request(name: str, at_s: float, **more: Any) -> RequestRecord:
    given: dict[str, Any] = {
        "t_s": WALL_S + at_s + 2.0,
        "group": "llama",
        "request": name,
        "arrived_s": WALL_S + at_s,
        "sent_s": 0.01,
        "replica": "a",
        "policy": "learned",
        "by": "learned",
        "reason": "0.3 s predicted",
        "input_tokens": 1000,
        "hit_tokens": 600,
        "cached_tokens": 500,
        "output_tokens": 11,
        "predicted_ttft_s": 0.3,
        "ttft_s": 0.41,
        "e2e_s": 1.41,
        "status": 200,
        "end": "done",
        **more,
    }
    return RequestRecord.model_validate({key: value for key, value in given.items() if value is not None})


OPTIONS = [
    {"replica": "a", "hit_tokens": 600, "requests": 3, "running": 2, "waiting": 1, "kv_usage": 0.4, "score": -0.3},
    {"replica": "b", "hit_tokens": 0, "requests": 1},
]


def made_up() -> list[Record]:
    def change(at_s: float, event: str, what: str, **more: Any) -> Record:
        return ServingRecord.model_validate({"t_s": WALL_S + at_s, "event": event, "what": what, **more})

    return [
        change(0.0, "join", "a joined", replica="a"),
        request("r-1", 1.0, options=OPTIONS, slo_ttft_s=0.5, session="s-1"),
        request("r-2", 2.0, predicted_ttft_s=0.2, ttft_s=1.01, slo_ttft_s=0.5),
        request("r-3", 3.0, by="lmetric", reason="least", predicted_ttft_s=None, replica="b", ttft_s=0.11, attempts=2),
        request("r-4", 4.0, end="failed", status=502, ttft_s=None, output_tokens=0, cached_tokens=None),
        request(
            "r-5", 5.0, end="refused", status=429, replica=None, by=None, sent_s=None, ttft_s=None, attempts=0,
            predicted_ttft_s=None, hit_tokens=None, cached_tokens=None, output_tokens=0, reason="the queue is full",
        ),
        change(6.0, "down", "b takes no requests: 3 failures", replica="b"),
        change(7.0, "down", "b takes no requests: 4 failures", replica="b"),
        change(8.0, "fall-back", "learned measures 1.31 of lmetric", policy="learned", samples=400),
        DroppedRecord(t_s=WALL_S + 9.0, count=3, what="disk full"),
    ]  # fmt: skip


def a_run(records: Sequence[Record] | None = None) -> ServingRun:
    found = serving_run("gateway", made_up() if records is None else records)
    assert found is not None
    return found


def write(path: Path, records: Sequence[Record]) -> Path:
    path.write_text("".join(to_line(record) + "\n" for record in records))
    return path


def test_figures_from_records_whose_answers_are_known() -> None:
    summary = summarise_serving(a_run())
    assert summary.requests == 5
    assert summary.ends == {"done": 3, "failed": 1, "refused": 1}
    assert summary.retried == 1
    assert (summary.goals, summary.goals_met) == (2, 1)
    assert summary.ttft is not None
    assert summary.ttft.mean_s == pytest.approx((0.41 + 1.01 + 0.11) / 3)
    assert summary.ttft.p50_s == 0.41
    assert summary.ttft.p99_s == 1.01
    # From the sending: r-1 took 0.4 s against 0.3, r-2 1.0 s against 0.2.
    assert summary.accuracy is not None
    assert summary.accuracy.count == 2
    assert summary.accuracy.error_s == pytest.approx((0.1 + 0.8) / 2)
    assert summary.accuracy.error_share == pytest.approx((0.25 + 0.8) / 2)
    assert summary.accuracy.bias_s == pytest.approx(0.45)
    assert [(line.name, line.requests) for line in summary.rules] == [("learned", 3), ("lmetric", 1)]
    assert [(line.name, line.requests) for line in summary.replicas] == [("a", 3), ("b", 1)]
    assert summary.replicas[0].hit_share == pytest.approx(0.5)
    assert summary.rules[1].accuracy is None


def test_percentiles_are_the_nearest_rank() -> None:
    found = times(value / 100 for value in range(1, 101))
    assert found is not None
    assert (found.p50_s, found.p99_s) == (0.5, 0.99)
    assert times([None]) is None


def test_the_slowest_and_the_most_mispredicted() -> None:
    run = a_run()
    assert [r.request for r in slowest(run, 2)] == ["r-2", "r-1"]
    assert [r.request for r in mispredicted(run, 5)] == ["r-2", "r-1"]


def test_the_rate_is_that_of_the_time_beside_it() -> None:
    run = serving_run("g", [request(f"r{number}", number / 40, t_s=WALL_S + 50.9) for number in range(1500)])
    assert run is not None
    assert tell_serving(run).setting[0] == (
        "1500 requests for llama, which came in 37.5 s (40 per second); the journal goes on for 50.9 s; policy learned."
    )


def test_the_story_of_a_run() -> None:
    story = tell_serving(a_run())
    assert story.setting[0].startswith("5 requests for llama, which came in ")
    assert "3 done, 1 failed, 1 refused" in story.setting[1]
    assert "1 of 2 met their goal" in story.setting[3]
    assert [grid.title for grid in story.grids] == ["By rule", "By replica"]
    told = [(change.kind, change.text) for change in story.timeline]
    assert ("join", "a joined.") in told
    assert ("fall-back", "learned measures 1.31 of lmetric. (400 requests)") in told
    downs = [text for kind, text in told if kind == "down"]
    assert len(downs) == 1
    assert "The same 1 more time, the last at 7.0 s" in downs[0]
    assert ("dropped", "3 records before this point are missing from the journal: disk full.") in told
    assert "it took 450.0 ms more than predicted" in story.prediction


def test_the_story_of_a_request() -> None:
    run = a_run()
    text = "\n".join(tell_request(run, run.requests[0]))
    assert "1000 tokens in its prompt, in session s-1. Its goals: the first token within 500.0 ms." in text
    assert "learned chose a: 0.3 s predicted." in text
    assert (
        "a: 600 of 1000 prompt tokens expected in its cache (60 %); 3 requests of ours in flight; its engine said "
        "2 running, 1 waiting, 40 % of its KV cache in use; score -0.3. Chosen." in text
    )
    assert "b: nothing of the prompt expected in its cache; 1 request of ours in flight; its engine had said" in text
    assert (
        "The first token came 400.0 ms later, 410.0 ms after the request; 300.0 ms had been predicted: 33 % more"
        in text
    )
    assert "Its goal was met." in text
    assert "The engine found 500 of the prompt's tokens in its cache; 600 had been expected." in text
    assert "11 tokens of answer, 100.0 ms per token after the first." in text


def test_the_stories_of_others() -> None:
    run = a_run()
    _, missed, retried, failed, refused = ["\n".join(tell_request(run, record)) for record in run.requests]
    assert "Its goal was missed." in missed
    assert "lmetric, to which learned had fallen back, chose b: least." in retried
    assert "after 1 attempt that failed before the first byte" in retried
    assert "nothing had been predicted" in retried
    assert "No token came; 300.0 ms had been predicted." in failed
    assert "It failed after 1.41 s, with status 502." in failed
    assert "It was sent to no replica: the queue is full." in refused
    assert "It was refused" in refused


def test_only_changes_of_the_fleet() -> None:
    story = tell_serving(a_run(made_up()[:1]))
    assert story.setting == ["The journal holds no request, only changes of the fleet."]
    assert not story.grids
    assert "a joined." in render_page([], serving=[a_run(made_up()[:1])])


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = str(write(tmp_path / "gateway.jsonl", made_up()))
    assert run(["explain", journal]) == 0
    out = capsys.readouterr().out
    for heading in ("By rule", "By replica", "What changed", "Slowest", "Most mispredicted"):
        assert heading in out
    assert run(["explain", journal, "--request", "r-2"]) == 0
    assert capsys.readouterr().out.startswith("Request r-2 for llama came 2.000 s after")
    assert run(["explain", journal, "--json", "--worst", "1"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["runs"] == []
    assert document["serving"][0]["summary"]["accuracy"]["count"] == 2
    assert [len(grid["rows"]) for grid in document["serving"][0]["worst"]] == [1, 1]
    assert run(["explain", journal, "--request", "r-1", "--json"]) == 0
    (story,) = json.loads(capsys.readouterr().out)["requests"]
    assert story["record"]["replica"] == "a"


@pytest.mark.parametrize(
    ("wanted", "named"), [("zzz", "holds no request 'zzz'"), ("r-", "several requests begin with 'r-': r-1, r-2, r-3")]
)
def test_a_request_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wanted: str, named: str
) -> None:
    journal = str(write(tmp_path / "gateway.jsonl", made_up()))
    assert run(["explain", journal, "--request", wanted]) == 2
    assert named in capsys.readouterr().err


def test_a_request_in_a_jobs_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    operation = OperationRecord(
        t_s=WALL_S, rank=0, operation=0, collective="all_reduce", size_bytes=8, plan="ring", duration_s=1.0
    )
    journal = write(tmp_path / "job.jsonl", [operation])
    assert run(["explain", str(journal), "--request", "r-1"]) == 2
    assert "needs a gateway's journal" in capsys.readouterr().err
    both = write(tmp_path / "both.jsonl", [operation, *made_up()])
    assert run(["explain", str(both)]) == 0
    out = capsys.readouterr().out
    assert "Group default: the journal does not have its start." in out
    assert "5 requests for llama" in out


def test_a_trace_has_each_request_on_its_replica() -> None:
    events = json.loads(trace_json([], serving=[a_run()]))["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert sorted(names.values()) == ["gateway", "replica a", "replica b"]
    spans = {
        (names[event["pid"]], event["name"]): event for event in events if event["ph"] == "X" and event["ts"] < 2e6
    }
    whole = spans["replica a", "r-1 (done)"]
    assert whole["ts"] == pytest.approx(1.01e6)
    assert whole["dur"] == pytest.approx(1.4e6)
    assert spans["replica a", "queue + prefill"]["dur"] == pytest.approx(0.4e6)
    assert spans["replica a", "decode"]["dur"] == pytest.approx(1.0e6)
    assert whole["args"]["reason"] == "0.3 s predicted"
    refused = next(event for event in events if event["name"] == "refused: r-5")
    assert names[refused["pid"]] == "gateway"


def test_requests_that_overlap_lie_on_lanes_of_their_own() -> None:
    records = [request(f"r-{number}", number * 0.1) for number in range(5)]
    events = json.loads(trace_json([], serving=[a_run(records)]))["traceEvents"]
    lanes = [event["tid"] for event in events if event.get("cat") == "request"]
    assert len(set(lanes)) == 5


def test_the_page(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    records = [*made_up(), request("r-9", 9.0, reason=evil, replica=evil)]
    page = render_page([], serving=[a_run(records)], title="gateway")
    assert evil not in page
    assert "Time to first token" in page
    assert "Predicted and actual" in page
    assert page.count('class="dot ') >= 4
    assert "algbw" not in page
    journal = str(write(tmp_path / "gateway.jsonl", records))
    assert run(["report", journal, "-o", str(tmp_path / "page.html")]) == 0
    assert run(["trace", journal, "-o", str(tmp_path / "trace.json")]) == 0
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")


def test_a_simulated_fleets_journal_is_told_as_it_went() -> None:
    journal = MemoryJournal()
    simulate(
        fleet(3), poisson(300, 20.0), build("lmetric", seed=1, options={}), events=[Kill("r1", 5.0)], journal=journal
    )
    found = a_run(journal.records)
    story = tell_serving(found)
    assert story.summary.requests == 300
    assert {line.name for line in story.summary.replicas} <= {"r0", "r1", "r2"}
    assert any(change.kind == "down" and change.time_s > 5.0 and "r1" in change.text for change in story.timeline)
    for record in found.requests:
        assert any(f"{record.replica}: " in line and line.endswith("Chosen.") for line in tell_request(found, record))
