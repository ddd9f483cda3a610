"""Curves made in processes are those made one after the other; a signal or a death ends all of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headway.cli import profile_curves
from headway.cli.profile_curves import LEAST_TASKS, on_all_cores
from headway.errors import HeadwayError
from headway.serving.allocation.engine_profile import Task, curves, fitting
from headway.serving.allocation.types import Shape
from headway.serving.workflows.calls import Call
from headway.serving.workflows.files import write_calls
from tests.running import left, members

MODEL = "llama-3.2-1b"
CALLS = [
    Call("w", f"r{run}", f"{run}-{at}", MODEL, 50.0 * run, 50.0 * run + 1, 100 + run, 5)
    for run in range(4)
    for at in range(8)
]


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there is one."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


def tasks(spreads: range, *, calls: int = 40) -> list[Task]:
    engines = fitting("a100", MODEL, [Shape(1, 5), Shape(1, 10)], 10, cache_tokens=1, block_tokens=16)
    return [Task(engine, spread, calls) for spread in spreads for engine in engines.values()]


@pytest.mark.parametrize("spreads", [range(1, 2), range(1, 1 + LEAST_TASKS // 2)])
def test_the_same_curves_in_the_same_order(spreads: range) -> None:
    asked = tasks(spreads)
    told: list[tuple[int, int]] = []
    made = list(on_all_cores(lambda done, total: told.append((done, total)))(CALLS, 3, asked))
    assert made == list(curves(CALLS, 3, asked))
    assert told == [(done, len(asked)) for done in range(len(asked) + 1)]


def test_a_process_that_is_killed_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_curves, "make", dies)
    with pytest.raises(HeadwayError, match=f"a curve of {MODEL} could not be made: the worker was ended by SIGKILL"):
        list(on_all_cores(lambda *_: None)(CALLS, 3, tasks(range(1, 6))))


def dies(_: object) -> dict[str, object]:
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_and_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    long = [Call("w", "r", str(at), MODEL, 10.0 * at, 10.0 * at + 1, 20_000, 900) for at in range(400)]
    (tmp_path / "calls.jsonl").write_text(write_calls(long))
    command = "profile --calls calls.jsonl --from engine-model --device a100 --no-cache"
    started = subprocess.Popen(
        [sys.executable, "-m", "headway.cli.main", *command.split()],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert started.stdout is not None
    while started.poll() is None and len(members(started.pid)) < 3:
        time.sleep(0.05)
    started.send_signal(number)
    said, _ = started.communicate(timeout=60)
    assert started.returncode == 128 + number
    assert "Traceback" not in said
    assert left(started.pid) == []
    assert not (tmp_path / "profiles.yaml").exists()
