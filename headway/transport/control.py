"""Receiver of control messages: small, whole, kept until somebody listens."""

from __future__ import annotations

from collections.abc import Callable

from headway.errors import TransportError
from headway.transport.inflow import Inflow


class ControlReceiver:
    """Hands control messages to the handlers. Progress thread only.

    Args:
        max_bytes: longest message that is accepted.
        on_error: told of an exception in a handler.
    """

    def __init__(self, max_bytes: int, on_error: Callable[[Exception], None]) -> None:
        self._max_bytes = max_bytes
        self._on_error = on_error
        self._handlers: list[Callable[[int, bytes], None]] = []
        self._early: list[tuple[int, bytes]] = []

    def add_handler(self, handler: Callable[[int, bytes], None]) -> None:
        """Also call `handler`; the first one gets what came before it."""
        self._handlers.append(handler)
        early, self._early = self._early, []
        for src, payload in early:
            self.deliver(src, payload)

    def deliver(self, src: int, payload: bytes) -> None:
        """One message has arrived."""
        if not self._handlers:
            self._early.append((src, payload))
        for handler in self._handlers:
            try:
                handler(src, payload)
            except Exception as error:
                self._on_error(error)

    def accept(self, inflow: Inflow, channel: int, tag: int, size: int) -> memoryview | None:
        """See `inflow.Receiver`."""
        if size > self._max_bytes:
            raise TransportError(
                f"rank {inflow.src} announced a control message of {size} bytes; the limit is {self._max_bytes}",
                rank=inflow.src,
            )
        return memoryview(bytearray(size))

    def complete(self, inflow: Inflow, channel: int, tag: int, payload: memoryview) -> None:
        """See `inflow.Receiver`."""
        self.deliver(inflow.src, bytes(payload))
