"""The background process that trains: what becomes of a round, whatever becomes of the process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headway.serving.gateway.training_process import TrainingProcess, remembered
from headway.serving.learned.features import WIDTH
from headway.serving.learned.samples import Samples
from headway.serving.learned.trainer import Job, Result, carry_out
from headway.serving.learned.training import Fit

LIMIT_S = 60.0


def job(*, epochs: int = 1, count: int = 300) -> Job:
    rng = np.random.default_rng(0)
    rows = rng.uniform(0, 10, (count, WIDTH)).astype(np.float32)
    samples = Samples(rows, rng.uniform(0.1, 1, count).astype(np.float32))
    return Job(samples, samples[:20], samples[:0], 0, None, ("a30",), 5, Fit(epochs=epochs))


@pytest.fixture
def process(tmp_path: Path) -> Iterator[TrainingProcess]:
    made = TrainingProcess(tmp_path / "model.npz")
    yield made
    made.close()


def ended(process: TrainingProcess) -> Result | str:
    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        answer = process.poll(0.0)
        if answer is not None:
            return answer
        time.sleep(0.01)
    raise AssertionError("the round did not end")


def running(process: TrainingProcess) -> int:
    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        if process.pid is not None:
            return process.pid
        time.sleep(0.005)
    raise AssertionError("no process was started")


def running_pid(process: TrainingProcess) -> int:
    return process.pid or 0


def test_it_can_be_there_before_the_first_round(process: TrainingProcess) -> None:
    assert not running_pid(process)
    process.begin()
    begun = running_pid(process)
    assert begun
    process.begin()
    assert running_pid(process) == begun
    assert process.poll(0.0) is None
    assert not process.busy


def test_it_gives_what_the_same_job_gives_here_and_saves_it(process: TrainingProcess, tmp_path: Path) -> None:
    process.start(job(), 0.0)
    assert process.busy
    answer = ended(process)
    assert isinstance(answer, Result)
    here = carry_out(job()).scorer
    assert np.allclose(answer.scorer.predict_s(job().fresh.rows), here.predict_s(job().fresh.rows), rtol=1e-4)
    memory, warning = remembered(tmp_path / "model.npz")
    assert warning == ""
    assert memory is not None
    assert (len(memory.fresh), len(memory.replay), memory.devices) == (300, 20, ("a30",))
    assert not process.busy


def test_a_process_that_is_killed_costs_its_round_and_the_next_one_has_another(process: TrainingProcess) -> None:
    process.start(job(epochs=100_000), 0.0)
    pid = running(process)
    os.kill(pid, signal.SIGKILL)
    answer = ended(process)
    assert isinstance(answer, str)
    assert "failed" in answer
    assert "tries again" in answer
    process.start(job(), 0.0)
    assert isinstance(ended(process), Result)
    assert process.pid != pid


def test_a_round_that_takes_too_long_is_ended() -> None:
    process = TrainingProcess(limit_s=0.5)
    process.start(job(epochs=100_000), 0.0)
    answer = ended(process)
    process.close()
    assert isinstance(answer, str)
    assert "longer than 0.5 s" in answer


def test_a_job_that_makes_training_fail_is_told_and_the_process_goes_on(process: TrainingProcess) -> None:
    good = job()
    bad = Job(good.fresh[:0], good.replay[:0], good.left, 0, None, (), 1)
    process.start(bad, 0.0)
    answer = ended(process)
    assert isinstance(answer, str)
    assert "ValueError" in answer
    pid = process.pid
    process.start(good, 0.0)
    assert isinstance(ended(process), Result)
    assert process.pid == pid


def test_a_place_where_nothing_can_be_written_costs_only_the_file(tmp_path: Path) -> None:
    process = TrainingProcess(tmp_path / "no" / "where.npz")
    process.start(job(), 0.0)
    answer = ended(process)
    process.close()
    assert isinstance(answer, Result)
    assert "could not be saved" in answer.note


def test_close_ends_the_process_in_the_middle_of_a_round() -> None:
    process = TrainingProcess()
    process.start(job(epochs=100_000), 0.0)
    pid = running(process)
    process.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(RuntimeError):
        process.start(job(), 0.0)


def test_a_file_of_no_use_is_one_line_and_none_at_all_is_none(tmp_path: Path) -> None:
    assert remembered(tmp_path / "none.npz") == (None, "")
    file = tmp_path / "bad.npz"
    file.write_bytes(b"not a model")
    memory, warning = remembered(file)
    assert memory is None
    assert warning.startswith(f"{file}: it can't be read")
    assert "\n" not in warning
