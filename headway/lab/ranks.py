"""Processes on hosts, each a rank with torchrun's environment; the first failure ends all."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headway.lab.signals import Deferred

MASTER_PORT = 29500
GRACE_S = 5.0
_READ = 1 << 16
_TICK_S = 0.1


class HostLike(Protocol):
    """What is needed of a host."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def address(self) -> str:
        """Its IPv4 address."""
        ...


class LabLike(Protocol):
    """What is needed of a lab."""

    @property
    def hosts(self) -> Sequence[HostLike]:
        """The hosts, in rank order."""
        ...

    def popen(
        self, host: str | int, argv: Sequence[str], *, env: Mapping[str, str] | None = ..., stdout: int | None = ...,
        stderr: int | None = ..., cwd: str | Path | None = ...,
    ) -> subprocess.Popen[bytes]:  # fmt: skip
        """Start a command on a host."""
        ...


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended. `failure` says who failed and how, or is empty; `codes` has every process's exit status."""

    failure: str
    codes: tuple[int, ...]
    duration_s: float

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failure


@dataclass(frozen=True, slots=True)
class RankProcess:
    """One process of a run.

    Attributes:
        host: index of its host.
        argv: what it runs.
        env: is added to the host's environment.
        label: stands before its lines, and names it to `on_line`.
        name: of it, in a failure: "rank 1 on host3".
    """

    host: int
    argv: Sequence[str]
    env: Mapping[str, str]
    label: str
    name: str


def rank_environment(hosts: Sequence[HostLike], rank: int, *, port: int = MASTER_PORT) -> dict[str, str]:
    """What torchrun sets for one rank of a group, and what makes output and threads behave as under it.

    Args:
        hosts: the host of each rank; ranks of one host are neighbours.
        rank: which one.
        port: of the group's store.
    """
    size = str(len(hosts))
    nodes = list(dict.fromkeys(host.name for host in hosts))
    here = [other for other, host in enumerate(hosts) if host.name == hosts[rank].name]
    return {
        "RANK": str(rank), "WORLD_SIZE": size,
        "LOCAL_RANK": str(here.index(rank)), "LOCAL_WORLD_SIZE": str(len(here)),
        "GROUP_RANK": str(nodes.index(hosts[rank].name)), "GROUP_WORLD_SIZE": str(len(nodes)),
        "ROLE_RANK": str(rank), "ROLE_WORLD_SIZE": size, "ROLE_NAME": "default",
        "MASTER_ADDR": hosts[0].address, "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PYTHONUNBUFFERED": os.environ.get("PYTHONUNBUFFERED", "1"),
    }  # fmt: skip


class _Output:
    """Cuts one stream of one rank into lines."""

    def __init__(self, label: str, error: bool, emit: Callable[[str, str, bool], None]) -> None:
        self.label, self.error, self.emit, self.rest = label, error, emit, b""

    def feed(self, data: bytes) -> None:
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self.emit(self.label, line.decode(errors="replace"), self.error)

    def finish(self) -> None:
        if self.rest:
            self.emit(self.label, self.rest.decode(errors="replace"), self.error)
            self.rest = b""


def one_on_each(
    hosts: Sequence[HostLike], argv: Sequence[str], env: Mapping[str, str] | None = None
) -> tuple[RankProcess, ...]:
    """The same command on every host, as one group."""
    return tuple(
        RankProcess(
            rank, argv, {**rank_environment(hosts, rank), **(env or {})}, host.name, f"rank {rank} on {host.name}"
        )
        for rank, host in enumerate(hosts)
    )


def run_processes(
    lab: LabLike, wanted: Sequence[RankProcess], *, on_line: Callable[[str, str], None] | None,
    on_tick: Callable[[], None], echo: bool, limit_s: float | None, enough: Callable[[], bool] = lambda: False,
) -> RunResult:  # fmt: skip
    """See `Lab.run_processes`. An exception (Ctrl-C, or one from a callback) ends all too before it goes on."""

    def emit(label: str, line: str, error: bool) -> None:
        if echo:
            stream = sys.stderr if error else sys.stdout
            stream.write(f"[{label}] {line}\n")
            stream.flush()
        if on_line is not None:
            on_line(label, line)

    begun = time.monotonic()
    processes: list[subprocess.Popen[bytes]] = []
    failure = ""
    with Deferred() as signals, selectors.DefaultSelector() as selector:

        def tick() -> None:
            signals.check()
            on_tick()

        try:
            for each in wanted:
                process = lab.popen(each.host, each.argv, env=each.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                processes.append(process)
                for stream, error in ((process.stdout, False), (process.stderr, True)):
                    assert stream is not None
                    selector.register(stream, selectors.EVENT_READ, _Output(each.label, error, emit))
            running = {each.name: process for each, process in zip(wanted, processes, strict=True)}
            failure = _watch(running, selector, tick, enough, None if limit_s is None else begun + limit_s)
            if running and not failure:
                _drain(selector)  # of those that are ended now, what they complain of each other is of no interest
                _end(processes)
            else:
                _end(processes)
                _drain(selector)
        finally:
            _end(processes)
            for process in processes:
                for pipe in (process.stdout, process.stderr):
                    if pipe is not None:
                        pipe.close()
    codes = tuple(process.returncode for process in processes)
    return RunResult(failure, codes, time.monotonic() - begun)


def _watch(
    running: dict[str, subprocess.Popen[bytes]], selector: selectors.BaseSelector, on_tick: Callable[[], None],
    enough: Callable[[], bool], deadline: float | None,
) -> str:  # fmt: skip
    """Pass output on until all have ended well, one has failed, or time is up; what failed, in words.

    What has ended is taken out of `running`.
    """
    while running:
        _pump(selector, _TICK_S)
        on_tick()
        for name, process in list(running.items()):
            code = process.poll()
            if code is None:
                continue
            del running[name]
            if code != 0:
                return f"{name} {_how(code)}"
        if enough():
            return ""
        if deadline is not None and time.monotonic() > deadline:
            return f"time is up, and {', '.join(running)} had not ended"
    return ""


def _how(code: int) -> str:
    if code > 0:
        return f"exited with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _pump(selector: selectors.BaseSelector, wait_s: float) -> bool:
    """Read what is there; whether anything was."""
    if not selector.get_map():
        time.sleep(wait_s)
        return False
    ready = selector.select(wait_s)
    for key, _ in ready:
        output = key.data
        assert isinstance(output, _Output)
        data = os.read(key.fd, _READ)
        if data:
            output.feed(data)
        else:
            output.finish()
            selector.unregister(key.fileobj)
    return bool(ready)


def _drain(selector: selectors.BaseSelector) -> None:
    """What was written before the end."""
    while selector.get_map() and _pump(selector, 0):
        pass
    for key in list(selector.get_map().values()):
        assert isinstance(key.data, _Output)
        key.data.finish()


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask the ranks that still run to end, then kill what is left of them and of their children."""
    _signal(processes, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    _signal(processes, signal.SIGKILL, also_ended=True)
    for process in processes:
        process.wait()


def _signal(processes: Sequence[subprocess.Popen[bytes]], number: int, *, also_ended: bool = False) -> None:
    for process in processes:
        ended = process.poll() is not None
        # After its end a group's number stays taken while the group has members; a process that has the number
        # itself is then somebody else's.
        if not ended or (also_ended and not Path(f"/proc/{process.pid}").exists()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)  # its own group: see Lab.popen
