"""Load on a real server over loopback, good and bad ones, and the command."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from headway.cli import main
from headway.serving.loadgen.ask import Ask
from headway.serving.loadgen.client import Limits, base_url
from headway.serving.loadgen.run import Outcome, Progress, in_loop, run
from headway.serving.loadgen.summary import summarize
from headway.serving.workload.arrival import Arrival
from tests.fakes.openai_server import MisbehavingServer as Server
from tests.fakes.openai_server import nobody

QUICK = Limits(connect_s=2.0, stall_s=0.7, total_s=10.0)


def load(requests: int, *, gap_s: float = 0.01, tokens: int = 3) -> list[Arrival]:
    return [Arrival(k * gap_s, 40, tokens, (0, k + 1, k + 1001), 16, f"s{k}") for k in range(requests)]


def sent(
    server: Server, model: str, requests: int = 3, *, limits: Limits = QUICK, stop_at: int = 0, **more: Any
) -> Outcome:
    """What becomes of so many requests; it is stopped when `stop_at` of them have come to the server."""

    async def main() -> Outcome:
        stop = asyncio.Event()

        async def watch() -> None:
            while len(server.bodies) < stop_at:
                await asyncio.sleep(0.01)
            stop.set()

        watching = asyncio.create_task(watch()) if stop_at else None
        ask = Ask(model=model, endpoint=more.pop("endpoint", "chat"))
        outcome = await run(load(requests, **more), ask, base_url(server.url), limits=limits, stop=stop)
        if watching is not None:
            watching.cancel()
        return outcome

    return in_loop(main)


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_good_answers(server: Server, endpoint: str) -> None:
    outcome = sent(server, "good", 4, endpoint=endpoint)
    assert not outcome.stopped
    for row in outcome.rows:
        assert (row.end, row.status, row.prompt_tokens, row.completion_tokens, row.cached_tokens) == (
            "done",
            200,
            77,
            3,
            16,
        )
        assert row.ttft_s is not None
        assert row.e2e_s is not None
        assert row.last_s is not None
        assert 0.009 < row.ttft_s < row.last_s <= row.e2e_s
        assert len(row.gaps_s) == 2
        assert row.sent_s is not None
        assert row.sent_s >= row.due_s
    assert {(row.replica, row.reason, row.policy) for row in outcome.rows} == {
        ("r0", "round robin", "round-robin"),
        ("r1", "round robin", "round-robin"),
    }
    assert {headers["x-session-id"] for headers in server.headers} == {"s0", "s1", "s2", "s3"}


def test_chunks_are_counted_where_the_server_counts_nothing(server: Server) -> None:
    (row,) = sent(server, "terse", 1).rows
    assert (row.end, row.completion_tokens, row.generated_tokens, row.asked_tokens) == ("done", None, 3, 40)


@pytest.mark.parametrize(
    ("model", "end", "what"),
    [
        ("busy", "http-429", "too much"),
        ("broken", "http-500", "<html>no</html>"),
        ("rude", "disconnect", "the connection was closed before an answer came"),
        ("die", "cut", "the answer broke off"),
        ("end", "cut", "without its end mark"),
        ("sorry", "error", "out of memory"),
        ("garbage", "garbage", "not JSON"),
        ("stall", "stall", "nothing more came for too long"),
        ("mute", "stall", "nothing more came for too long"),
    ],
)
def test_each_way_to_fail_has_a_name(server: Server, model: str, end: str, what: str) -> None:
    outcome = sent(server, model)
    assert [row.end for row in outcome.rows] == [end] * 3
    assert all(row.what and what in row.what for row in outcome.rows)
    assert all(row.e2e_s is not None and row.e2e_s < 10.0 for row in outcome.rows)


@pytest.mark.parametrize(
    ("scheme", "end", "what"),
    [
        ("http", "disconnect", r"^what came is no HTTP answer$"),
        ("https", "connect", r"^cannot connect to .* \(TLS: .*\)$"),
    ],
)
def test_what_is_no_web_server_is_said_without_the_librarys_words(scheme: str, end: str, what: str) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"220 mail is here\r\n\r\n")
        await writer.drain()
        writer.close()

    async def main() -> tuple[str, str]:
        async with await asyncio.start_server(greet, "127.0.0.1", 0) as listening:
            url = base_url(f"{scheme}://127.0.0.1:{listening.sockets[0].getsockname()[1]}")
            outcome = await run(load(1), Ask(model="any"), url, limits=QUICK, stop=asyncio.Event())
            return outcome.rows[0].end, outcome.rows[0].what

    ended, said = in_loop(main)
    assert ended == end
    assert re.search(what, said)


def test_nobody_there_is_a_failure_to_connect() -> None:
    with nobody() as url:
        outcome = in_loop(lambda: run(load(1), Ask(model="any"), base_url(url), limits=QUICK, stop=asyncio.Event()))
    assert [(row.end, row.what) for row in outcome.rows] == [("connect", f"cannot connect to {url} (refused)")]


def test_a_busy_server_is_not_asked_again_but_its_wish_is_kept(server: Server) -> None:
    outcome = sent(server, "busy", 4)
    assert len(server.bodies) == 4
    assert sorted(row.retry_after_s or 0.0 for row in outcome.rows) == [0.0, 0.0, 3.0, 3.0]
    assert summarize(outcome.rows, duration_s=1.0).told_to_wait == 4


def test_the_whole_answer_has_a_limit(server: Server) -> None:
    limits = Limits(connect_s=1.0, stall_s=1.0, total_s=0.5)
    (row,) = sent(server, "slow", 1, limits=limits, tokens=10).rows
    assert (row.end, row.status) == ("timeout", 200)
    assert row.ttft_s is not None


def test_requests_do_not_wait_for_earlier_ones(server: Server) -> None:
    """Open loop: all ten are open while the first one still is."""
    outcome = sent(server, "slow", 10, tokens=8)
    first = outcome.rows[0]
    assert first.e2e_s is not None
    assert all(row.sent_s is not None and row.sent_s < first.e2e_s for row in outcome.rows)
    assert summarize(outcome.rows, duration_s=outcome.duration_s).peak_streams == 10


def test_stopping_ends_open_requests_and_keeps_what_there_is(server: Server) -> None:
    outcome = sent(server, "slow", 5, gap_s=0.6, tokens=4, stop_at=3)
    assert outcome.stopped
    ends = [row.end for row in outcome.rows]
    assert ends[0] == "done"
    assert ends[-1] == "stopped"
    assert outcome.rows[-1].sent_s is None
    assert outcome.rows[2].sent_s is not None
    assert outcome.rows[2].end == "stopped"


def test_progress_is_told_each_second(server: Server) -> None:
    seen: list[Progress] = []

    async def main() -> Outcome:
        return await run(
            load(3, tokens=6),
            Ask(model="slow"),
            base_url(server.url),
            limits=Limits(),
            stop=asyncio.Event(),
            each_second=seen.append,
        )

    in_loop(main)
    assert seen
    assert seen[0].requests == seen[0].sent == 3


# The command


def test_the_command(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows, saved = tmp_path / "rows.jsonl", tmp_path / "load.jsonl"
    arguments = ["loadgen", server.url + "/v1", "--load", "sharing-30", "--rate", "100", "--requests", "12"]
    arguments += [
        "--limit-in",
        "64",
        "--limit-out",
        "3",
        "--slo-ttft",
        "5s",
        "--slo-tpot",
        "1s",
        "--header",
        "X-A: b:c",
    ]
    arguments += ["--percentile-metrics", "ttft,e2el", "--metric-percentiles", "50,99"]
    assert main.run([*arguments, "--out", str(rows), "--save-load", str(saved)]) == 0
    shown = capsys.readouterr().out
    assert "============ Serving Benchmark Result ============\nSuccessful requests:                     12\n" in shown
    assert f"{'Total input tokens:':<40} {12 * 77}\n" in shown
    assert f"{'Total generated tokens:':<40} 36\n" in shown
    assert "Request goodput (req/s):" in shown
    assert "P50 E2EL (ms):" in shown
    assert "TPOT" not in shown
    assert "r0:                                      6 (50.0%)" in shown
    assert "round robin:                             12" in shown
    written = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [each["number"] for each in written] == list(range(12))
    assert {each["end"] for each in written} == {"done"}
    assert len(saved.read_text().splitlines()) == 12
    assert all(headers["X-A"] == "b:c" and headers["x-slo-ttft-ms"] == "5000" for headers in server.headers)
    again = ["loadgen", server.url, "--load", str(saved), "--time-scale", "0.5", "--model", "good"]
    assert main.run(again) == 0
    first, second = sorted(map(json.dumps, server.bodies[:12])), sorted(map(json.dumps, server.bodies[12:]))
    assert first == second, "the same requests; which of two that are near reaches a busy server first is chance"


def test_failures_are_counted_by_kind(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["loadgen", server.url, "--load", "mixed", "--rate", "100", "--requests", "4", "--limit-in", "20"]
    assert main.run([*arguments, "--model", "busy"]) == 1
    shown = capsys.readouterr()
    assert "http-429:                                4\n" in shown.out
    assert "429 and 503 with Retry-After:            2 of 4, 3 to 3 s\n" in shown.out
    assert "headway: no request succeeded; the first one: http-429: too much" in shown.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--load", "mixed"], "--rate: the load mixed needs a rate"),
        (["--load", "mixed", "--rate", "1", "--arrivals", "odd"], "--arrivals: unknown arrivals 'odd'"),
        (["--load", "mixed", "--rate", "1", "--endpoint", "odd"], "--endpoint: unknown endpoint 'odd'"),
        (["--load", "mixed", "--rate", "1", "--slo-ttft", "2"], "--slo-ttft: '2' has no unit"),
        (["--load", "mixed", "--rate", "1", "--header", "odd"], "--header: 'odd' is no header"),
        (["--load", "mixed", "--rate", "1", "--limit-in", "0"], "--limit-in: 0 tokens"),
        (["--load", "mixed", "--rate", "1", "--rate-step", "60s"], "--rate-step: '60s' has no factor"),
        (["--load", "mixed", "--rate", "1", "--rate-step", "60s:nan"], "--rate-step: the factor in '60s:nan' is no"),
        (["--load", "mixed", "--rate", "1", "--rate-step", "60s:-1"], "--rate-step: the factor in '60s:-1' is no"),
        (["--load", "mixed", "--rate", "nan"], "--rate: nan is no number above 0"),
        (["--load", "mixed", "--rate", "inf"], "--rate: inf is no number above 0"),
        (["--load", "mixed", "--rate", "-1"], "--rate: -1 is no number above 0"),
        (["--load", "mixed", "--rate", "1e-300"], "the last request would come after"),
        (["--load", "x.jsonl", "--time-scale", "nan"], "--time-scale: nan is no number above 0"),
        (["--load", "mixed", "--rate", "1", "--arrivals", "bursty:nan"], "--arrivals: nan in 'bursty:nan'"),
        (["--load", "mixed", "--rate", "1", "--requests", "-1"], "--requests: -1 requests"),
        (["--load", "mixed", "--rate", "1", "--seed", "-1"], "--seed: -1 is below 0"),
        (["--load", "mixed", "--rate", "1", "--limit", "0s"], "--limit: '0s' is no time to wait"),
        (["--load", "mixed", "--rate", "1", "--slo-e2e", "0s"], "--slo-e2e: '0s' is no time to wait"),
        (["--load", "mixed", "--rate", "1", "--wait", "nan"], "--wait: 'nan' is not a time"),
        (["--load", "mixed", "--rate", "1", "--metric-percentiles", "nan"], "--metric-percentiles: a percentile"),
        (["--load", "mixed", "--rate", "1", "--percentile-metrics", "odd"], "--percentile-metrics: unknown metric"),
        (["--load", "mixed", "--rate", "1", "--metric-percentiles", "101"], "--metric-percentiles: a percentile"),
        (["--load", "mixed", "--rate", "1", "--out", "/nowhere/x"], "--out: /nowhere/x cannot be written"),
    ],
)
def test_wrong_command_lines(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["loadgen", "http://127.0.0.1:9", *arguments]) == 2
    assert words in capsys.readouterr().err


def started(server_url: str, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "headway.cli.main", "loadgen", server_url, "--load", "mixed", "--rate", "20"]
    command += ["--requests", "2000", "--limit-in", "20", "--limit-out", "2", *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_ctrl_c_prints_what_there_is(server: Server, tmp_path: Path) -> None:
    with started(server.url, "--out", str(tmp_path / "rows.jsonl")) as process:
        for _ in range(300):
            if len(server.bodies) > 3:
                break
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)  # impatience changes nothing
        out, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "Serving Benchmark Result" in out
    assert "stopped by us, or never sent:" in out
    assert "headway: stopped after" in err
    assert "Traceback" not in err
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 2000


def test_ctrl_c_while_the_server_is_waited_for() -> None:
    with nobody() as url, started(url, "--wait", "60s") as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert said == f"headway: waits up to 60 s: no server answers at {url}: Connection refused\n"
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err


def test_what_a_server_says_at_length_or_in_no_text_is_printed_all_the_same(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    arguments = ["loadgen", server.url, "--model", "odd", "--load", "mixed", "--rate", "50", "--requests", "4"]
    assert main.run([*arguments, "--limit-in", "20", "--limit-out", "2", "--out", str(rows)]) == 0
    assert "?" * 20 in capsys.readouterr().out
    written = [json.loads(line, parse_constant=pytest.fail) for line in rows.read_text().splitlines()]
    assert all(each["reason"] == "?" * 200 and "completion_tokens" not in each for each in written)
