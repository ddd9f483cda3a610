"""Lines of text between a coordinator and the ranks of several groups, read whenever they come.

Over a Unix socket, as in `control`: it reaches into every namespace and never touches the network that is measured.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from headway.errors import DeadlineError, HeadwayError, PeerLostError

_READ = 1 << 16
_STEP_S = 0.1


@dataclass(frozen=True, slots=True)
class Said:
    """One line of one rank; an empty text: it has hung up."""

    group: str
    rank: int
    text: str


class _Caller:
    """One connection; nameless until its first line."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.name: tuple[str, int] | None = None
        self.rest = b""


class RankLines:
    """The coordinator's end. Use as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(1024)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._callers: dict[tuple[str, int], _Caller] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up on everyone. Idempotent."""
        for key in list(self._selector.get_map().values()) if self._listener.fileno() >= 0 else []:
            self._selector.unregister(key.fileobj)
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()
        self._callers.clear()
        self.path.unlink(missing_ok=True)

    def present(self, group: str, rank: int) -> bool:
        """Whether that rank has called and not hung up."""
        return (group, rank) in self._callers

    def send(self, group: str, rank: int, text: str) -> None:
        """One line to one rank. PeerLostError when it is not there."""
        caller = self._callers.get((group, rank))
        if caller is None:
            raise PeerLostError("is not there", rank=rank, operation=f"job {group}")
        caller.connection.setblocking(True)
        try:
            caller.connection.sendall(text.encode() + b"\n")
        except OSError:
            raise PeerLostError("has ended", rank=rank, operation=f"job {group}") from None
        finally:
            caller.connection.setblocking(False)

    def poll(self, wait_s: float = 0.0) -> list[Said]:
        """What has been said since the last call; waits at most `wait_s` for something."""
        said: list[Said] = []
        for key, _ in self._selector.select(wait_s):
            if key.fileobj is self._listener:
                connection, _ = self._listener.accept()
                connection.setblocking(False)
                self._selector.register(connection, selectors.EVENT_READ, _Caller(connection))
            else:
                assert isinstance(key.data, _Caller)
                said += self._read(key.data)
        return said

    def gather(
        self, group: str, ranks: Collection[int], *, limit_s: float, alive: Callable[[], str] = lambda: ""
    ) -> dict[int, str]:
        """One line of each of `ranks` of `group`.

        Args:
            limit_s: how long to wait; DeadlineError names who is late.
            alive: why not all can answer any more; "" while they may.

        Raises:
            HeadwayError: with what `alive` says.
            PeerLostError: a rank has hung up.
        """
        deadline_s = time.monotonic() + limit_s
        told: dict[int, str] = {}
        while len(told) < len(ranks):
            for line in self.poll(_STEP_S):
                if line.group != group or line.rank not in ranks:
                    raise HeadwayError(f"an answer of rank {line.rank} of {line.group}, which was not asked")
                if not line.text:
                    raise PeerLostError(alive() or "has ended", rank=line.rank, operation=group)
                told[line.rank] = line.text
            trouble = "" if len(told) == len(ranks) else alive()
            if trouble:
                raise HeadwayError(trouble)
            if time.monotonic() > deadline_s and len(told) < len(ranks):
                late = min(set(ranks) - told.keys())
                raise DeadlineError(f"rank {late} did not answer within {limit_s:g} s", rank=late, operation=group)
        return told

    def _read(self, caller: _Caller) -> list[Said]:
        try:
            data = caller.connection.recv(_READ)
        except BlockingIOError:
            return []
        except ConnectionError:
            data = b""
        if not data:
            self._selector.unregister(caller.connection)
            caller.connection.close()
            if caller.name is None:
                return []
            del self._callers[caller.name]
            return [Said(*caller.name, "")]
        *lines, caller.rest = (caller.rest + data).split(b"\n")
        if lines and caller.name is None:
            hello: dict[str, object] = json.loads(lines.pop(0))
            caller.name = (str(hello["group"]), int(str(hello["rank"])))
            self._callers[caller.name] = caller
        return [Said(*caller.name, line.decode()) for line in lines] if caller.name is not None else []


class RankLine:
    """A rank's end.

    Args:
        path: of the coordinator's socket.
        group, rank: who is calling.
    """

    def __init__(self, path: str, *, group: str, rank: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        self._reader = self._socket.makefile("rb")
        self.send(json.dumps({"group": group, "rank": rank}))

    def send(self, text: str) -> None:
        """One line. OSError when the coordinator has gone."""
        self._socket.sendall(text.encode() + b"\n")

    def receive(self) -> str:
        """The next line; "" when the coordinator has hung up."""
        try:
            return self._reader.readline().decode().rstrip("\n")
        except ConnectionError:
            return ""

    def close(self) -> None:
        """Hang up."""
        self._reader.close()
        self._socket.close()
