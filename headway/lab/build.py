"""Building a topology in the kernel, and changing its links while it runs."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from headway.lab import kernel
from headway.lab.kernel import LabError
from headway.lab.topology import Cable, End, LinkId, LinkSettings, ShapedLink, Topology

T = TypeVar("T")
_ROOT = 0xFFFFFFFF
_TBF, _NETEM = 0x20000, 0x10000
_CONTROL = "net/ipv4/tcp_congestion_control"
_NETEM_PACKETS = 100_000
_BRIDGE = {"br_stp_state": 0, "br_forward_delay": 0, "br_mcast_snooping": 0}


@dataclass(frozen=True, slots=True)
class LinkCounters:
    """What a shaped link did since the lab was built, and what waits in front of it now."""

    bytes: int
    packets: int
    dropped_packets: int
    waiting_bytes: int


def has_netem() -> bool:
    """Whether this kernel can delay and lose packets by itself."""
    found: list[bool] = []

    def probe() -> None:
        with contextlib.suppress(LabError):
            kernel.leave_for_new_namespace()
            with IPRoute() as netlink:
                try:
                    netlink.tc("add", "netem", 1, _NETEM, delay=1000)
                    found.append(True)
                except NetlinkError:
                    found.append(False)

    thread = threading.Thread(target=probe)
    thread.start()
    thread.join()
    return bool(found and found[0])


class _NetlinkThread:
    """Runs functions one after another in a thread of its own.

    pyroute2 opens a socket per thread that uses it. A socket belongs to the namespace in which it was opened, so a
    call from a second thread would change another namespace's links: the machine's own.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="headway-lab-netlink")

    def run(self, function: Callable[[], T]) -> T:
        """What the function returns; what the kernel refused becomes a LabError."""
        try:
            return self._executor.submit(function).result()
        except NetlinkError as error:
            raise LabError(f"the kernel refused to change the lab's network: {error.args[-1]}") from error

    def close(self) -> None:
        """End the thread."""
        self._executor.shutdown()


