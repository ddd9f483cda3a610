"""Who the ranks of a group are: each leaves its host, address and link speed in the store, and reads the others'."""

from __future__ import annotations

import ipaddress
import json
import socket
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from headway.cluster.model import Cluster, Host
from headway.errors import UsageError
from headway.transport.rendezvous import Rendezvous

NOMINAL_Bps = 1.25e9
"""Rate of an access link that nobody knows: 10 Gbit/s. Only ratios between links matter until flows are measured."""


@dataclass(frozen=True)
class Peer:
    """One rank as it describes itself.

    Attributes:
        host: name of its machine.
        address: where it listens.
        rate_Bps: speed of that address's interface as the kernel tells it; 0 where it doesn't.
    """

    host: str
    address: str
    rate_Bps: float


def describe_self(address: str) -> Peer:
    """This process, listening on `address`."""
    return Peer(host=socket.gethostname(), address=address, rate_Bps=_link_rate_Bps(address))


def exchange(rendezvous: Rendezvous, *, rank: int, size: int, mine: Peer, timeout_s: float) -> list[Peer]:
    """Every rank's description, by rank. DeadlineError names the rank that did not come in time.

    UsageError when some ranks listen on loopback and others don't: they could not reach each other.
    """
    rendezvous.put(f"peer/{rank}", json.dumps(asdict(mine)).encode())
    peers = [Peer(**json.loads(rendezvous.get(f"peer/{other}", timeout_s))) for other in range(size)]
    on_loopback = [rank for rank, peer in enumerate(peers) if _is_loopback(peer.address)]
    if on_loopback and len(on_loopback) < size:
        raise UsageError(
            f"rank {on_loopback[0]} listens on {peers[on_loopback[0]].address}, which other hosts cannot reach",
            where="HEADWAY_INTERFACE",
            hint="set it to the network interface to use, or MASTER_ADDR to an address that is not loopback",
        )
    return peers


def cluster_of(peers: Sequence[Peer]) -> Cluster:
    """The cluster that the planners start from: one switch, ranks on one machine together, links at nominal speed.

    A host is told apart by its name and address, so that hosts that share one name (containers, network namespaces)
    stay apart. If all ranks are on one machine there is no network between them to plan for; each then counts as a
    host of its own.
    """
    keys = [(peer.host, peer.address) for peer in peers]
    if len(set(keys)) == 1:
        keys = [(peer.host, f"{peer.address} rank {rank}") for rank, peer in enumerate(peers)]
    order = list(dict.fromkeys(keys))
    names_differ = len({host for host, _ in order}) == len(order)
    known = [peer.rate_Bps for peer in peers if peer.rate_Bps > 0]
    nominal_Bps = statistics.median_low(known) if known else NOMINAL_Bps
    hosts = []
    for key in order:
        rate_Bps = min(peer.rate_Bps or nominal_Bps for peer, other in zip(peers, keys, strict=True) if other == key)
        hosts.append(Host(key[0] if names_differ else key[1], rate_Bps, rate_Bps))
    return Cluster(hosts=tuple(hosts), host_of=tuple(order.index(key) for key in keys))


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.split("%")[0]).is_loopback


def _link_rate_Bps(address: str) -> float:
    """Speed of the interface that has `address`, from /sys; 0 where it is unknown (loopback, virtual links)."""
    for _, interface in socket.if_nameindex():
        if not _has_address(interface, address):
            continue
        try:
            megabits = int(Path(f"/sys/class/net/{interface}/speed").read_text())
        except (OSError, ValueError):
            return 0.0
        return max(0, megabits) * 1e6 / 8
    return 0.0


def _has_address(interface: str, address: str) -> bool:
    from headway.transport.options import TcpOptions, local_address

    try:
        return local_address(TcpOptions(interface=interface, ipv6=":" in address)) == address
    except UsageError:
        return False
