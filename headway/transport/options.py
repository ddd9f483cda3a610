"""What can be set on the TCP driver, and the address that a choice of interface means."""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from headway.errors import UsageError

_SIOCGIFADDR = 0x8915
_LINK_LOCAL_SCOPE = 0x20


@dataclass(frozen=True, kw_only=True)
class TcpOptions:
    """Settings of the TCP driver.

    Attributes:
        interface: interface name (`eth0`) or address (`10.0.0.3`, `fd00::3`) to listen on and to send from. Empty: the
            address from which `towards` is reached.
        towards: host name or address of something that all ranks reach (torch's store); only read when `interface`
            is empty. Empty too: loopback, which serves ranks of one machine.
        ipv6: take the IPv6 address of an interface, or of the way towards a host, instead of the IPv4 one.
        congestion_control: TCP congestion control of our sockets; empty: the system's default.
        send_buffer_bytes: SO_SNDBUF; 0 leaves it to the kernel's autotuning, which is best on links with a delay.
        receive_buffer_bytes: SO_RCVBUF; 0 likewise.
        unsent_bytes: TCP_NOTSENT_LOWAT: how much may wait in the kernel to be sent to another host. Small lets urgent
            messages pass on slow links, large saves wake-ups; 0 sets no limit. There is none between ranks on one
            address: it costs CPU time (up to 10 % was measured), and loopback is never the slow link.
        connect_timeout_s: for the whole start of the group, and then for each connection with its hello.
        hello_timeout_s: how long a connection that did not prove who it is may stay.
        close_timeout_s: how long `close` waits for queued bytes to leave.
        max_pending_hellos: connections without proof at one time; further ones wait in the kernel's backlog.
        max_message_bytes: longest bulk message that is accepted.
        max_control_bytes: longest control message.
        max_early_bytes: matched messages held for each peer before their receive is posted.
        early_grace_s: how long a full early buffer may block a posted receive before that receive fails.
    """

    interface: str = ""
    towards: str = ""
    ipv6: bool = False
    congestion_control: str = ""
    send_buffer_bytes: int = 0
    receive_buffer_bytes: int = 0
    unsent_bytes: int = 256 << 10
    connect_timeout_s: float = 30.0
    hello_timeout_s: float = 5.0
    close_timeout_s: float = 2.0
    max_pending_hellos: int = 128
    max_message_bytes: int = 1 << 34
    max_control_bytes: int = 16 << 20
    max_early_bytes: int = 256 << 20
    early_grace_s: float = 5.0

    def __post_init__(self) -> None:
        for name in ("connect_timeout_s", "hello_timeout_s", "close_timeout_s", "early_grace_s"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be above 0")
        for name in ("max_pending_hellos", "max_message_bytes", "max_control_bytes"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be at least 1")


def local_address(options: TcpOptions) -> str:
    """The address to listen on, as text. UsageError names an interface or host that has none."""
    family = socket.AF_INET6 if options.ipv6 else socket.AF_INET
    if not options.interface:
        return _address_towards(options.towards, family) if options.towards else _loopback(family)
    try:
        return str(ipaddress.ip_address(options.interface))
    except ValueError:
        pass
    known = [name for _, name in socket.if_nameindex()]
    if options.interface not in known:
        raise UsageError(
            f"no network interface {options.interface!r}",
            where="interface",
            hint=f"here are {', '.join(known)}; or write an address",
        )
    if sys.platform != "linux":
        raise UsageError(
            f"cannot look up the address of {options.interface!r} on this system",
            where="interface",
            hint="write the address itself",
        )
    address = _ipv6_of(options.interface) if options.ipv6 else _ipv4_of(options.interface)
    if address is None:
        version = "IPv6" if options.ipv6 else "IPv4"
        raise UsageError(f"interface {options.interface!r} has no {version} address", where="interface")
    return address


def _loopback(family: socket.AddressFamily) -> str:
    return "::1" if family == socket.AF_INET6 else "127.0.0.1"


def _address_towards(host: str, family: socket.AddressFamily) -> str:
    """Our address on the way to `host`: a datagram socket is routed, but nothing is sent."""
    try:
        target = socket.getaddrinfo(host, 9, family, socket.SOCK_DGRAM)[0][4]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise UsageError(
            f"no way towards {host!r} ({error.strerror or error})", where="interface", hint="name the interface"
        ) from None


def _ipv4_of(interface: str) -> str | None:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            reply = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(reply[20:24])


def _ipv6_of(interface: str) -> str | None:
    """The first global address, else a link-local one (with its scope), from /proc/net/if_inet6."""
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return None
    found: list[tuple[bool, str]] = []
    for line in lines:
        digits, _, _, scope, _, name = line.split()
        if name == interface:
            local = int(scope, 16) == _LINK_LOCAL_SCOPE
            text = str(ipaddress.IPv6Address(bytes.fromhex(digits)))
            found.append((local, f"{text}%{interface}" if local else text))
    return min(found)[1] if found else None