class Fabric:
    """A topology in the kernel. Threads may share it.

    Args:
        prefix: put before every namespace's name.
        netem: whether delay and loss come from the kernel.
    """

    def __init__(self, topology: Topology, prefix: str, *, netem: bool) -> None:
        self.topology, self.prefix, self.netem = topology, prefix, netem
        self._thread = _NetlinkThread()
        self._sockets: dict[str, IPRoute] = {}
        self._indices: dict[End, int] = {}

    def make_namespaces(self) -> None:
        """All namespaces, with their sysctls."""
        self._thread.run(self._make_namespaces)

    def make_cables(self) -> None:
        """All cables that need no relay. The relay makes the others."""
        self._thread.run(self._make_cables)

    def finish(self) -> None:
        """Bridges, shapers, addresses and routes, once every cable is there; then everything is up."""
        self._thread.run(self._finish)

    def set_link(self, link: ShapedLink, settings: LinkSettings) -> None:
        """Change the rate, and where the kernel does them delay and loss."""
        self._thread.run(lambda: self._set_link(link, settings))

    def counters(self) -> dict[LinkId, LinkCounters]:
        """What every link did so far."""
        return self._thread.run(lambda: {link.id: self._counters(link) for link in self.topology.links})

    def close(self) -> None:
        """Close the netlink sockets; the namespaces stay. Idempotent."""
        with contextlib.suppress(RuntimeError):  # the thread has ended: closed before
            self._thread.run(self._close)
        self._thread.close()

    def _make_namespaces(self) -> None:
        controls = {value for ns in self.topology.namespaces for path, value in ns.sysctls if path == _CONTROL}
        with kernel.allowed_congestion_controls(controls):
            for namespace in self.topology.namespaces:
                kernel.create_namespace(self.prefix + namespace.name)
                with kernel.inside(self.prefix + namespace.name):
                    self._sockets[namespace.name] = IPRoute()
                    for path, value in namespace.sysctls:
                        _write_sysctl(path, value)

    def _make_cables(self) -> None:
        for cable in self.topology.cables:
            if not cable.relayed:
                self._veth(cable)

    def _finish(self) -> None:
        for name, netlink in self._sockets.items():
            netlink.link("set", index=1, state="up")
            for link in netlink.get_links():
                self._indices[End(name, link.get("ifname"))] = link["index"]
        for bridge in self.topology.bridges:
            self._bridge(bridge.end, bridge.ports)
        for shaped in self.topology.links:
            self._shape(shaped)
        for cable in self.topology.cables:
            for end in (cable.a, cable.b):
                self._socket(end).link("set", index=self._indices[end], state="up")
        for address in self.topology.addresses:
            index = self._indices[address.end]
            self._socket(address.end).addr("add", index=index, address=address.address, prefixlen=address.prefix)
        for route in self.topology.routes:
            hops = [(gateway, self._indices[End(route.namespace, device)]) for gateway, device in route.hops]
            netlink = self._sockets[route.namespace]
            family = 10 if ":" in hops[0][0] else 2
            destination = route.destination
            extra = {"priority": route.priority} if route.priority else {}
            if len(hops) == 1:
                netlink.route("add", dst=destination, family=family, gateway=hops[0][0], oif=hops[0][1], **extra)
            else:
                paths = [{"gateway": gateway, "oif": oif} for gateway, oif in hops]
                netlink.route("add", dst=destination, family=family, multipath=paths, **extra)

    def _set_link(self, link: ShapedLink, settings: LinkSettings) -> None:
        netlink, index = self._socket(link.end), self._indices[link.end]
        below = self.netem and link.relayed
        netlink.tc(
            "change", "tbf", index, _TBF, parent=_NETEM | 1 if below else _ROOT,
            rate=int(settings.rate_Bps), burst=link.burst_bytes, limit=link.queue_bytes,
        )  # fmt: skip
        if below:
            netlink.tc("change", "netem", index, _NETEM, parent=_ROOT, **_netem(settings))

    def _counters(self, link: ShapedLink) -> LinkCounters:
        for qdisc in self._socket(link.end).get_qdiscs(index=self._indices[link.end]):
            if qdisc["handle"] == _TBF:
                stats = qdisc.get_attr("TCA_STATS2")
                basic, queue = stats.get_attr("TCA_STATS_BASIC"), stats.get_attr("TCA_STATS_QUEUE")
                return LinkCounters(basic["bytes"], basic["packets"], queue["drops"], queue["backlog"])
        raise LabError(f"{link.id} has lost its shaper")

    def _close(self) -> None:
        for netlink in self._sockets.values():
            netlink.close()
        self._sockets.clear()

    def _socket(self, end: End) -> IPRoute:
        return self._sockets[end.namespace]

    def _veth(self, cable: Cable) -> None:
        with _namespace_fd(self.prefix + cable.b.namespace) as there:
            self._socket(cable.a).link(
                "add", ifname=cable.a.interface, kind="veth", peer={"ifname": cable.b.interface, "net_ns_fd": there}
            )

    def _bridge(self, end: End, ports: tuple[str, ...]) -> None:
        netlink = self._socket(end)
        netlink.link("add", ifname=end.interface, kind="bridge", **_BRIDGE)
        index = netlink.link_lookup(ifname=end.interface)[0]
        self._indices[end] = index
        for port in ports:
            netlink.link("set", index=self._indices[End(end.namespace, port)], master=index)
        netlink.link("set", index=index, state="up")

    def _shape(self, link: ShapedLink) -> None:
        netlink, index = self._socket(link.end), self._indices[link.end]
        parent = _ROOT
        if self.netem and link.relayed:
            netlink.tc("add", "netem", index, _NETEM, **_netem(LinkSettings(link.rate_Bps, link.delay_s)))
            parent = _NETEM | 1
        netlink.tc(
            "add", "tbf", index, _TBF, parent=parent,
            rate=int(link.rate_Bps), burst=link.burst_bytes, limit=link.queue_bytes,
        )  # fmt: skip


def _netem(settings: LinkSettings) -> dict[str, float]:
    values: dict[str, float] = {"delay": round(settings.delay_s * 1e6), "limit": _NETEM_PACKETS}
    if settings.jitter_s:
        values["jitter"] = round(settings.jitter_s * 1e6)
    if settings.loss:
        values["loss"] = settings.loss * 100
    return values


def _write_sysctl(path: str, value: str) -> None:
    file = Path("/proc/sys") / path
    try:
        file.write_text(value)
    except FileNotFoundError:
        if "ipv6" not in path:  # a kernel without IPv6 has nothing to set
            raise LabError(f"this kernel has no setting {path}") from None
    except OSError as error:
        name = path.rpartition("/")[2]
        raise LabError(f"cannot set {name} to {value!r}: {os.strerror(error.errno or 0)}") from None


@contextlib.contextmanager
def _namespace_fd(name: str) -> Iterator[int]:
    fd = os.open(kernel.namespace_directory() / name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
