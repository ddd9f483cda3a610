"""Background load. A script of its own: it needs nothing but Python.

    load.py HOME           HOME is the namespace file of the lab in which the process stays

It writes "ready", then takes lines of JSON, {"start": KEY, "legs": [LEG, ...]} and {"stop": KEY}, and answers each
with "ok". A leg is {"source": FILE, "sink": FILE, "sink_address": ADDRESS, "device": INTERFACE, "rate_Bps": x,
"flows": n}: UDP at a rate counted on the wire, or n TCP flows that send as much as they get. It ends when its
input ends. UDP leaves in bursts of about 2 ms through segmentation offload, and nobody reads what arrives.
"""

import contextlib
import ctypes
import json
import os
import select
import socket
import sys
import time

CLONE_NEWNET = 0x40000000
UDP_SEGMENT, UDP_GRO, SO_BINDTODEVICE, TCP_NOTSENT_LOWAT = 103, 104, 25, 25
PAYLOAD, WIRE = 1472, 1514
BURST_S, MOST_SEGMENTS = 0.002, 44
LATEST_S = 0.05
CHUNK = bytes(1 << 18)

libc = ctypes.CDLL(None, use_errno=True)


def enter(path: str) -> None:
    """Move to a network namespace."""
    fd = os.open(path, os.O_RDONLY)
    if libc.setns(fd, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"cannot enter {path}")
    os.close(fd)


class Udp:
    """One paced sender, and a socket at the other end that lets everything fall."""

    def __init__(self, leg: dict[str, object]) -> None:
        enter(str(leg["sink"]))
        self.sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.sink.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        self.sink.bind((str(leg["sink_address"]), 0))
        enter(str(leg["source"]))
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_BINDTODEVICE, str(leg["device"]).encode())
        self.socket.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, PAYLOAD)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self.socket.setblocking(False)
        self.socket.connect(self.sink.getsockname())
        rate = float(str(leg["rate_Bps"]))
        segments = min(MOST_SEGMENTS, max(1, round(rate * BURST_S / WIRE)))
        self.data = bytes(segments * PAYLOAD)
        self.period = segments * WIRE / rate
        self.due = time.monotonic()

    def run(self, now: float) -> None:
        """Send what is due; after a long pause the schedule starts afresh."""
        if self.due < now - LATEST_S:
            self.due = now
        while self.due <= now:
            # a full socket buffer, or a link that is down, takes nothing: that burst is lost
            with contextlib.suppress(OSError):
                self.socket.send(self.data)
            self.due += self.period

    def close(self) -> None:
        """Close both ends."""
        self.socket.close()
        self.sink.close()


class Tcp:
    """One greedy flow."""

    def __init__(self, leg: dict[str, object]) -> None:
        enter(str(leg["sink"]))
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1 << 16)
            listener.bind((str(leg["sink_address"]), 0))
            listener.listen(1)
            listener.settimeout(10)
            enter(str(leg["source"]))
            self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self.socket.setsockopt(socket.SOL_SOCKET, SO_BINDTODEVICE, str(leg["device"]).encode())
            self.socket.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, 1 << 17)
            self.socket.settimeout(10)
            self.socket.connect(listener.getsockname())
            self.sink = listener.accept()[0]
        self.socket.setblocking(False)
        self.sink.setblocking(False)

    def send(self) -> None:
        """As much as it takes."""
        with contextlib.suppress(BlockingIOError):
            self.socket.send(CHUNK)

    def drop(self) -> None:
        """Take what has arrived without copying it."""
        with contextlib.suppress(BlockingIOError):
            self.sink.recv(1 << 20, socket.MSG_TRUNC)

    def close(self) -> None:
        """Close both ends at once, without sending what still waits."""
        for end in (self.socket, self.sink):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            end.close()


class Loads:
    """All loads that run, by key."""

    def __init__(self, home: str) -> None:
        self.home = home
        self.udp: dict[str, list[Udp]] = {}
        self.tcp: dict[str, list[Tcp]] = {}
        self.poll = select.epoll()
        self.calls: dict[int, object] = {}

    def start(self, key: str, legs: list[dict[str, object]]) -> None:
        """Begin a load."""
        self.udp[key] = [Udp(leg) for leg in legs if not leg["flows"]]
        self.tcp[key] = [Tcp(leg) for leg in legs for _ in range(int(str(leg["flows"])))]
        for flow in self.tcp[key]:
            self.calls[flow.socket.fileno()] = flow.send
            self.calls[flow.sink.fileno()] = flow.drop
            self.poll.register(flow.socket.fileno(), select.EPOLLOUT)
            self.poll.register(flow.sink.fileno(), select.EPOLLIN)
        enter(self.home)

    def stop(self, key: str) -> None:
        """End a load."""
        for sender in self.udp.pop(key, []):
            sender.close()
        for flow in self.tcp.pop(key, []):
            del self.calls[flow.socket.fileno()], self.calls[flow.sink.fileno()]
            self.poll.unregister(flow.socket.fileno())
            self.poll.unregister(flow.sink.fileno())
            flow.close()

    def serve(self) -> None:
        """Send and take orders until the end of the input."""
        control, pending = sys.stdin.fileno(), b""
        while True:
            due = [sender.due for senders in self.udp.values() for sender in senders]
            wait = max(0.0, min(due) - time.monotonic()) if due else None
            ready = select.select((control, self.poll.fileno()), (), (), wait)[0]
            now = time.monotonic()
            for senders in self.udp.values():
                for sender in senders:
                    sender.run(now)
            if self.poll.fileno() in ready:
                for fd, _ in self.poll.poll(0):
                    call = self.calls[fd]
                    assert callable(call)
                    call()
            if control in ready:
                data = os.read(control, 1 << 16)
                if not data:
                    return
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    self.obey(json.loads(line))

    def obey(self, order: dict[str, object]) -> None:
        """One order, and its answer: "ok", or what went wrong."""
        answer = "ok"
        try:
            if "start" in order:
                legs = order["legs"]
                assert isinstance(legs, list)
                self.start(str(order["start"]), legs)
            else:
                self.stop(str(order["stop"]))
        except OSError as error:
            answer = " ".join(str(error).split())
        os.write(1, answer.encode() + b"\n")


def main(home: str) -> None:
    """Serve one lab."""
    enter(home)
    with contextlib.suppress(OSError):
        os.nice(-10)  # a late burst would be load that is missing
    loads = Loads(home)
    os.write(1, b"ready\n")
    with contextlib.suppress(KeyboardInterrupt):
        loads.serve()


if __name__ == "__main__":
    main(sys.argv[1])
