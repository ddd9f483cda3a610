"""The open channels of a group: which sink takes a message, and what happens to those that nobody takes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from headway.errors import TransportError
from headway.transport.api import Sink
from headway.transport.inflow import Inflow
from headway.transport.loop import ProgressLoop

_LOG = logging.getLogger(__name__)


class Channels:
    """Receiver of bulk messages. Progress thread only.

    Args:
        loop: the progress thread.
        max_message_bytes: longest message that is accepted.
        disown: called with a channel that failed: its queued messages must not be read any more.
    """

    def __init__(self, loop: ProgressLoop, max_message_bytes: int, disown: Callable[[int], None]) -> None:
        self._loop = loop
        self._max_message_bytes = max_message_bytes
        self._disown = disown
        self._sinks: dict[int, Sink] = {}
        self._failed: set[int] = set()
        self._highest = -1
        self._waiting: dict[int, list[Inflow]] = {}
        self.inflows: set[Inflow] = set()
        self.on_stray: Callable[[int, int], None] | None = None

    @property
    def numbers(self) -> list[int]:
        """The open channels, ascending."""
        return sorted(self._sinks)

    def open(self, channel: int, sink: Sink) -> None:
        """Deliver the messages of `channel` to `sink`, also those that wait."""
        if channel <= self._highest:
            raise TransportError(f"channel {channel} was open before; the last one was {self._highest}")
        self._highest = channel
        self._sinks[channel] = sink
        for number in [number for number in self._waiting if number <= channel]:
            for inflow in self._waiting.pop(number):
                self._loop.run_next(inflow.resume)

    def close(self, channel: int) -> None:
        """Expect no more messages for `channel`."""
        self._sinks.pop(channel, None)

    def abandon(self, channel: int) -> Sink | None:
        """Leave the buffers of the channel's sink alone from here on; drop what still comes. The sink, if any."""
        sink = self._sinks.pop(channel, None)
        if sink is not None:
            self._failed.add(channel)
            self._disown(channel)
            for inflow in self.inflows:
                if inflow.channel == channel:
                    inflow.divert()
        return sink

    def fail(self, channel: int, error: TransportError) -> None:
        """`abandon` it, and tell its sink why, once."""
        sink = self.abandon(channel)
        if sink is None:
            return
        try:
            sink.failed(error)
        except Exception:
            _LOG.exception("the sink of channel %d raised while it was told of: %s", channel, error)

    def fail_all(self, error: TransportError) -> None:
        """`fail` for every open channel."""
        for channel in self.numbers:
            self.fail(channel, error)

    def accept(self, inflow: Inflow, channel: int, tag: int, size: int) -> memoryview | None:
        """See `inflow.Receiver`."""
        src = inflow.src
        if size > self._max_message_bytes:
            raise TransportError(
                f"rank {src} announced a message of {size} bytes; the limit is {self._max_message_bytes}", rank=src
            )
        sink = self._sinks.get(channel)
        if sink is None:
            if channel > self._highest:
                self._waiting.setdefault(channel, []).append(inflow)
                return None
            if channel not in self._failed and self.on_stray is not None:
                self._loop.run_next(partial(self.on_stray, src, channel))
            elif channel not in self._failed:
                raise TransportError(f"rank {src} sent to channel {channel} after it was complete", rank=src)
            return memoryview(bytearray(size))
        try:
            view = sink.buffer_for(src, tag, size)
            if len(view) != size or view.readonly:
                raise TransportError(f"the sink gave {len(view)} bytes for a message of {size} from rank {src}")
        except Exception as error:
            self._broke(channel, error)
            return memoryview(bytearray(size))
        return view

    def complete(self, inflow: Inflow, channel: int, tag: int, payload: memoryview) -> None:
        """See `inflow.Receiver`."""
        sink = self._sinks.get(channel)
        if sink is not None:
            try:
                sink.received(inflow.src, tag, payload)
            except Exception as error:
                self._broke(channel, error)

    def sent(self, dst: int, channel: int, tag: int) -> None:
        """A message has left user space."""
        sink = self._sinks.get(channel)
        if sink is not None:
            try:
                sink.sent(dst, tag)
            except Exception as error:
                self._broke(channel, error)

    def _broke(self, channel: int, error: Exception) -> None:
        if isinstance(error, TransportError):
            self.fail(channel, error)
            return
        _LOG.error("the sink of channel %d raised", channel, exc_info=error)
        wrapped = TransportError(f"{type(error).__name__} while handling a message: {error}")
        wrapped.__cause__ = error
        self.fail(channel, wrapped)
