"""`headway trace import` and `headway trace calls`, and that `headway trace JOURNAL` is what it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.cli.main import run
from headway.decide.journal import RequestRecord, to_line
from headway.serving.allocation.files import read_aggregates


def request(number: int, workflow: str, model: str, start_s: float, end_s: float, *, end: str = "done") -> str:
    record = RequestRecord.model_validate(
        {
            "t_s": end_s,
            "group": model,
            "request": f"r{number}",
            "arrived_s": start_s,
            "e2e_s": end_s - start_s,
            "policy": "p",
            "input_tokens": 100,
            "output_tokens": 7,
            "status": 200,
            "end": end,
            "workflow": workflow,
        }
    )
    return to_line(record)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    lines = [
        request(1, "rag/1", "small", 100.0, 101.0),
        request(2, "rag/1", "large", 102.0, 105.0),
        request(3, "rag/2", "small", 103.0, 104.0),
        request(4, "rag/2", "small", 103.0, 105.0),
        request(5, "rag/2", "large", 105.0, 106.0, end="failed"),
        request(6, "", "large", 105.0, 106.0),
    ]
    path = tmp_path / "gateway.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def spans_file(path: Path) -> Path:
    """One trace with one call."""
    asked = [{"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}]
    asked.append({"key": "gen_ai.request.model", "value": {"stringValue": "large"}})
    span = {"traceId": "t", "spanId": "s", "name": "bot", "startTimeUnixNano": "1", "endTimeUnixNano": "2000000001"}
    whole = {"resourceSpans": [{"scopeSpans": [{"spans": [{**span, "attributes": asked}]}]}]}
    path.write_text(json.dumps(whole, indent=1))
    return path


def test_a_journal_and_spans_become_calls_and_calls_become_figures(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls, trace, figures = tmp_path / "calls.jsonl", tmp_path / "t.json", tmp_path / "a.json"
    spans = spans_file(tmp_path / "spans.json")
    assert run(["trace", "import", str(journal), str(spans), "-o", str(calls)]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"wrote {calls}: 5 calls of 3 runs: bot (1), rag (2)\n"
    assert shown.err.splitlines() == [
        "left out: 1 call (failed or broken off)",
        "left out: 1 call (of no workflow)",
        "1 call without token counts: taken as 0",
    ]
    assert run(["trace", "calls", str(calls), "-o", str(trace), "--aggregates", str(figures)]) == 0
    out = capsys.readouterr().out
    assert "rag: 2 runs at 0.333/s, 3.5 s" in out
    row = next(line for line in out.splitlines() if line.startswith("small"))
    assert row.split() == ["small", "1.5", "1.33", "1.33", "1.5", "62.5%", "60%", "100", "7"]
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"}
    assert names == {"small", "large"}
    assert [each.workflow for each in read_aggregates(figures)] == ["bot", "rag"]

    assert run(["trace", "calls", str(calls), "--json"]) == 0
    bot, rag = json.loads(capsys.readouterr().out)["workflows"]
    assert (bot["latency_s"], rag["runs"], rag["overlap_s"], rag["other_s"]) == (2.0, 2, 0.0, 0.5)
    assert (bot["rate"], rag["rate"]) == (0.0, pytest.approx(1 / 3)), "one run has no rate"


def test_the_runs_of_a_trace_lie_beside_each_other(journal: Path, tmp_path: Path) -> None:
    trace = tmp_path / "t.json"
    assert run(["trace", "calls", str(journal), "-o", str(trace)]) == 0  # a journal will do
    events = json.loads(trace.read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    spans = [event for event in events if event["ph"] == "X"]
    assert sorted(names.values()) == ["rag 1", "rag 2"]
    assert [(names[e["pid"]], e["name"], e["tid"], e["ts"], e["dur"]) for e in spans] == [
        ("rag 1", "small", 0, 0.0, 1e6),
        ("rag 1", "large", 0, 2e6, 3e6),
        ("rag 2", "small", 0, 3e6, 1e6),
        ("rag 2", "small", 1, 3e6, 2e6),
    ]


def test_trace_of_a_journal_needs_no_verb(journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = None
    for number, words in enumerate(
        (["JOURNAL", "-o", "OUT"], ["-o", "OUT", "JOURNAL"], ["journal", "JOURNAL", "-o", "OUT"])
    ):
        out = tmp_path / f"{number}.json"
        assert run(["trace", *({"JOURNAL": str(journal), "OUT": str(out)}.get(word, word) for word in words)]) == 0
        assert capsys.readouterr().out == f"wrote {out}\n"
        wanted = wanted or out.read_text()
        assert out.read_text() == wanted
    assert run(["trace", "-h"]) == 0
    assert "import" in capsys.readouterr().out


def test_mistakes_are_one_line_with_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other, none, bad = tmp_path / "other.txt", tmp_path / "none.jsonl", tmp_path / "bad.jsonl"
    other.write_text("hello")
    none.write_text(request(1, "", "m", 1.0, 2.0) + "\n")
    bad.write_text('{"v":1,"kind":"call","workflow":"w"}\n')
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    for verb in ("import", "calls"):
        for path, words in (
            (other, f"{other}: is neither a gateway's journal nor"),
            (none, f"{none}: hold no call of a workflow"),
            (bad, f"{bad}:1: run: is missing"),
            (binary, f"{binary}: is not text"),
            (tmp_path / "missing", f"{tmp_path / 'missing'}: cannot read it"),
        ):
            assert run(["trace", verb, str(path)]) == 2
            err = capsys.readouterr().err.splitlines()
            assert words in err[-1]
    assert not (Path.cwd() / "calls.jsonl").exists()
