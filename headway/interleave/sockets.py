"""Interleaving for a job that stays on gloo: finds the sockets that gloo opened in this process.

Gloo keeps one TCP connection to each peer of a group and tells nobody. So the ranks exchange some bytes over the group,
and a socket is gloo's if it has carried them, and the rank at its other end says the same of the same pair of ports.
The store's connections, and whatever else the process has open, carry none of it.

The sockets are borrowed, not duplicated: a duplicate would keep a connection open that gloo has closed. Before they are
touched, the descriptor must still be the same socket.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headway.errors import UsageError
from headway.interleave.actuator import AUTO, open_actuator
from headway.interleave.aggressiveness import Aggressiveness
from headway.interleave.driver import Background, Driver
from headway.transport import tcp_info

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_PROBE_BYTES = 16 << 10
_TAG = 0x4857
Endpoints = tuple[str, int, str, int]
"""Own address and port, peer's address and port."""


def adopt_gloo(
    group: ProcessGroup | None = None, *, actuator: str = AUTO, aggressiveness: Aggressiveness | None = None
) -> Background:
    """Interleave what this process sends in a gloo group. A collective call: every rank of the group must make it.

    Call it after `init_process_group`, while nothing else is under way in the group. A thread follows the job until
    `close` of what is returned, or the end of the process; gloo does not notice either.

    Args:
        group: None: the default group.
        actuator: `auto`, `bpf-reno`, `bpf-cubic` or `pacing`.
        aggressiveness: None: the paper's.

    Raises:
        UsageError: the group is not gloo's, or the actuator does not work here.
    """
    f = aggressiveness or Aggressiveness()
    driver = Driver(open_actuator(actuator, f, foreign=True), f)
    try:
        found = gloo_sockets(group)
    except BaseException:
        driver.close()
        raise
    numbers = {connection: _identity(connection.fileno()) for connection in found}

    def alive(connection: socket.socket) -> bool:
        return _identity(connection.fileno()) == numbers[connection]

    def give_back() -> None:
        for connection in found:
            connection.detach()

    return Background(driver, found, alive=alive, at_end=give_back, name="headway interleave gloo")


def gloo_sockets(group: ProcessGroup | None = None) -> list[socket.socket]:
    """Gloo's connections to the other ranks of a group, borrowed: `detach` each, and never close one.

    A collective call, see `adopt_gloo`.
    """
    import torch.distributed as dist

    if dist.get_backend(group) != "gloo":
        raise UsageError(f"the group's backend is {dist.get_backend(group)}, not gloo", where="adopt_gloo")
    _exchange(group)  # gloo may connect at the first use only
    before = {number: _arrived(number) for number in _established()}
    _exchange(group)
    moved = {
        number: ends
        for number, ends in _established().items()
        if number in before and _arrived(number) - before[number] >= _PROBE_BYTES
    }
    told: list[list[Endpoints]] = [[] for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(told, list(moved.values()), group=group)
    if dist.get_world_size(group) > 1 and not moved:
        raise UsageError("no socket of gloo was found in this process", where="adopt_gloo")
    known = {ends for each in told for ends in each}
    return [socket.socket(fileno=number) for number, ends in sorted(moved.items()) if (*ends[2:], *ends[:2]) in known]


def _exchange(group: ProcessGroup | None) -> None:
    """Send some bytes to every other rank of the group, and take theirs."""
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(group), dist.get_world_size(group)
    payload = torch.zeros(2 * _PROBE_BYTES, dtype=torch.uint8)
    works = []
    for other in range(size):
        if other != rank:
            works.append(dist.isend(payload, group=group, group_dst=other, tag=_TAG))
            works.append(dist.irecv(torch.empty_like(payload), group=group, group_src=other, tag=_TAG))
    for work in works:
        if work is not None:
            work.wait()
    dist.barrier(group)


def _established() -> Mapping[int, Endpoints]:
    """Descriptor -> ends, of every connected TCP socket of this process."""
    found: dict[int, Endpoints] = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile, no socket, or not connected
            number = int(name)
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            copy = socket.socket(fileno=os.dup(number))
            with copy:
                if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM:
                    own, peer = copy.getsockname(), copy.getpeername()
                    found[number] = (_plain(own[0]), own[1], _plain(peer[0]), peer[1])
    return found


def _plain(address: str) -> str:
    """IPv4 in IPv6 as IPv4: the two ends may see it differently."""
    return address.removeprefix("::ffff:")


def _arrived(number: int) -> int:
    try:
        copy = socket.socket(fileno=os.dup(number))
    except OSError:
        return 0
    with copy:
        return tcp_info.read(copy).arrived_bytes


def _identity(number: int) -> tuple[int, int] | None:
    """What tells a socket from the next one under the same descriptor."""
    try:
        about = os.fstat(number)
    except OSError:
        return None
    return about.st_dev, about.st_ino
