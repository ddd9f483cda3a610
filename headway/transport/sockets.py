"""Sockets as the TCP driver wants them."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from pathlib import Path

from headway.errors import UsageError
from headway.transport.options import TcpOptions

LOCAL_SEND_BUFFER_BYTES = 256 << 10
"""To a rank of our own host. Autotuning would let megabytes pile up between two processes, which then leave the cache
before they are read: with 4 ranks, all-reduces of 4 MiB and 16 MiB took 1.3 to 1.4 times as long."""

_BACKLOG = 1024
# A peer whose host went silent is noticed after about this time, if nothing was under way to it.
_KEEPALIVE_IDLE_S = 15
_KEEPALIVE_INTERVAL_S = 5
_KEEPALIVE_PROBES = 3


def listen_on(address: str, options: TcpOptions) -> socket.socket:
    """A listening socket on a free port of `address`. UsageError when the address is not of this machine."""
    sock = _new_socket(address, options)
    try:
        sock.bind(_with_scope(address, 0))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise UsageError(
            f"cannot listen on {address}: {error.strerror}", where="interface", hint="choose one of this host"
        ) from None
    return sock


def begin_connect(own: str, address: str, port: int, options: TcpOptions) -> tuple[socket.socket, int]:
    """A socket that is connecting from `own` to `address`, and the error number of an immediate failure (else 0)."""
    sock = _new_socket(address, options)
    local = published(own) == address
    if local and not options.send_buffer_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LOCAL_SEND_BUFFER_BYTES)
    lowat = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if lowat is not None and options.unsent_bytes and not local:
        sock.setsockopt(socket.IPPROTO_TCP, lowat, options.unsent_bytes)
    if "%" in own and "%" not in address and ipaddress.ip_address(address).is_link_local:
        address = f"{address}%{own.partition('%')[2]}"
    try:
        sock.bind(_with_scope(own, 0))
        code = sock.connect_ex(_with_scope(address, port))
    except OSError as error:
        code = error.errno or errno.EIO
    return sock, 0 if code in (0, errno.EINPROGRESS) else code


def published(address: str) -> str:
    """An address as other hosts may use it: a scope names one of our own interfaces."""
    return address.partition("%")[0]


def available_congestion_controls() -> list[str]:
    """What the kernel has loaded; empty where it does not say."""
    try:
        return Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    except OSError:
        return []


def _with_scope(address: str, port: int) -> tuple[str, int] | tuple[str, int, int, int]:
    bare, _, scope = address.partition("%")
    if ":" not in bare:
        return bare, port
    return bare, port, 0, socket.if_nametoindex(scope) if scope else 0


def _new_socket(address: str, options: TcpOptions) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", _KEEPALIVE_IDLE_S),
            ("TCP_KEEPINTVL", _KEEPALIVE_INTERVAL_S),
            ("TCP_KEEPCNT", _KEEPALIVE_PROBES),
        ):
            option = getattr(socket, name, None)
            if option is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
        if options.send_buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, options.send_buffer_bytes)
        if options.receive_buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options.receive_buffer_bytes)
        if options.congestion_control:
            _set_congestion_control(sock, options.congestion_control)
    except BaseException:
        sock.close()
        raise
    return sock


def _set_congestion_control(sock: socket.socket, name: str) -> None:
    option = getattr(socket, "TCP_CONGESTION", None)
    known = ", ".join(available_congestion_controls()) or "none"
    hint = f"available: {known}"
    if option is None:
        raise UsageError("this system cannot choose a congestion control", where="congestion_control")
    try:
        sock.setsockopt(socket.IPPROTO_TCP, option, name.encode())
    except OSError as error:
        what = os.strerror(error.errno) if error.errno else str(error)
        raise UsageError(f"congestion control {name!r}: {what}", where="congestion_control", hint=hint) from None
