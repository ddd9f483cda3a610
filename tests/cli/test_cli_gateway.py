"""`headway gateway` as people start and stop it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headway.cli.main import run

PATIENCE_S = 30.0
POOL = "pools:\n  - {policy: round-robin, replicas: [{url: 'http://127.0.0.1:9', models: [m]}]}\n"


@contextmanager
def started(path: Path) -> Iterator[tuple[subprocess.Popen[str], Callable[[str], str]]]:
    """The process, and a function that reads its output up to the line that has some words."""
    process = subprocess.Popen(
        [sys.executable, "-m", "headway.cli.main", "gateway", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    output = process.stdout

    def line_with(words: str) -> str:
        for line in output:
            if words in line:
                return line
        raise AssertionError(f"no line with {words!r}")

    try:
        yield process, line_with
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        process.stdout.close()
        process.stderr.close()


@pytest.mark.timeout(60)
def test_it_says_where_it_listens_rereads_its_file_and_ends_with_0(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text("listen: {port: 0}\n" + POOL)
    with started(path) as (process, line_with):
        line = line_with("listens on")
        url = line.split()[3].rstrip(";")
        assert line == f"gateway: listens on {url}; pools: default (round-robin)\n"
        assert line_with("joined") == "gateway: 127.0.0.1:9 joined at http://127.0.0.1:9\n"
        with urllib.request.urlopen(f"{url}/health", timeout=PATIENCE_S) as answer:
            assert answer.status == 200
        path.write_text("listen: {port: 1}\nlimits: {body_bytes: 5}\n" + POOL)
        process.send_signal(signal.SIGHUP)
        assert line_with("again") == "gateway: has read its configuration again; needs a new start: listen\n"
        path.write_text("listen: [")
        process.send_signal(signal.SIGHUP)
        assert f"keeps its configuration: {path}:1" in line_with("keeps")
        process.send_signal(signal.SIGTERM)
        assert line_with("stops") == "gateway: stops; 0 requests open\n"
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.timeout(60)
def test_a_renamed_journal_is_begun_anew_at_sighup(tmp_path: Path) -> None:
    path, journal = tmp_path / "gateway.yaml", tmp_path / "gateway.jsonl"
    path.write_text(f"listen: {{port: 0}}\njournal: {{path: {journal}}}\n{POOL}")
    with started(path) as (process, line_with):
        line_with("joined")
        journal.rename(tmp_path / "gateway.jsonl.1")
        process.send_signal(signal.SIGHUP)
        line_with("has read its configuration again")
        assert journal.exists()


EARLY = """
import os, sys
import headway.cli.gateway as verb
from headway.errors import UsageError
import headway.serving.gateway.config_file as file
file.load_config = lambda path: os.kill(os.getpid(), int(sys.argv[1])) or sys.exit(7)
verb.gateway(sys.argv[2])
"""
"""A start that gets a signal before its event loop runs; 7: the start went on."""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGHUP, 7), (signal.SIGTERM, 0), (signal.SIGINT, 0)], ids=["HUP", "TERM", "INT"]
)
def test_signals_while_it_starts_do_what_they_promise(number: signal.Signals, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", EARLY, str(int(number)), "none.yaml"], timeout=PATIENCE_S, check=False)
    assert done.returncode == code


def test_what_takes_long_to_import_is_imported_when_signals_are_looked_after() -> None:
    code = "import sys, headway.cli.gateway; sys.exit('aiohttp' in sys.modules or 'asyncio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=PATIENCE_S, check=False).returncode == 0


@pytest.mark.timeout(60)
def test_a_second_ctrl_c_ends_streams_with_their_error_event_and_0(tmp_path: Path) -> None:
    """A stream is held open by an engine that says nothing more."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {}\n\n"
    path = tmp_path / "gateway.yaml"
    with socket.create_server(("127.0.0.1", 0)) as engine:
        url = f"http://127.0.0.1:{engine.getsockname()[1]}"
        pool = f"pools: [{{policy: random, scrape_s: 60, replicas: [{{url: '{url}', models: [m]}}]}}]"
        path.write_text(f"listen: {{port: 0}}\n{pool}\n")
        with started(path) as (process, line_with):
            port = int(line_with("listens on").split(";")[0].rpartition(":")[2])
            line_with("joined")
            body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
                client.sendall(
                    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                    + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
                )
                engine.settimeout(PATIENCE_S)
                held = []
                while True:  # the first connection may be one for /metrics
                    connection, _ = engine.accept()
                    held.append(connection)
                    if connection.recv(65_536).startswith(b"POST"):
                        break
                connection.sendall(head)
                got = client.recv(65_536)
                while b"data: {}" not in got:
                    got += client.recv(65_536)
                process.send_signal(signal.SIGINT)
                assert "1 request open, with 30 s to end" in line_with("stops")
                process.send_signal(signal.SIGINT)
                assert line_with("now") == "gateway: ends all open requests now\n"
                rest = b""
                while more := client.recv(65_536):
                    rest += more
                assert b'"code": "stopping"' in rest
                for connection in held:
                    connection.close()
            assert process.wait(PATIENCE_S) == 0


def test_a_port_in_use_is_one_line_and_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gateway.yaml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path.write_text(f"listen: {{port: {port}}}\n{POOL}")
        began_s = time.monotonic()
        assert run(["gateway", str(path)]) == 2
        assert time.monotonic() - began_s < PATIENCE_S
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"headway: listen: cannot listen on 127.0.0.1:{port}: Address already in use")


def test_check_prints_what_would_run_and_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(POOL)
    assert run(["gateway", "--check", str(path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("listens on http://127.0.0.1:8080\n")
    assert "pool default: policy round-robin" in out
    path.write_text(POOL.replace("round-robin", "best"))
    assert run(["gateway", "--check", str(path)]) == 2
    assert "unknown policy 'best'" in capsys.readouterr().err


def test_a_bad_source_of_replicas_ends_it_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(
        "listen: {port: 0}\npools: [{policy: random, discovery: [{kind: dns, host: a, port: 1, nameservers: [x]}]}]"
    )
    assert run(["gateway", str(path)]) == 2
    assert "nameservers" in capsys.readouterr().err
