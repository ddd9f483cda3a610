"""What an executor may ask of a transport.

There are two ways to move bytes, because there are two kinds of network below:

- `Transport`: matched sends and receives, as every torch backend has them (gloo, NCCL, MPI). The executor in
  rounds runs on it.
- `StreamTransport`: one-sided messages into a sink that says where each goes, as our own sockets have them. The
  pipelined executor runs on it: it reduces while it receives, and needs no posting of receives.

The TCP driver is both, the process-group driver is the first. Every rank is a rank *in the group*; a transport
serves one group. Ranks that the transport blames in errors are ranks in the group too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headway.errors import TransportError
from headway.observe.samples import FlowSample


class Transfer(Protocol):
    """One send or receive under way."""

    def wait(self, timeout_s: float) -> FlowSample:
        """Block until it is done. DeadlineError names the peer; PeerLostError when the peer is gone.

        A send is done when the buffer may be reused; its sample then tells what is known so far.
        """
        ...

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        ...


class Transport(Protocol):
    """Matched point-to-point messages between the ranks of one group. Threads may share it."""

    @property
    def rank(self) -> int:
        """This process's rank in the group."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks in the group."""
        ...

    def send(self, peer: int, tag: int, buffer: memoryview) -> Transfer:
        """Send `buffer` to `peer` under `tag`. Messages with the same (peer, tag) arrive in order."""
        ...

    def receive(self, peer: int, tag: int, buffer: memoryview) -> Transfer:
        """Receive exactly len(buffer) bytes from `peer` under `tag`; another length is a TransportError."""
        ...

    def flow_samples(self) -> list[FlowSample]:
        """What each outgoing flow did since the last call; flows that did nothing are left out."""
        ...

    def close(self) -> None:
        """Release sockets and threads. Idempotent; pending transfers fail with TransportError."""
        ...


class Sink(Protocol):
    """Whoever takes the messages of one channel (one collective operation). Called on the progress thread only.

    The calls are never nested in a call that the sink makes (`sent` does not come from inside `send_message`).
    A sink that raises fails its channel with the exception as cause.
    """

    def buffer_for(self, src: int, tag: int, size: int) -> memoryview:
        """Where the payload of `size` bytes from `src` under `tag` goes. Raise TransportError to refuse it."""
        ...

    def received(self, src: int, tag: int, buffer: memoryview) -> None:
        """The payload is complete in `buffer`, the object that `buffer_for` returned."""
        ...

    def sent(self, dst: int, tag: int) -> None:
        """A message given to `send` has left user space: its buffer may be reused."""
        ...

    def failed(self, error: TransportError) -> None:
        """The channel cannot go on (peer lost, protocol broken, closed). Called once; no other call follows.

        Its buffers are free: the transport reads and writes none of them after this. Later messages of the channel
        are read and dropped.
        """
        ...


class StreamTransport(Protocol):
    """One-sided messages, delivered on one progress thread per process group."""

    @property
    def streams(self) -> int:
        """Most connections that messages to one peer may be spread over; 1 unless asked otherwise."""
        ...

    @property
    def rank(self) -> int:
        """This process's rank in the group."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks in the group."""
        ...

    def width(self, dst: int) -> int:
        """How many connections to `dst` are in use now, at most `streams`. Progress thread only."""
        ...

    def run_soon(self, function: Callable[[], None]) -> None:
        """Run `function` on the progress thread, soon. May be called from any thread; order is kept."""
        ...

    def run_at(self, when_s: float, function: Callable[[], None]) -> None:
        """Run `function` on the progress thread at time.monotonic() >= `when_s`. Progress thread only."""
        ...

    def open_channel(self, channel: int, sink: Sink) -> None:
        """Deliver the messages of `channel` to `sink`. Progress thread only.

        Channels are numbers that grow by one with each operation of the group, the same on every rank. A message
        of a channel that is not open yet waits in its connection (its sender feels TCP's back-pressure) and is
        delivered when the channel opens. Within a connection channels never go backwards.
        """
        ...

    def close_channel(self, channel: int) -> None:
        """No more messages are expected for `channel`; for a late one see `on_stray`. Progress thread only."""
        ...

    def abandon_channel(self, channel: int) -> None:
        """Give `channel` up before its end. As after `Sink.failed`: its buffers are free, later messages are dropped.

        Progress thread only.
        """
        ...

    def send_message(self, dst: int, channel: int, tag: int, payload: memoryview) -> None:
        """Queue one message; connects on first use. `payload` must not change until `Sink.sent`. Progress thread only.

        Messages to one `dst` leave in the order of the calls; with several `streams` they may overtake each other.
        `tag` is any unsigned 64-bit number, `channel` an unsigned 32-bit number.
        """
        ...

    def reroute(self, dst: int) -> None:
        """Let the next message to `dst` open a new connection, which a network with several paths may put on another
        one (ECMP hashes the port). Between operations only; does nothing while something is queued. Progress thread.
        """
        ...

    def send_control(self, dst: int, payload: bytes) -> None:
        """Send a small control message on a connection apart from bulk data. Any thread."""
        ...

    def on_control(self, handler: Callable[[int, bytes], None]) -> None:
        """Call handler(src, payload) on the progress thread for each control message that arrives."""
        ...

    def on_peer_lost(self, handler: Callable[[int, str], None]) -> None:
        """Call handler(rank, what happened) on the progress thread once for each peer whose connection broke.

        The transport itself has then called `failed` on every open channel with an error that names the rank, and
        does so for every channel opened later: a group without one of its ranks computes nothing.
        """
        ...

    def on_peer_left(self, handler: Callable[[int], None]) -> None:
        """Call handler(rank) on the progress thread once for each peer that closed its transport in good order.

        By then everything that it sent was delivered. That is no error for a rank that needs nothing more from it;
        an operation that still waits for it will wait in vain, and only the executor knows which do.
        """
        ...

    def on_stray(self, handler: Callable[[int, int], None]) -> None:
        """Call handler(src, channel) on the progress thread for each message of a channel that is complete here.

        Such a message is dropped. Without a handler it is a protocol error, and its sender is lost.
        """
        ...

    def flow_samples(self) -> list[FlowSample]:
        """What each outgoing flow did since the last call; idle flows are left out. Progress thread only."""
        ...

    def close(self) -> None:
        """Stop the progress thread and close every socket. Idempotent; open channels get `failed`."""
        ...
