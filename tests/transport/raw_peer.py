"""A peer made of one blocking socket, which can say what no transport would."""

from __future__ import annotations

import os
import socket

from headway.transport import wire
from headway.transport.tcp import TcpTransport
from headway.transport.wire import Purpose
from tests.transport.harness import LIMIT_S


def dial(transport: TcpTransport) -> socket.socket:
    """A bare connection to where `transport` listens."""
    sock = socket.create_connection(transport.address, timeout=LIMIT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def hello_bytes(*, src: int, dst: int, group: str = "default", purpose: int = Purpose.STREAM) -> bytes:
    """A hello with a fresh nonce."""
    return wire.pack_hello(wire.Hello(wire.group_id(group), src, dst, Purpose(purpose), os.urandom(wire.NONCE_BYTES)))


def read_exactly(sock: socket.socket, size: int) -> bytes:
    """`size` bytes, or fewer at the end of the stream."""
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            break
        data += more
    return data


def join(transport: TcpTransport, token: bytes, *, src: int, purpose: int = Purpose.STREAM) -> socket.socket:
    """A connection that has proved to be rank `src`."""
    sock = dial(transport)
    hello = hello_bytes(src=src, dst=transport.rank, purpose=purpose)
    sock.sendall(hello)
    nonce, proof = wire.CHALLENGE.unpack(read_exactly(sock, wire.CHALLENGE.size))
    assert proof == wire.listener_proof(token, hello, nonce)
    sock.sendall(wire.opener_proof(token, hello, nonce))
    return sock


def is_closed_by_peer(sock: socket.socket) -> bool:
    """Waits for the other end to close without a word."""
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True
