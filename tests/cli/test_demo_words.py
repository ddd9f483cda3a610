"""What the demo says and draws at its end, from journals made up by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.console import Console

from headway.bench.training import Phases, Step, TrainingRun
from headway.cli.demo import write_report
from headway.cli.demo_view import DecisionNews, closing_words, result_table
from headway.decide.journal import DecisionRecord, EventRecord, FindingRecord, OperationRecord, Record
from headway.report.runs import Run, runs_of

FOUND = FindingRecord(link="downlink of host3", capacity_Bps=1e6, baseline_Bps=2e6, pattern="steady", samples=9)


def _op(number: int, t_s: float, duration_s: float, plan: str = "ring") -> OperationRecord:
    return OperationRecord(
        t_s=t_s, rank=0, operation=number, collective="all_reduce", size_bytes=1 << 20, plan=plan, duration_s=duration_s
    )


def _decision(epoch: int, t_s: float, action: str, before: str, after: str, start: int) -> DecisionRecord:
    findings = [FOUND] if epoch < 2 else []
    return DecisionRecord.model_validate(
        {
            "t_s": t_s, "epoch": epoch, "action": action, "reason": "because", "from_operation": start,
            "plan_before": before, "plan_after": after, "findings": findings,
        }
    )  # fmt: skip


def _events(name: str, begin_s: float, end_s: float) -> list[Record]:
    def event(t_s: float, phase: str) -> EventRecord:
        return EventRecord.model_validate(
            {"t_s": t_s, "event": name, "phase": phase, "what": "load", "links": ["downlink of host3"]}
        )

    return [event(begin_s, "begin"), event(end_s, "end")]


def _tuned(*, restored: bool = True) -> list[Record]:
    back: list[Record] = [
        _decision(2, 107.5, "try", "chain", "ring", 7), _op(7, 108.5, 0.5),
        _decision(3, 108.5, "restore", "ring", "ring", 8),
    ]  # fmt: skip
    return [
        _op(0, 101.0, 0.5), _op(1, 102.0, 0.5), _op(2, 103.0, 1.0), _op(3, 104.0, 1.0),
        _decision(0, 104.0, "try", "ring", "chain", 4), _op(4, 105.0, 0.6, "chain"),
        _decision(1, 105.0, "keep", "chain", "chain", 5), _op(5, 106.0, 0.6, "chain"), _op(6, 107.5, 0.5, "chain"),
        *(back if restored else []), _op(8, 110.0, 0.5),
    ]  # fmt: skip


def _journals(*, restored: bool = True) -> list[Run]:
    gloo: list[Record] = [_op(k, 5.0 + k, 0.5 if k < 3 or k > 8 else 1.0) for k in range(12)]
    events = [*_events("gloo", 7.1, 13.0), *_events("headway", 102.0, 107.0)]
    return runs_of([("gloo", gloo), ("headway", _tuned(restored=restored)), ("events", events)])


def _trained(folder: Path) -> list[TrainingRun]:
    runs = []
    for backend, slow_s in (("gloo", 2.0), ("headway", 1.0)):
        run = TrainingRun(backend, Phases(2, 3, 2), folder / "journal", folder / "weights", gradient_bytes=1 << 20)
        run.steps = [Step(k, 0.1, slow_s if 2 <= k < 5 else 0.5, 0.0) for k in range(7)]
        run.limits_s = {"before": 0.4, "under": 0.9, "after": 0.4}
        runs.append(run)
    return runs


def test_the_last_sentence_says_what_a_reader_wants(tmp_path: Path) -> None:
    assert closing_words(_trained(tmp_path), _journals()) == (
        "under congestion: gloo 0.50 steps/s, headway 1.00 (+100 %), 90 % of the limit (estimate); "
        "better plan after 2 operations, 2.4 s; back on the idle plan 1.0 s after the neighbour left"
    )
    assert closing_words(_trained(tmp_path), _journals(restored=False)).endswith(
        "not back on the idle plan when the run ended"
    )
    (gloo, _), (journal, _) = _trained(tmp_path), _journals()
    assert closing_words([gloo], [journal]) == "under congestion: gloo 0.50 steps/s, 45 % of the limit (estimate)"


def test_lines_and_shades_of_the_picture_have_one_time_axis(tmp_path: Path) -> None:
    page, picture = write_report(_journals(), tmp_path)
    dots = [
        (who, float(value), float(at))
        for who, value, at in re.findall(r'data-tip="(\w+): ([\d.]+) MB/s at ([\d.]+) s"', picture.read_text())
    ]
    begins = {float(b) for b in re.findall(r"load, ([\d.]+) s to", picture.read_text())}
    assert len(begins) == 1, "the neighbour comes to both at one time"
    (begin_s,) = begins
    for backend in ("gloo", "headway"):
        first_slow_s = next(at for who, value, at in dots if who == backend and value < 1.2)
        assert begin_s <= first_slow_s < begin_s + 1.0
    assert set(dots) <= {
        (who, float(value), float(at))
        for who, value, at in re.findall(r'data-tip="(\w+): ([\d.]+) MB/s at ([\d.]+) s"', page.read_text())
    }, "page and picture show the same"


def test_news_say_what_a_decision_replaces() -> None:
    news = DecisionNews()
    records = _tuned()
    assert list(news.of(records[:6])) == ["try: ring -> chain (because)"]
    hold = _decision(9, 109.0, "hold", "ring", "ring", 9).model_copy(update={"reroutes": ["rank 4 to rank 3"]})
    assert list(news.of([*records[6:], hold])) == [
        "keep: ring -> chain (because)",
        "try: chain -> ring (because)",
        "restore: chain -> ring (because)",
        "reroute: new connections for rank 4 to rank 3",
    ]


def test_the_table_calls_the_limit_an_estimate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Console(width=120).print(result_table(_trained(tmp_path)))
    text = capsys.readouterr().out
    assert "(estimate)" in text
    assert "more room for the job" in " ".join(text.split())
