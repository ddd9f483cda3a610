"""Delays and loses packets where the kernel has no netem. A script of its own: it needs nothing but Python.

    relay.py CONFIG        CONFIG is JSON: {"home": FILE, "pairs": [{"up": NAME, "down": NAME,
                                "near": [FILE, INTERFACE], "far": [FILE, INTERFACE]}, ...],
                                "delays": {NAME: SECONDS}, "detached": BOOL}

For each pair it makes two TAP interfaces, in the namespaces given, and copies what is sent into the one out of the
other: `near` to `far` is the link called `up`, the way back is `down`. Frames keep their offloads (up to 64 kB at
once), so the cost is per burst, not per packet; only on a link with loss packets come one by one, so that each is
lost independently. Frames never overtake each other.

It writes "ready", then takes lines of JSON {"link": NAME, "delay_s": x, "jitter_s": x, "loss": x} and answers each
with "ok". It ends when its input ends, unless detached.
"""

import collections
import contextlib
import ctypes
import fcntl
import json
import os
import random
import select
import struct
import sys
import time

TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6, TUN_F_USO4, TUN_F_USO6 = 1, 2, 4, 0x20, 0x40
TCP_OFFLOADS = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6
CLONE_NEWNET = 0x40000000
LARGEST_FRAME = 1 << 17
FRAMES_AT_ONCE = 64

libc = ctypes.CDLL(None, use_errno=True)


def enter(path: str) -> None:
    """Move to a network namespace."""
    fd = os.open(path, os.O_RDONLY)
    if libc.setns(fd, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"cannot enter {path}")
    os.close(fd)


def open_tap(namespace: str, interface: str) -> int:
    """A new TAP interface in a namespace; its file descriptor."""
    enter(namespace)
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", interface.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    return fd


class Link:
    """One direction: frames read from one TAP wait here until they are due, then go out of the other."""

    def __init__(self, source: int, sink: int, seed: str) -> None:
        self.source, self.sink = source, sink
        self.delay_s = self.jitter_s = self.loss = 0.0
        self.random = random.Random(seed)
        self.waiting: collections.deque[tuple[float, bytes]] = collections.deque()
        self.last_due = 0.0
        self.set(0.0, 0.0, 0.0)

    def set(self, delay_s: float, jitter_s: float, loss: float) -> None:
        """Change what it does to frames that come from now on."""
        self.delay_s, self.jitter_s, self.loss = delay_s, jitter_s, loss
        offloads = 0 if loss else TCP_OFFLOADS
        try:
            fcntl.ioctl(self.source, TUNSETOFFLOAD, offloads | (0 if loss else TUN_F_USO4 | TUN_F_USO6))
        except OSError:  # a kernel before 6.2 has no UDP offload on TAP
            fcntl.ioctl(self.source, TUNSETOFFLOAD, offloads)

    def take(self, now: float) -> None:
        """Read what has come."""
        for _ in range(FRAMES_AT_ONCE):
            try:
                frame = os.read(self.source, LARGEST_FRAME)
            except OSError:  # nothing more, or the interface is not up
                return
            if self.loss and self.random.random() < self.loss:
                continue
            due = now + self.delay_s
            if self.jitter_s:
                due += self.random.random() * self.jitter_s
            self.last_due = max(self.last_due, due)
            self.waiting.append((self.last_due, frame))

    def give(self, now: float) -> None:
        """Send what is due."""
        waiting = self.waiting
        while waiting and waiting[0][0] <= now:
            # a frame that the interface refuses (it is down) is lost, as on a cable that is pulled
            with contextlib.suppress(OSError):
                os.write(self.sink, waiting.popleft()[1])


def serve(links: dict[str, Link], detached: bool) -> None:
    """Relay until the end of the input."""
    by_source = {link.source: link for link in links.values()}
    control, pending = sys.stdin.fileno(), b""
    watched = [*by_source, *([] if detached else [control])]
    clock = time.monotonic
    while True:
        due = [link.waiting[0][0] for link in links.values() if link.waiting]
        wait = max(0.0, min(due) - clock()) if due else None
        ready = select.select(watched, (), (), wait)[0]
        now = clock()
        for fd in ready:
            if fd != control:
                by_source[fd].take(now)
                continue
            data = os.read(control, 1 << 16)
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                order = json.loads(line)
                links[order["link"]].set(order["delay_s"], order["jitter_s"], order["loss"])
                os.write(1, b"ok\n")
        now = clock()
        for link in links.values():
            link.give(now)


def main(config: dict[str, object]) -> None:
    """Make the interfaces and relay."""
    links: dict[str, Link] = {}
    pairs = config["pairs"]
    assert isinstance(pairs, list)
    for pair in pairs:
        near, far = open_tap(*pair["near"]), open_tap(*pair["far"])
        links[pair["up"]] = Link(near, far, pair["up"])
        links[pair["down"]] = Link(far, near, pair["down"])
    delays = config["delays"]
    assert isinstance(delays, dict)
    for name, delay_s in delays.items():
        links[name].set(delay_s, 0.0, 0.0)
    enter(str(config["home"]))
    with contextlib.suppress(OSError):
        os.nice(-10)  # late is wrong here: what it delays must not be delayed by what runs beside it
    os.write(1, b"ready\n")
    with contextlib.suppress(KeyboardInterrupt):
        serve(links, bool(config["detached"]))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
