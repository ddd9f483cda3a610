"""Replicas from a DNS server that answers over UDP on this machine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import cast

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset
import pytest
from pydantic import ValidationError

from headway.errors import UsageError
from headway.serving.gateway.discovery.dns import DnsSource
from headway.serving.gateway.discovery.options import DnsOptions
from headway.serving.gateway.discovery.source import Replicas

LIMIT_S = 10.0
HOST = "engines.test"


class NameServer(asyncio.DatagramProtocol):
    """Knows some records; can be told to refuse, to be silent, or to know no names.

    Attributes:
        records: (type, text) of the one name that it knows.
        ttl_s: of its answers.
        mood: `answer`, `nxdomain`, `servfail` or `silent`.
        asked: questions so far.
    """

    def __init__(self) -> None:
        self.records: list[tuple[str, str]] = []
        self.ttl_s = 1
        self.mood = "answer"
        self.asked = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.asked += 1
        if self.mood == "silent":
            return
        query = dns.message.from_wire(data)
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.AA | dns.flags.RA
        question = query.question[0]
        if self.mood != "answer" or question.name.to_text() != f"{HOST}.":
            answer.set_rcode(dns.rcode.SERVFAIL if self.mood == "servfail" else dns.rcode.NXDOMAIN)
        else:
            kind = dns.rdatatype.to_text(question.rdtype)
            found = [text for each, text in self.records if each == kind]
            if found:
                answer.answer.append(dns.rrset.from_text(question.name, self.ttl_s, "IN", kind, *found))
        self._transport.sendto(answer.to_wire(), addr)


@asynccontextmanager
async def serving() -> AsyncGenerator[tuple[NameServer, int], None]:
    transport, server = await asyncio.get_running_loop().create_datagram_endpoint(
        NameServer, local_addr=("127.0.0.1", 0)
    )
    try:
        yield server, transport.get_extra_info("sockname")[1]
    finally:
        transport.close()


def _options(server_port: int, **more: object) -> DnsOptions:
    given = {
        "kind": "dns",
        "host": HOST,
        "port": 8000,
        "nameservers": ["127.0.0.1"],
        "nameserver_port": server_port,
        "at_least_s": 0.05,
        "at_most_s": 0.1,
        "timeout_s": 0.3,
        **more,
    }
    return DnsOptions.model_validate({name: value for name, value in given.items() if value is not None})


async def _next(updates: AsyncGenerator[Replicas, None]) -> list[str]:
    return [spec.url for spec in await asyncio.wait_for(anext(updates), LIMIT_S)]


def test_addresses_come_and_go() -> None:
    async def follow() -> None:
        async with serving() as (server, port):
            server.records = [("A", "10.0.0.2"), ("A", "10.0.0.1"), ("AAAA", "fd00::1")]
            async with aclosing(DnsSource(_options(port, device="l20", models=["m"])).watch()) as updates:
                first = await asyncio.wait_for(anext(updates), LIMIT_S)
                # A dual-stack replica is one replica: its AAAA record is not counted beside its A record.
                assert [spec.url for spec in first] == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]
                assert {(spec.device, spec.models) for spec in first} == {("l20", ("m",))}
                server.records = [("A", "10.0.0.3")]
                assert await _next(updates) == ["http://10.0.0.3:8000"]
                server.records = [("AAAA", "fd00::1")]
                assert await _next(updates) == ["http://[fd00::1]:8000"]

    asyncio.run(follow())


def test_srv_brings_hosts_and_ports_of_the_best_priority() -> None:
    async def follow() -> None:
        async with serving() as (server, port):
            server.records = [("SRV", "1 5 8001 a.test."), ("SRV", "1 5 8002 b.test."), ("SRV", "2 5 8003 c.test.")]
            options = _options(port, port=None, record="srv", scheme="https")
            async with aclosing(DnsSource(options).watch()) as updates:
                assert await _next(updates) == ["https://a.test:8001", "https://b.test:8002"]

    asyncio.run(follow())


@pytest.mark.parametrize("mood", ["nxdomain", "servfail", "silent"])
def test_without_an_answer_the_set_stays_for_a_while_and_is_then_empty(
    mood: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def follow() -> None:
        clock = asyncio.get_running_loop().time
        async with serving() as (server, port):
            server.records = [("A", "10.0.0.1")]
            async with aclosing(DnsSource(_options(port, keep_s=0.6)).watch()) as updates:
                assert await _next(updates) == ["http://10.0.0.1:8000"]
                server.mood, good_s = mood, clock()
                assert await _next(updates) == []
                assert clock() - good_s > 0.4  # the last good answer may have come just before
                server.mood = "answer"
                assert await _next(updates) == ["http://10.0.0.1:8000"]

    with caplog.at_level(logging.WARNING):
        asyncio.run(follow())
    told = [record.getMessage() for record in caplog.records]
    assert len([line for line in told if "; 1 replica from before kept 0.6 s" in line]) == 1
    assert len([line for line in told if "it has no replicas" in line]) == 1
    assert len([line for line in told if "answers again" in line]) == 1


def test_a_short_hiccup_changes_nothing() -> None:
    async def follow() -> None:
        async with serving() as (server, port):
            server.records = [("A", "10.0.0.1")]
            async with aclosing(DnsSource(_options(port, keep_s=60)).watch()) as updates:
                await _next(updates)
                server.mood = "nxdomain"
                waiting = asyncio.create_task(_next(updates))
                await asyncio.sleep(0.3)
                assert not waiting.done()
                server.mood, server.records = "answer", [("A", "10.0.0.2")]
                assert await waiting == ["http://10.0.0.2:8000"]

    asyncio.run(follow())


def test_the_time_to_live_says_when_to_ask_again() -> None:
    async def follow() -> None:
        async with serving() as (server, port):
            server.records, server.ttl_s = [("A", "10.0.0.1")], 300
            async with aclosing(DnsSource(_options(port, at_most_s=600)).watch()) as updates:
                await _next(updates)
                asked = server.asked
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(updates), 0.4)
                assert server.asked == asked

    asyncio.run(follow())


def test_a_time_to_live_of_none_is_not_a_flood() -> None:
    async def follow() -> None:
        async with serving() as (server, port):
            server.records, server.ttl_s = [("A", "10.0.0.1")], 0
            async with aclosing(DnsSource(_options(port, at_least_s=0.2, at_most_s=1)).watch()) as updates:
                await _next(updates)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(updates), 0.5)
                assert server.asked <= 2 * 4  # A and AAAA, at most four times

    asyncio.run(follow())


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"port": None}, "port is missing"),
        ({"record": "srv"}, "port does not go with record: srv"),
        ({"at_least_s": 5, "at_most_s": 1}, "more than at_most_s"),
    ],
)
def test_options_that_contradict_each_other(more: dict[str, object], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        _options(53, **more)


def test_a_name_server_must_be_an_address() -> None:
    with pytest.raises(UsageError, match="nameservers"):
        DnsSource(_options(53, nameservers=["ns.example"]))
