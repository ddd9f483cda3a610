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
        assert line_with("stops") == "gateway: stops; 0 requests are open\n"
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
