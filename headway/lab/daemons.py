"""The two programs that serve a lab while it is up: the relay and the background load."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from headway.lab import kernel
from headway.lab.effects import LoadLeg
from headway.lab.kernel import LabError
from headway.lab.topology import End, LinkId, LinkSettings, Topology

ANSWER_LIMIT_S = 20.0


class _Daemon:
    """A program that writes "ready", then answers each line with "ok", and ends when its input ends."""

    def __init__(self, script: str, argument: str, *, detached: bool = False) -> None:
        self.name = f"{script}.py"
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the daemon
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name(self.name)), argument],
            stdin=subprocess.DEVNULL if detached else subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            start_new_session=True, bufsize=0,
        )  # fmt: skip
        try:
            self._expect("ready")
        except BaseException:
            self.close()
            raise

    def order(self, order: dict[str, object]) -> None:
        """Send one order and wait for its answer. LabError with what the program says."""
        if self._process.stdin is None:
            raise LabError(f"{self.name} was left running on its own and takes no orders")
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
        except BrokenPipeError:
            raise self._died() from None
        self._expect("ok")

    def _expect(self, word: str) -> None:
        out = self._process.stdout
        assert out is not None
        deadline, line = time.monotonic() + ANSWER_LIMIT_S, b""
        while not line.endswith(b"\n"):
            if not select.select([out], (), (), max(0.0, deadline - time.monotonic()))[0]:
                raise LabError(f"{self.name} did not answer within {ANSWER_LIMIT_S:g} s")
            data = out.read(1)
            if not data:
                raise self._died()
            line += data
        if line.decode().strip() != word:
            raise LabError(f"{self.name}: {line.decode().strip()}")

    def check(self) -> None:
        """LabError when it has ended."""
        if self._process.poll() is not None and not self._errors.closed:
            raise self._died()

    def _died(self) -> LabError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2)
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return LabError(f"{self.name} ended ({lines[-1] if lines else f'status {self._process.returncode}'})")

    def close(self) -> None:
        """End the program. Idempotent."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def let_go(self) -> None:
        """Leave a detached program running."""
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()
        self._process.returncode = 0  # nobody waits for it: it is not ours any more


class RelayDaemon(_Daemon):
    """The relay of a lab; it makes the relayed cables when it starts."""

    def __init__(self, topology: Topology, prefix: str, *, detached: bool) -> None:
        ids = {link.end: link.id for link in topology.links}
        directory = kernel.namespace_directory()

        def place(end: End) -> list[str]:
            return [str(directory / (prefix + end.namespace)), end.interface]

        pairs = [
            {"up": str(ids[c.a]), "down": str(ids[c.b]), "near": place(c.a), "far": place(c.b)}
            for c in topology.cables
            if c.relayed
        ]
        delays = {str(link.id): link.delay_s for link in topology.links if link.relayed}
        home = str(directory / (prefix + topology.outs[0][0]))
        config = {"home": home, "pairs": pairs, "delays": delays, "detached": detached}
        super().__init__("relay", json.dumps(config), detached=detached)

    def set_link(self, link: LinkId, settings: LinkSettings) -> None:
        """Change a link's delay, jitter and loss."""
        self.order(
            {"link": str(link), "delay_s": settings.delay_s, "jitter_s": settings.jitter_s, "loss": settings.loss}
        )


class LoadDaemon(_Daemon):
    """The background load of a lab."""

    def __init__(self, prefix: str, home: str) -> None:
        self._directory = kernel.namespace_directory()
        super().__init__("load", str(self._directory / (prefix + home)))

    def start(self, key: str, legs: Sequence[LoadLeg]) -> None:
        """Begin a load; it runs when this returns."""
        there = [
            {**asdict(leg), "source": str(self._directory / leg.source), "sink": str(self._directory / leg.sink)}
            for leg in legs
        ]
        self.order({"start": key, "legs": there})

    def stop(self, key: str) -> None:
        """End a load; nothing more is sent when this returns."""
        self.order({"stop": key})
