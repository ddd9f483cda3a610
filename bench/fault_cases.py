"""The rows of `bench.gateway_faults` that are one request, or some, with a fault: what is wrong, what comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from bench.fault_client import Got, ask, body, exchange, post
from bench.fault_lab import BODY_BYTES, TIMEOUTS, Lab, Settings
from bench.rude_engine import WAYS, Rude

FIRST_S, STALL_S = TIMEOUTS["first_byte_s"], TIMEOUTS["stall_s"]
HEAD_S, IDLE_S = 10.0, 75.0
"""For which the gateway waits for the rest of a head, and keeps a connection on which nothing comes."""
LIMIT_S = IDLE_S + 15
"""Of this client's patience."""
SOON_S = 1.0
"""For what happens without a wait; the machine may be busy."""


@dataclass(frozen=True)
class Expected:
    """What a row must show.

    Attributes:
        statuses: that the client may get; 0: none.
        ends: how the answer may end, as `Got.end`.
        least_s, most_s: when.
        recorded: each of these is in what the gateway recorded.
        tokens: at least so many came.
        header: that the answer must have.
    """

    statuses: tuple[int, ...]
    ends: tuple[str, ...]
    most_s: float = SOON_S
    least_s: float = 0.0
    recorded: tuple[str, ...] = ()
    tokens: int = 0
    header: str = ""

    @property
    def words(self) -> str:
        """For the table."""
        status = " or ".join(str(each) if each else "no status" for each in self.statuses)
        text = f"{status}, {' or '.join(self.ends)}"
        return f"{text}, {self.header}" if self.header else text


def differs(expected: Expected, got: Got, recorded: str) -> str:
    """In what an outcome is not the expected one; empty: in nothing. Pure."""
    found = []
    if got.status not in expected.statuses:
        found.append(f"status {got.status}")
    if got.end not in expected.ends:
        found.append(f"end {got.end!r}")
    if not expected.least_s <= got.after_s <= expected.most_s:
        found.append(f"{got.after_s:.2f} s is not in {expected.least_s:g} to {expected.most_s:g} s")
    if got.tokens < expected.tokens:
        found.append(f"{got.tokens} of {expected.tokens} tokens")
    if expected.header and expected.header not in got.headers:
        found.append(f"no {expected.header}")
    found += [f"not recorded: {each}" for each in expected.recorded if each not in recorded]
    return "; ".join(found)


@dataclass(frozen=True)
class Case:
    """A row.

    Attributes:
        name: in the table and on the command line.
        expected: what it must show.
        run: plays it and says what the client got; of several clients, the worst.
        engines: one letter each: R does wrong as it is asked to, G never does.
        settings: parts of the gateway's file.
    """

    name: str
    expected: Expected
    run: Callable[[Lab, Sequence[Rude]], Awaitable[Got]]
    engines: str = "R"
    settings: Settings = field(default_factory=dict)


def worst(outcomes: Sequence[Got]) -> Got:
    """The one that a client would like least: without status before errors before cut ones, then the slowest. Pure."""
    order = {"whole": 0, "no [DONE]": 1, "error event": 2, "cut": 3}
    return max(outcomes, key=lambda got: (got.status != 200, got.status == 0, order.get(got.end, 4), got.after_s))


async def prompted(lab: Lab, rude: Sequence[Rude], *, way: str, stream: bool = True, times: int = 1) -> Got:
    """Ask so many times, one after the other, for something wrong."""
    return worst([await ask(lab.port, f"Please #{way} now", stream=stream) for _ in range(times)])


async def sent(lab: Lab, rude: Sequence[Rude], *, parts: Sequence[bytes | float]) -> Got:
    """Send these bytes."""
    return await exchange(lab.port, parts, limit_s=LIMIT_S)


