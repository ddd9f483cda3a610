"""Who is let in, and that those who are not do no harm."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading

import pytest

from headway.transport import wire
from headway.transport.options import TcpOptions
from headway.transport.tcp import TcpTransport
from tests.fakes.rendezvous import DictRendezvous
from tests.transport.harness import LIMIT_S, CollectingSink, group, on_loop
from tests.transport.raw_peer import dial, hello_bytes, is_closed_by_peer, read_exactly


def exchange_one(first: TcpTransport, second: TcpTransport) -> None:
    """The group still works."""
    sink = CollectingSink()
    on_loop(second, lambda: second.open_channel(0, sink))
    on_loop(first, lambda: first.send_message(1, 0, 7, memoryview(b"works")))
    sink.wait_for(lambda: sink.messages == [(0, 7, b"works")])


def refused(transport: TcpTransport, data: bytes) -> None:
    with dial(transport) as sock:
        sock.sendall(data)
        assert is_closed_by_peer(sock)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (
            b"GET / HTTP/1.1\r\nHost: somewhere.example\r\nAccept: */*\r\nUser-Agent: probe\r\n\r\n",
            "not a Headway hello",
        ),
        (bytes(wire.HELLO.size), "not a Headway hello"),
        (hello_bytes(src=0, dst=1, group="other"), "belongs to another group"),
        (hello_bytes(src=0, dst=0), "looks for rank 0"),
        (hello_bytes(src=1, dst=1), "says to be rank 1"),
        (hello_bytes(src=9, dst=1), "says to be rank 9"),
        (b"HEADWAY\n\x63\x00" + bytes(wire.HELLO.size - 10), "protocol version 99"),
        (b"HEADWAY\n\x01\x00\x09\x00" + bytes(wire.HELLO.size - 12), "unknown purpose 9"),
    ],
)
def test_a_wrong_hello_is_refused_and_logged(data: bytes, why: str, caplog: pytest.LogCaptureFixture) -> None:
    with group(2) as (first, second), caplog.at_level(logging.WARNING):
        refused(second, data)
        exchange_one(first, second)
    assert why in caplog.text


def test_a_wrong_token_is_refused_and_the_token_never_travels(caplog: pytest.LogCaptureFixture) -> None:
    meeting = DictRendezvous()
    with group(2, rendezvous=meeting) as (first, second), caplog.at_level(logging.WARNING):
        with dial(second) as sock:
            hello = hello_bytes(src=0, dst=1)
            sock.sendall(hello)
            answer = read_exactly(sock, wire.CHALLENGE.size)
            nonce, proof = wire.CHALLENGE.unpack(answer)
            assert meeting.values["headway/default/token"] not in answer
            # What the listener showed is no proof of ours, nor is one made with another token.
            for wrong in (proof, wire.opener_proof(b"x" * wire.TOKEN_BYTES, hello, nonce)):
                with dial(second) as other:
                    other.sendall(hello)
                    read_exactly(other, wire.CHALLENGE.size)
                    other.sendall(wrong)
                    assert is_closed_by_peer(other)
        exchange_one(first, second)
    assert "does not know the group's token" in caplog.text


def test_a_listener_without_the_token_is_found_out() -> None:
    meeting = DictRendezvous()
    with group(2, rendezvous=meeting) as (first, second), socket.create_server(("127.0.0.1", 0)) as impostor:
        first._outflows._addresses[1] = impostor.getsockname()[:2]
        sink = CollectingSink()

        def send() -> None:
            first.open_channel(0, sink)
            first.send_message(1, 0, 0, memoryview(b"secret"))

        on_loop(first, send)
        sock, _ = impostor.accept()
        with sock:
            sock.settimeout(LIMIT_S)
            read_exactly(sock, wire.HELLO.size)
            sock.sendall(bytes(wire.CHALLENGE.size))
            assert is_closed_by_peer(sock)
        sink.wait_for(lambda: bool(sink.errors))
        assert sink.errors[0].rank == 1
        assert "wrong proof" in sink.errors[0].what
        assert second.rank == 1


def test_connections_that_say_nothing_do_not_keep_others_out(caplog: pytest.LogCaptureFixture) -> None:
    options = TcpOptions(max_pending_hellos=3, hello_timeout_s=0.3)
    with group(2, options) as (first, second), contextlib.ExitStack() as stack, caplog.at_level(logging.WARNING):
        silent = [stack.enter_context(dial(second)) for _ in range(7)]
        silent[0].sendall(hello_bytes(src=0, dst=1)[:20])
        exchange_one(first, second)
        for sock in silent:
            assert is_closed_by_peer(sock)
    assert "took too long" in caplog.text


def test_a_second_connection_for_the_same_purpose_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    meeting = DictRendezvous()
    with group(2, rendezvous=meeting) as (first, second), caplog.at_level(logging.WARNING):
        arrived = threading.Event()
        second.on_control(lambda src, payload: arrived.set())
        first.send_control(1, b"here")
        assert arrived.wait(10)
        with dial(second) as sock:
            hello = hello_bytes(src=0, dst=1, purpose=wire.Purpose.CONTROL)
            sock.sendall(hello)
            nonce, _ = wire.CHALLENGE.unpack(read_exactly(sock, wire.CHALLENGE.size))
            sock.sendall(wire.opener_proof(meeting.values["headway/default/token"], hello, nonce))
            assert is_closed_by_peer(sock)
    assert "has one already" in caplog.text


def test_a_listener_that_never_answers_is_given_up() -> None:
    options = TcpOptions(connect_timeout_s=0.3)
    with group(2, options) as (first, _), socket.create_server(("127.0.0.1", 0)) as deaf:
        first._outflows._addresses[1] = deaf.getsockname()[:2]
        sink = CollectingSink()

        def send() -> None:
            first.open_channel(0, sink)
            first.send_message(1, 0, 0, memoryview(b"anybody?"))

        on_loop(first, send)
        sink.wait_for(lambda: bool(sink.errors))
        assert sink.errors[0].rank == 1
        assert "did not answer within 0.3 s" in sink.errors[0].what
