"""How the coordinator talks to its ranks: JSON lines over a Unix socket.

A Unix socket with a path reaches into every network namespace of the machine, so that the bench's own messages never
touch the network that is measured, and idle ranks sleep in a read instead of polling.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from headway.bench.worker import PreparePart, Reply, RunPart
from headway.errors import DeadlineError, HeadwayError, PeerLostError


class Line:
    """One connected end: lines of text in, lines of text out."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._rest = b""

    def send(self, text: str) -> None:
        """Send one line."""
        self._socket.sendall(text.encode() + b"\n")

    def receive(self, *, deadline_s: float | None = None) -> str:
        """The next line; "" when the other end has closed. TimeoutError past time.monotonic() >= deadline_s."""
        while b"\n" not in self._rest:
            if deadline_s is not None:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError
                self._socket.settimeout(left_s)
            else:
                self._socket.settimeout(None)
            try:
                piece = self._socket.recv(65536)
            except ConnectionError:
                return ""
            if not piece:
                return ""
            self._rest += piece
        text, self._rest = self._rest.split(b"\n", 1)
        return text.decode()

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def connect(path: str, *, family: str, rank: int) -> Line:
    """A rank's end of the line to the coordinator at `path`."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(path)
    line = Line(connection)
    line.send(json.dumps({"family": family, "rank": rank}))
    return line


class Switchboard:
    """The coordinator's end of the lines to all ranks of all families. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(256)
        self._lines: dict[tuple[str, int], Line] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up on everyone. Idempotent."""
        for line in self._lines.values():
            line.close()
        self._lines.clear()
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    def gather_family(self, family: str, ranks: int, *, timeout_s: float, alive: Callable[[], str]) -> None:
        """Wait until all `ranks` of `family` have called.

        Args:
            alive: says why the family cannot come any more; "" while it may.

        Raises:
            HeadwayError: when the family died.
            DeadlineError: after `timeout_s`; names the ranks that are missing.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            missing = [rank for rank in range(ranks) if (family, rank) not in self._lines]
            if not missing:
                return
            reason = alive()
            if reason:
                raise HeadwayError(f"{family}: {reason}")
            if time.monotonic() > deadline_s:
                names = ", ".join(map(str, missing))
                raise DeadlineError(
                    f"rank {names} did not start within {timeout_s:.0f} s", rank=missing[0], operation=family
                )
            self._listener.settimeout(0.2)
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            line = Line(connection)
            hello = json.loads(line.receive(deadline_s=deadline_s))
            self._lines[(str(hello["family"]), int(hello["rank"]))] = line

    def ask(self, family: str, ranks: int, part: PreparePart | RunPart, *, timeout_s: float) -> Sequence[Reply]:
        """Give `part` to every rank of `family` and return their replies in the order of ranks.

        PeerLostError or DeadlineError name the rank that ended or did not answer in time.
        """
        what = f"{part.do} of {part.backend}"
        text = part.model_dump_json()
        for rank in range(ranks):
            try:
                self._lines[(family, rank)].send(text)
            except OSError:
                raise PeerLostError(f"rank {rank} has ended", rank=rank, operation=what) from None
        deadline_s = time.monotonic() + timeout_s
        replies: list[Reply] = []
        for rank in range(ranks):
            try:
                answer = self._lines[(family, rank)].receive(deadline_s=deadline_s)
            except TimeoutError:
                raise DeadlineError(
                    f"rank {rank} did not answer within {timeout_s:.0f} s", rank=rank, operation=what
                ) from None
            if not answer:
                raise PeerLostError(f"rank {rank} has ended", rank=rank, operation=what)
            replies.append(Reply.model_validate_json(answer))
        return replies
