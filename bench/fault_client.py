"""A client that may misbehave, for `bench.gateway_faults`: what it sends is bytes, what it gets is told as it came."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_TOKEN = re.compile(rb'"content": ?"[^"]')
LIMIT_S = 20.0
"""For an answer; nothing here takes longer on purpose."""


@dataclass(frozen=True)
class Got:
    """What a client got.

    Attributes:
        status: of HTTP; 0: none came.
        end: "whole" (a complete answer; of a stream: its [DONE]), "error event" (a stream that ends with one), "no
            [DONE]" (a stream that ends in order, but without it), "cut" (the connection ended first), "nothing" (it
            ended before any answer), "hangs" (nothing more came within the limit).
        code: of the error, where the answer holds one.
        tokens: events with a token.
        after_s: until that end.
        headers: of the answer, names in lower case.
    """

    status: int
    end: str
    code: str
    tokens: int
    after_s: float
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """For the table."""
        parts = [str(self.status) if self.status else "no status"]
        if self.tokens:
            parts.append(f"{self.tokens} tokens")
        parts.append(f"{self.end} {self.code}".strip())
        return ", ".join(parts)


def body(prompt: str, *, stream: bool = True, model: str = "m", **more: object) -> bytes:
    """A chat completion's body."""
    asked = {"model": model, "stream": stream, "messages": [{"role": "user", "content": prompt}], **more}
    return json.dumps(asked).encode()


def post(
    content: bytes, *, headers: Sequence[str] = (), length: int | None = None, path: str = "/v1/chat/completions"
) -> bytes:
    """A request as it goes over the wire; `length` is what it says of its body, where that isn't the truth."""
    lines = [f"POST {path} HTTP/1.1", "Host: gateway", "Content-Type: application/json", *headers]
    if not any(line.lower().startswith(("transfer-encoding", "content-length")) for line in headers):
        lines.append(f"Content-Length: {len(content) if length is None else length}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def told(raw: bytes, after_s: float, *, closed: bool) -> Got:
    """What `raw`, all that came, amounts to; `closed`: the connection has ended."""
    head, split, rest = raw.partition(b"\r\n\r\n")
    if not split:
        return Got(0, "nothing" if closed else "hangs", "", 0, after_s)
    first, *lines = head.decode("latin-1").split("\r\n")
    status = int(first.split(" ")[1])
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    content, complete = contents(rest, headers, closed=closed)
    streamed = headers.get("content-type", "").startswith("text/event-stream")
    tokens = len(_TOKEN.findall(content)) if streamed else 0
    if complete is None:
        return Got(status, "cut" if closed else "hangs", error_code(content), tokens, after_s, headers)
    if streamed:
        code = error_code(content)
        if code:
            return Got(status, "error event", code, tokens, after_s, headers)
        end = "whole" if content.rstrip().endswith(b"data: [DONE]") else "no [DONE]"
        return Got(status, end, "", tokens, after_s, headers)
    return Got(status, "whole", error_code(content), tokens, after_s, headers)


def contents(rest: bytes, headers: Mapping[str, str], *, closed: bool) -> tuple[bytes, bool | None]:
    """The body, and whether it is complete (True) or not (None)."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        parts: list[bytes] = []
        at = 0
        while (end := rest.find(b"\r\n", at)) >= 0:
            try:
                size = int(rest[at:end], 16)
            except ValueError:
                return b"".join(parts), None
            if size == 0:
                return b"".join(parts), True
            parts.append(rest[end + 2 : end + 2 + size])
            at = end + 2 + size + 2
        return b"".join(parts), None
    if "content-length" in headers:
        length = int(headers["content-length"])
        return rest[:length], True if len(rest) >= length else None
    return rest, True if closed else None


def error_code(content: bytes) -> str:
    """The code of an error in a body, or in the last event of a stream; empty where there is none."""
    last = content.rstrip().split(b"\n\n")[-1] if b"data:" in content else content
    if last.startswith(b"data: [DONE]"):
        last = content.rstrip().split(b"\n\n")[-2] if content.count(b"\n\n") > 1 else b""
    try:
        found = json.loads(last.removeprefix(b"data:"))
    except ValueError:
        return ""
    error = found.get("error") if isinstance(found, dict) else None
    return str(error.get("code") or error.get("message") or "error") if isinstance(error, dict) else ""


async def exchange(
    port: int, parts: Sequence[bytes | float], *, limit_s: float = LIMIT_S, tokens: int | None = None
) -> Got:
    """Send bytes and wait seconds in turn, then read until the answer is complete or the connection ends.

    Args:
        parts: bytes are sent, numbers are waited.
        tokens: hang up when so many have come.
    """
    begun_s = time.perf_counter()
    raw = bytearray()

    def got(*, closed: bool) -> Got:
        return told(bytes(raw), time.perf_counter() - begun_s, closed=closed)

    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError as error:
        return Got(0, f"no connection ({error.strerror})", "", 0, time.perf_counter() - begun_s)
    sending = asyncio.create_task(_send(writer, parts))
    try:
        async with asyncio.timeout(limit_s):
            while True:
                now = got(closed=False)
                if now.end != "hangs" or (tokens is not None and now.tokens >= tokens):
                    return now
                data = await reader.read(65536)
                if not data:
                    return got(closed=True)
                raw += data
    except TimeoutError:
        return got(closed=False)
    except (ConnectionError, OSError):
        return got(closed=True)
    finally:
        sending.cancel()
        await asyncio.wait([sending])
        writer.transport.abort()


async def _send(writer: asyncio.StreamWriter, parts: Sequence[bytes | float]) -> None:
    """Until the other side no longer takes it: it may have answered before it had all."""
    with contextlib.suppress(OSError):
        for part in parts:
            if isinstance(part, bytes):
                writer.write(part)
                await writer.drain()
            else:
                await asyncio.sleep(part)


async def ask(port: int, prompt: str, *, stream: bool = True, limit_s: float = LIMIT_S, model: str = "m") -> Got:
    """A proper request."""
    return await exchange(port, [post(body(prompt, stream=stream, model=model))], limit_s=limit_s)


async def get(port: int, path: str, *, headers: Sequence[str] = ()) -> str:
    """A page, as text. OSError or TimeoutError where there is none."""
    async with asyncio.timeout(LIMIT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            lines = [f"GET {path} HTTP/1.0", "Host: gateway", *headers]
            writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")
            raw = await reader.read(-1)
        finally:
            writer.transport.abort()
    return raw.partition(b"\r\n\r\n")[2].decode(errors="replace")
