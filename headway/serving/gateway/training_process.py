"""The learned policy's trainer as a process of its own, so that no request ever waits for a round of training.

The process is started with `begin`, at the latest at the first round, and kept for the next ones. A thread here hands
it the job and waits for the answer, so that neither is on the event loop. When the process dies or takes too long that
round is lost, `poll` says so, and the next round starts another process. It runs at low priority, with one BLAS thread,
in a process group of its own, so that a terminal's interrupt reaches only the gateway; not in a session of its own,
since Linux weighs sessions against each other before it looks at niceness (sched(7), autogroups). It ends with the
gateway, however that ends: its input closes.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO

from headway.serving.learned.samples import Samples
from headway.serving.learned.storage import Memory, MemoryFormatError, from_bytes, to_bytes
from headway.serving.learned.trainer import Job, Result, carry_out

ROUND_LIMIT_S = 120.0
"""A round takes half a second on an idle core; at low priority on a busy machine it may take long, but not for ever."""

_NICENESS = 15
_ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class TrainingProcess:
    """A `Trainer` that carries out rounds in a background process.

    Args:
        path: where each new model and its samples are saved; None: nowhere. Where that fails the model is used all the
            same, and the result says why.
        limit_s: longest that a round may take, with the process's start, seconds.
    """

    def __init__(self, path: Path | None = None, *, limit_s: float = ROUND_LIMIT_S) -> None:
        self._path, self._limit_s = path, limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._answer: Result | str = ""
        self._closed = False

    def start(self, job: Job, now_s: float) -> None:
        """Hand a job over. Returns at once. RuntimeError while there is another, or after `close`."""
        if self.busy or self._closed:
            raise RuntimeError("a round of training may not begin while another lasts, or after close")
        self._thread = threading.Thread(target=self._round, args=(job,), name="training", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a round has begun whose end was not yet told."""
        return self._thread is not None

    def begin(self) -> None:
        """Start the process now, not at the first round: while it starts, no other thread of this process runs.

        Raises OSError where it cannot be started.
        """
        self._running()

    @property
    def pid(self) -> int | None:
        """Of the process; None before `begin` or the first round, and after a round that failed."""
        process = self._process
        return process.pid if process is not None else None

    def poll(self, now_s: float) -> Result | str | None:
        """What came of the round, once; None while it lasts."""
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread = None
        return self._answer

    def close(self) -> None:
        """End the process; a round under way is lost. Takes 5 s at most."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()
        if self._thread is not None:
            self._thread.join(5.0)
        if self._process is not None:
            self._end(self._process)

    def _round(self, job: Job) -> None:
        """On the thread: a job's way to the process and back."""
        process = None
        late = threading.Event()
        try:
            process = self._running()
            limit = threading.Timer(self._limit_s, _expire, (process, late))
            limit.daemon = True
            limit.start()
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                pickle.dump((job, self._path), process.stdin)
                process.stdin.flush()
                self._answer = pickle.load(process.stdout)
            finally:
                limit.cancel()
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            code = self._end(process) if process is not None else None
            why = f"its process ended with code {code}" if code is not None else str(error)
            if late.is_set():
                why = f"it took longer than {self._limit_s:g} s"
            self._answer = f"a round of training failed: {why}; the next round tries again"

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        if self._process is not None:
            self._end(self._process)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headway.serving.gateway.training_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **_ONE_THREAD},
            process_group=0,
        )
        return self._process

    def _end(self, process: subprocess.Popen[bytes]) -> int | None:
        """Kill it if it still runs, and free its pipes: its exit code."""
        self._process = None
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2.0)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        return process.returncode


def _expire(process: subprocess.Popen[bytes], late: threading.Event) -> None:
    late.set()
    process.kill()


def remembered(path: Path) -> tuple[Memory | None, str]:
    """What was saved at `path`: None where nothing was, or where it is of no use, and then why, in a line."""
    try:
        return from_bytes(path.read_bytes()), ""
    except FileNotFoundError:
        return None, ""
    except (OSError, MemoryFormatError) as error:
        what = error.strerror if isinstance(error, OSError) else str(error)
        return None, f"{path}: {what}; the learned policy starts without what it knew"


def save(path: Path, memory: Memory) -> None:
    """Replace the file at once, so that a reader never sees half of it. OSError where that can't be done."""
    beside = path.with_name(path.name + ".new")
    beside.write_bytes(to_bytes(memory))
    os.replace(beside, path)


def _serve(jobs: IO[bytes], answers: IO[bytes]) -> None:
    """In the process: one answer to each job, until no more can come."""
    while True:
        try:
            job, path = pickle.load(jobs)
        except EOFError:
            return
        pickle.dump(_answer(job, path), answers)
        answers.flush()


def _answer(job: Job, path: Path | None) -> Result | str:
    try:
        result = carry_out(job)
    except Exception as error:  # whatever it is, the gateway must hear of it
        return f"a round of training failed: {type(error).__name__}: {error}; the next round tries again"
    if path is None:
        return result
    replay = Samples.joined(job.replay, result.picked)
    try:
        save(path, Memory(job.fresh, replay, job.devices, result.scorer))
    except OSError as error:
        return Result(result.scorer, result.picked, note=f"the model could not be saved: {path}: {error.strerror}")
    return result


def main() -> None:
    """Serve on the standard streams; what anything prints goes to the error stream, not between the answers."""
    with contextlib.suppress(OSError):
        if sys.platform == "linux":  # a gateway may have been given a real-time policy, which children inherit
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        os.nice(_NICENESS)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with contextlib.suppress(BrokenPipeError):
        _serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