async def many(lab: Lab, rude: Sequence[Rude], *, way: str, count: int) -> Got:
    """Ask one after the other on few connections, so that the gateway's to the engine are used again."""
    outcomes = []
    for _ in range(count // 4):
        outcomes += await asyncio.gather(*(ask(lab.port, f"#{way}") for _ in range(4)))
    return worst(outcomes)


ERROR_EVENT = ("error event",)
WHOLE = ("whole",)
BAD_GATEWAY = Expected((502,), WHOLE, recorded=("requests 502 1",))
RETRIED = Expected((200,), WHOLE, recorded=("retries",), tokens=20)
BROKEN = Expected((200,), ERROR_EVENT, tokens=5)

BEFORE = ("garbage", "close", "reset", "long-head", "short")
"""Ways to fail before the first byte; of `short` the body is whole only when it isn't a stream."""
MIDDLE = ("close-mid", "reset-mid", "half-event")


def engine_cases() -> list[Case]:
    """Engines that do wrong."""
    rows = []
    for way in BEFORE:
        run = partial(prompted, way=way, stream=way != "short")
        rows.append(Case(f"{WAYS[way]}; no other replica", BAD_GATEWAY, run))
    for way in BEFORE:
        whole = Expected((200,), WHOLE, recorded=("retries",))
        run = partial(prompted, way=way, stream=way != "short", times=2)
        rows.append(Case(f"{WAYS[way]}; another replica there", whole, run, "RG"))
    rows += [Case(WAYS[way], BROKEN, partial(prompted, way=way)) for way in MIDDLE]
    late = Expected((504,), WHOLE, FIRST_S + SOON_S, FIRST_S, ("requests 504 1",))
    rows += [
        Case("nothing, for ever; no other replica", late, partial(prompted, way="stall-first")),
        Case("a head, then nothing; no other replica", late, partial(prompted, way="stall-head")),
        Case(
            "a head that never ends",
            Expected((502, 504), WHOLE, FIRST_S + SOON_S),
            partial(prompted, way="endless-head"),
        ),
        Case(
            "five tokens, then nothing",
            Expected((200,), ERROR_EVENT, STALL_S + SOON_S, STALL_S, tokens=5),
            partial(prompted, way="stall-mid"),
        ),
        Case(WAYS["bad-chunk"], replace(BROKEN, most_s=STALL_S + SOON_S), partial(prompted, way="bad-chunk")),
        Case("status 500", Expected((500,), WHOLE, recorded=("requests 500 1",)), partial(prompted, way="500")),
        Case(
            "status 429, Retry-After 7; no other replica",
            Expected((429,), WHOLE, header="retry-after"),
            partial(prompted, way="429"),
        ),
        Case("status 429; another replica there", RETRIED, partial(prompted, way="429", times=2), "RG"),
        Case("a page of HTML with status 502; no other replica", BAD_GATEWAY, partial(prompted, way="html-502")),
        Case(
            "a page of HTML with status 502; another there", RETRIED, partial(prompted, way="html-502", times=2), "RG"
        ),
        Case("a page of HTML with status 200", Expected((200, 502), WHOLE), partial(prompted, way="html")),
        Case("events that hold no JSON", Expected((200,), WHOLE), partial(prompted, way="bad-events")),
        Case("a stream that ends without [DONE]", BROKEN, partial(prompted, way="no-done")),
        Case(
            "connections closed after half of 200 answers",
            Expected((200,), WHOLE, tokens=5),
            partial(many, way="flaky", count=200),
        ),
    ]
    return rows


def _framed(content: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(content), content)


GOOD = body("Hi")
LARGE = body("x" * (BODY_BYTES + 1000))
CHUNKED = ("Transfer-Encoding: chunked",)
REFUSED = ("whole", "cut")
"""A refusal may close the connection before the client has sent everything."""


def client_cases() -> list[Case]:
    """Clients that do wrong, and clients that do right in a rare way."""
    body_s = TIMEOUTS["body_s"]

    def row(name: str, expected: Expected, *parts: bytes | float) -> Case:
        return Case(name, expected, partial(sent, parts=parts), "G")

    bad = Expected((400,), REFUSED)
    large = Expected((413,), REFUSED)
    fine = Expected((200,), WHOLE, tokens=20)
    plain_post = post(GOOD)
    head, _, _ = plain_post.partition(b"\r\n\r\n")
    return [
        row("body above the limit", large, post(LARGE)),
        row("body above the limit, said only", large, post(b"{", length=10**12)),
        row("body above the limit, in chunks", large, post(_framed(LARGE) + b"0\r\n\r\n", headers=CHUNKED)),
        row("body in chunks", fine, post(_framed(GOOD[:30]) + _framed(GOOD[30:]) + b"0\r\n\r\n", headers=CHUNKED)),
        row(
            "body in chunks, one byte each",
            fine,
            post(b"".join(_framed(bytes([b])) for b in GOOD) + b"0\r\n\r\n", headers=CHUNKED),
        ),
        row(
            "broken chunks", Expected((400, 0), (*REFUSED, "nothing")), post(b"zz\r\n{}\r\n0\r\n\r\n", headers=CHUNKED)
        ),
        row("no JSON", bad, post(b'{"model": "m", ')),
        row("JSON that is no object", bad, post(b"[1, 2]")),
        row("bytes that are no UTF-8", bad, post(b'{"model": "\xff\xfe"}')),
        row("nested 100,000 deep", bad, post(b'{"model":"m","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}")),
        row("no messages", bad, post(b'{"model": "m"}')),
        row("messages that are a number", bad, post(b'{"model": "m", "messages": 7}')),
        row(
            "a number of 5,000 digits",
            Expected((400, 200), WHOLE),
            post(
                b'{"model":"m","stream":true,"messages":[{"role":"user","content":"Hi"}],"seed":' + b"9" * 5000 + b"}"
            ),
        ),
        row("a model that nobody serves", Expected((404,), WHOLE), post(body("Hi", model="no-such"))),
        row("an empty body", bad, post(b"")),
        row(
            "content-length above the body",
            Expected((408,), REFUSED, body_s + SOON_S, body_s),
            post(GOOD, length=len(GOOD) + 10),
        ),
        row("content-length below the body", bad, post(GOOD, length=len(GOOD) - 10)),
        row("content-length that is no number", bad, post(GOOD, headers=("Content-Length: many",))),
        row(
            "content-length twice, unlike",
            bad,
            post(GOOD, headers=("Content-Length: 5", f"Content-Length: {len(GOOD)}")),
        ),
        row(
            "content-length and chunks at once",
            bad,
            post(_framed(GOOD) + b"0\r\n\r\n", headers=(f"Content-Length: {len(GOOD)}", *CHUNKED)),
        ),
        row("a header of a megabyte", Expected((400, 431), REFUSED), post(GOOD, headers=("X-Long: " + "a" * 2**20,))),
        row(
            "50,000 headers",
            Expected((400, 431), REFUSED, 5.0),
            post(GOOD, headers=[f"X-{n}: a" for n in range(50_000)]),
        ),
        row("no HTTP", Expected((400, 0), (*REFUSED, "nothing")), bytes(range(256)) * 4),
        row("HTTP/1.0", fine, plain_post.replace(b"HTTP/1.1", b"HTTP/1.0", 1)),
        row(
            "the body a second after the head", Expected((200,), WHOLE, 1 + SOON_S, 1.0), head + b"\r\n\r\n", 1.0, GOOD
        ),
        row(
            "a body that comes a byte each 0.3 s",
            Expected((408,), REFUSED, body_s + 1.0, body_s),
            head + b"\r\n\r\n",
            *_slow(GOOD, 0.3),
        ),
        row(
            "a head that comes a byte each 0.3 s",
            Expected((408,), REFUSED, HEAD_S + SOON_S, HEAD_S),
            *_slow(plain_post[:100], 0.3),
        ),
        row("a connection that sends nothing", Expected((0,), ("nothing",), IDLE_S + 5.0), LIMIT_S),
        row("a path that leaves /v1", Expected((404,), WHOLE), post(GOOD, path="/v1/../metrics")),
        row(
            "GET of a path that takes POST",
            Expected((404, 405), WHOLE),
            b"GET /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n",
        ),
    ]


def _slow(content: bytes, gap_s: float) -> list[bytes | float]:
    parts: list[bytes | float] = []
    for number in range(min(len(content), 60)):
        parts += [content[number : number + 1], gap_s]
    return parts
