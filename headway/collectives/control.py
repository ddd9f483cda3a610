"""The five kinds of small messages that the ranks of a group exchange beside the data.

One byte of kind, then JSON. A message that doesn't parse is a protocol error that names its sender.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from headway.collectives.agreement import EpochReport, Ruling
from headway.collectives.liveness import LivenessMessage
from headway.collectives.sameness import SamenessMessage
from headway.errors import TransportError


class FailureNotice(BaseModel):
    """One rank tells the others that the group is broken, and whom it blames."""

    model_config = ConfigDict(frozen=True)

    blamed_rank: int | None
    lost: bool
    what: str


Message = EpochReport | Ruling | LivenessMessage | FailureNotice | SamenessMessage

_KINDS: dict[
    bytes, type[EpochReport] | type[Ruling] | type[LivenessMessage] | type[FailureNotice] | type[SamenessMessage]
] = {
    b"E": EpochReport,
    b"R": Ruling,
    b"L": LivenessMessage,
    b"F": FailureNotice,
    b"S": SamenessMessage,
}


class ControlChannel(Protocol):
    """The part of a transport that carries control messages."""

    @property
    def rank(self) -> int:
        """This rank."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    def send_control(self, dst: int, payload: bytes) -> None:
        """See StreamTransport."""
        ...

    def on_control(self, handler: Callable[[int, bytes], None]) -> None:
        """See StreamTransport."""
        ...

    def run_soon(self, function: Callable[[], None]) -> None:
        """See StreamTransport."""
        ...


def encode_message(message: Message) -> bytes:
    """A message as bytes."""
    for kind, model in _KINDS.items():
        if isinstance(message, model):
            return kind + message.model_dump_json().encode()
    raise TypeError(type(message).__name__)


def decode_message(payload: bytes, *, src: int) -> Message:
    """The message in `payload`; TransportError names the sender of one that does not parse."""
    model = _KINDS.get(payload[:1])
    if model is None:
        raise TransportError(f"control message of unknown kind {payload[:1]!r} from rank {src}", rank=src)
    try:
        return model.model_validate_json(payload[1:])
    except ValidationError as error:
        first = error.errors()[0]
        raise TransportError(
            f"control message from rank {src} does not parse: {model.__name__} {first['loc']}: {first['msg']}", rank=src
        ) from None


class Control:
    """Sends messages, to this rank too, and hands arriving ones to `handler` on the progress thread."""

    def __init__(self, channel: ControlChannel, handler: Callable[[int, Message], None]) -> None:
        self._channel = channel
        self._handler = handler
        channel.on_control(lambda src, payload: handler(src, decode_message(payload, src=src)))

    def send(self, dst: int, message: Message) -> None:
        """Send one message; to oneself it takes the same way round through the progress thread."""
        if dst == self._channel.rank:
            self._channel.run_soon(lambda: self._handler(dst, message))
        else:
            self._channel.send_control(dst, encode_message(message))

    def broadcast(self, message: Message, *, but: frozenset[int] = frozenset()) -> None:
        """Send one message to every rank, this one included, except `but`."""
        for rank in range(self._channel.size):
            if rank not in but:
                self.send(rank, message)
