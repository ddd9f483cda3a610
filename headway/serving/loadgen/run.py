"""Sends a load at its times, whatever becomes of earlier requests (open loop), and measures its own lateness.

Bodies are written before the run, as far as they fit in memory, and the rest between two sends, so that writing one
delays nothing. All runs in one event loop: a chunk's time is when the loop gets to it, so a loop that lags would look
like a slow server. `Outcome.lag_s` says how much it lagged. Python's garbage collector rests in the meantime: it takes
a second to look through 10,000 open streams, and a request that ends well leaves nothing for it.
"""

from __future__ import annotations

import asyncio
import gc
import resource
from array import array
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, TypeVar

import aiohttp
import uvloop
from yarl import URL

from headway.errors import HeadwayError
from headway.serving.loadgen.ask import Ask
from headway.serving.loadgen.client import Limits, send
from headway.serving.loadgen.client import session as new_session
from headway.serving.loadgen.row import DONE, Row
from headway.serving.workload.arrival import Arrival

T = TypeVar("T")

READY_BYTES = 256 * 2**20
"""Bodies held ready."""
LAG_EVERY_S = 0.005
FAILURES_KEPT = 5000
"""Failed requests after which their garbage is collected (count): each leaves up to 56 objects in cycles."""
OTHER_FILES = 64
"""Descriptors that the process needs for other things."""


@dataclass(slots=True)
class Progress:
    """How far a run is (counts)."""

    requests: int
    sent: int = 0
    ended: int = 0
    failed: int = 0


@dataclass(slots=True)
class Outcome:
    """What a run came to.

    Attributes:
        rows: of all requests of the load, in its order; those that were not sent have no `sent_s`.
        duration_s: from the begin to the last end.
        lag_s: how late the event loop got to a timer, every `LAG_EVERY_S`.
        stopped: whether it was stopped before its end.
    """

    rows: list[Row]
    duration_s: float = 0.0
    lag_s: array[float] = field(default_factory=lambda: array("d"))
    stopped: bool = False


async def run(
    load: Sequence[Arrival],
    ask: Ask,
    url: URL,
    *,
    limits: Limits,
    stop: asyncio.Event,
    each_second: Callable[[Progress], None] | None = None,
) -> Outcome:
    """Send all of `load`, and wait until each request has ended or run into a limit.

    Args:
        load: in order of time.
        ask: how requests are written.
        url: the server's, without a path.
        limits: of each request.
        stop: set it to stop: open requests are cancelled, and what there is comes back.
        each_second: is told how far it is.
    """
    allow_streams(len(load))
    rows = [_row(number, each) for number, each in enumerate(load)]
    outcome, progress = Outcome(rows), Progress(len(rows))
    async with new_session(limits) as session:
        ready = _Ready(load, ask)
        ready.fill()
        gc.collect()
        gc.disable()
        begin_s = monotonic()
        watchers = [asyncio.create_task(_watch_lag(outcome.lag_s))]
        if each_second is not None:
            watchers.append(asyncio.create_task(_tell(each_second, progress)))
        sender = asyncio.create_task(_send_all(session, url / ask.path.lstrip("/"), ready, rows, begin_s, progress))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((sender, stopping), return_when=asyncio.FIRST_COMPLETED)
            outcome.stopped = not sender.done()
        finally:
            await _ended(sender, stopping, *watchers)
            outcome.duration_s = monotonic() - begin_s
            gc.enable()
        if not outcome.stopped:
            sender.result()
    return outcome


def allow_streams(streams: int) -> None:
    """Let this process have so many connections. HeadwayError where the system allows fewer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = streams + OTHER_FILES
    if soft >= wanted or soft == resource.RLIM_INFINITY:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (ValueError, OSError) as error:
        raise HeadwayError(f"only {soft} connections are allowed to this process (ulimit -n): {error}") from None


class _Ready:
    """Bodies that are written before their time."""

    def __init__(self, load: Sequence[Arrival], ask: Ask) -> None:
        self._load, self._ask = load, ask
        self._bodies: deque[bytes] = deque()
        self._bytes = self._next = 0

    def fill(self) -> None:
        """As many as fit."""
        while self._next < len(self._load) and self._bytes < READY_BYTES:
            self._add()

    def take(self, number: int) -> tuple[bytes, dict[str, str]]:
        """The body and the headers of request `number`; each is asked for once, in order."""
        if not self._bodies:
            self._add()
        body = self._bodies.popleft()
        self._bytes -= len(body)
        return body, self._ask.headers_of(self._load[number])

    def top_up(self) -> None:
        """One more, if there is room."""
        if self._next < len(self._load) and self._bytes < READY_BYTES:
            self._add()

    def _add(self) -> None:
        body = self._ask.body(self._load[self._next])
        self._next += 1
        self._bytes += len(body)
        self._bodies.append(body)


def _row(number: int, arrival: Arrival) -> Row:
    return Row(
        number=number,
        due_s=arrival.at_s,
        input_tokens=arrival.input_tokens,
        output_tokens=arrival.output_tokens,
        session=arrival.session,
    )


async def _send_all(
    session: aiohttp.ClientSession, url: URL, ready: _Ready, rows: list[Row], begin_s: float, progress: Progress
) -> None:
    loop = asyncio.get_running_loop()
    open_: set[asyncio.Task[None]] = set()
    bugs: list[BaseException] = []  # `send` puts what a server does wrong into its row

    def ended(row: Row, task: asyncio.Task[None]) -> None:
        open_.discard(task)
        progress.ended += 1
        if row.end != DONE:
            progress.failed += 1
            if progress.failed % FAILURES_KEPT == 0:
                gc.collect()
        if not task.cancelled() and (error := task.exception()) is not None:
            bugs.append(error)

    try:
        for row in rows:
            if bugs:
                break
            ready.top_up()
            body, headers = ready.take(row.number)
            due_s = begin_s + row.due_s
            while (left_s := due_s - monotonic()) > 0:  # uvloop's timers have whole milliseconds: look again
                await asyncio.sleep(left_s)
            task = loop.create_task(send(session, url, body, headers, row, begin_s=begin_s))
            open_.add(task)
            task.add_done_callback(partial(ended, row))
            progress.sent += 1
            await asyncio.sleep(0)  # a late generator must still let answers in
        while open_ and not bugs:
            await asyncio.wait(open_, return_when=asyncio.FIRST_EXCEPTION)
        if bugs:
            raise bugs[0]
    finally:
        await _ended(*open_)


async def _watch_lag(lag_s: array[float]) -> None:
    while True:
        due_s = monotonic() + LAG_EVERY_S
        await asyncio.sleep(LAG_EVERY_S)
        lag_s.append(max(0.0, monotonic() - due_s))


async def _tell(each_second: Callable[[Progress], None], progress: Progress) -> None:
    while True:
        await asyncio.sleep(1)
        each_second(progress)


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    """Cancel what still runs, and wait for it; its failures are in its rows or come from `result()`."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def in_loop(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine in a new uvloop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())
