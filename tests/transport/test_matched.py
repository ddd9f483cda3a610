"""Matched sends and receives over the TCP driver."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.errors import DeadlineError, PeerLostError, TransportError
from headway.transport.api import Transfer
from headway.transport.options import TcpOptions
from tests.fakes.rendezvous import DictRendezvous
from tests.transport.harness import LIMIT_S, group
from tests.transport.raw_peer import join


def test_messages_match_by_tag_whatever_the_order() -> None:
    with group(2) as (first, second):
        sends = [first.send(1, tag, memoryview(bytes([tag]) * 70_000)) for tag in range(6)]
        buffers = {tag: bytearray(70_000) for tag in range(6)}
        for tag in (5, 0, 3, 1, 4, 2):
            sample = second.receive(0, tag, memoryview(buffers[tag])).wait(LIMIT_S)
            assert (sample.src, sample.dst, sample.acked_bytes) == (0, 1, 70_000)
            assert sample.end_s >= sample.start_s
            assert buffers[tag] == bytes([tag]) * 70_000
        for send in sends:
            sample = send.wait(LIMIT_S)
            assert (sample.src, sample.dst) == (0, 1)
            assert send.done()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40_000)), max_size=25),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_any_order_of_posting_and_sending(
    messages: list[tuple[int, int]], chance: random.Random, post_first: bool
) -> None:
    per_tag = {tag: [index for index, (each, _) in enumerate(messages) if each == tag] for tag in range(4)}
    order = [tag for tag, _ in messages]
    chance.shuffle(order)
    with group(2) as (first, second):
        buffers = [bytearray(length) for _, length in messages]
        transfers: list[Transfer] = []

        def post() -> None:
            following = {tag: iter(indices) for tag, indices in per_tag.items()}
            transfers.extend(second.receive(0, tag, memoryview(buffers[next(following[tag])])) for tag in order)

        if post_first:
            post()
        for index, (tag, length) in enumerate(messages):
            transfers.append(first.send(1, tag, memoryview(bytes([index]) * length)))
        if not post_first:
            post()
        for transfer in transfers:
            transfer.wait(LIMIT_S)
        assert buffers == [bytes([index]) * length for index, (_, length) in enumerate(messages)]


def test_more_than_the_early_limit_waits_for_its_receive() -> None:
    with group(2, TcpOptions(max_early_bytes=100_000, early_grace_s=LIMIT_S)) as (first, second):
        sends = [first.send(1, tag, memoryview(bytes([tag]) * 60_000)) for tag in range(4)]
        # Posted for one that is behind: it comes once those before it are received.
        last = bytearray(60_000)
        receive = second.receive(0, 3, memoryview(last))
        for tag in range(3):
            buffer = bytearray(60_000)
            second.receive(0, tag, memoryview(buffer)).wait(LIMIT_S)
            assert buffer == bytes([tag]) * 60_000
        receive.wait(LIMIT_S)
        assert last == b"\3" * 60_000
        for send in sends:
            send.wait(LIMIT_S)


def test_a_receive_that_cannot_come_fails_and_says_why() -> None:
    with group(2, TcpOptions(max_early_bytes=100_000, early_grace_s=0.1)) as (first, second):
        for tag in range(3):
            first.send(1, tag, memoryview(bytes(60_000)))
        receive = second.receive(0, 2, memoryview(bytearray(60_000)))
        with pytest.raises(TransportError, match=r"behind one of 60000 bytes with tag 1 .*max_early_bytes \(100000\)"):
            receive.wait(LIMIT_S)
        # Nothing is lost by that.
        for tag in range(3):
            second.receive(0, tag, memoryview(bytearray(60_000))).wait(LIMIT_S)


@pytest.mark.parametrize("early", [False, True])
def test_another_length_is_an_error_of_that_receive_only(early: bool) -> None:
    with group(2) as (first, second):
        wrong, right = memoryview(bytearray(5)), bytearray(6)
        if early:
            first.send(1, 0, memoryview(b"123456"))
            first.send(1, 1, memoryview(b"x")).wait(LIMIT_S)
            second.receive(0, 1, memoryview(bytearray(1))).wait(LIMIT_S)
        receive = second.receive(0, 0, wrong)
        if not early:
            first.send(1, 0, memoryview(b"123456"))
        with pytest.raises(TransportError, match=r"receive of 5 bytes from rank 0, tag 0: rank 0 sent 6 bytes"):
            receive.wait(LIMIT_S)
        first.send(1, 0, memoryview(b"abcdef"))
        second.receive(0, 0, memoryview(right)).wait(LIMIT_S)
        assert right == b"abcdef"


def test_a_wait_has_a_limit_and_names_the_peer() -> None:
    with group(2) as (first, _):
        receive = first.receive(1, 3, memoryview(bytearray(1)))
        assert not receive.done()
        with pytest.raises(
            DeadlineError, match=r"receive of 1 bytes from rank 1, tag 3: nothing from rank 1"
        ) as caught:
            receive.wait(0.01)
        assert caught.value.rank == 1


def test_calls_that_make_no_sense() -> None:
    with group(2) as (first, _):
        with pytest.raises(TransportError, match="no peer 2"):
            first.send(2, 0, memoryview(b""))
        with pytest.raises(TransportError, match="no peer 0"):
            first.receive(0, 0, memoryview(bytearray()))
        with pytest.raises(TransportError, match="unsigned 64-bit"):
            first.send(1, -1, memoryview(b""))
        with pytest.raises(TransportError, match="read-only"):
            first.receive(1, 0, memoryview(b"abc"))


def test_a_peer_that_closes_or_dies_fails_what_waits_for_it() -> None:
    with group(2) as (first, second):
        first.send(1, 0, memoryview(b"before")).wait(LIMIT_S)
        receive = second.receive(0, 1, memoryview(bytearray(1)))
        first.close()
        with pytest.raises(PeerLostError, match="rank 0 has closed its transport"):
            receive.wait(LIMIT_S)
        kept = bytearray(6)
        second.receive(0, 0, memoryview(kept)).wait(LIMIT_S)
        assert kept == b"before"
        with pytest.raises(PeerLostError):
            second.receive(0, 0, memoryview(kept)).wait(LIMIT_S)
        with pytest.raises(PeerLostError):
            second.send(0, 0, memoryview(b"after")).wait(LIMIT_S)

    meeting = DictRendezvous()
    with group(2, rendezvous=meeting) as (first, _):
        receive = first.receive(1, 0, memoryview(bytearray(1)))
        join(first, meeting.values["headway/default/token"], src=1).close()
        with pytest.raises(PeerLostError, match="rank 1 closed its connection without a goodbye") as caught:
            receive.wait(LIMIT_S)
        assert caught.value.rank == 1
