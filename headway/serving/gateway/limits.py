"""Who may ask, and how much: keys, token buckets, counts of open requests. No clock of its own: time is passed in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from headway.serving.gateway.answers import AnswerError
from headway.serving.gateway.config import Key, KeyLimits
from headway.serving.words import counted

MINUTE_S = 60.0
ANYBODY = "anybody"
"""The client's name where the gateway asks for no key."""


class Bucket:
    """A token bucket: holds a minute's worth at most, and fills steadily.

    `take` may be corrected by `add` of a negative amount later, once the true cost is known: then it goes below zero,
    and the client waits longer next time.

    Args:
        per_minute: what flows in.
        now_s: the clock; the bucket begins full.
    """

    __slots__ = ("_at_s", "_level", "_per_minute")

    def __init__(self, per_minute: float, now_s: float) -> None:
        self._per_minute = self._level = float(per_minute)
        self._at_s = now_s

    def wait_s(self, amount: float, now_s: float) -> float:
        """Seconds until `amount` can be taken; 0: now. More than the bucket holds can be taken when it is full."""
        self._level = min(self._per_minute, self._level + (now_s - self._at_s) * self._per_minute / MINUTE_S)
        self._at_s = now_s
        missing = min(amount, self._per_minute) - self._level
        return max(0.0, missing * MINUTE_S / self._per_minute)

    def add(self, amount: float) -> None:
        """Put in, or take out what is negative."""
        self._level += amount


@dataclass(slots=True)
class Client:
    """One key's holder.

    Attributes:
        name: for metrics.
        limits: what it may ask for.
        workflow: that its calls are steps of, where they name none.
        open_requests: how many of its requests are open now.
    """

    name: str
    limits: KeyLimits
    workflow: str = ""
    open_requests: int = 0
    _requests: Bucket | None = field(default=None)
    _tokens: Bucket | None = field(default=None)

    def limit(self, limits: KeyLimits) -> None:
        """Other limits from now on; where they differ, its buckets are full again."""
        if limits != self.limits:
            self.limits, self._requests, self._tokens = limits, None, None

    def enter(self, tokens: int, now_s: float) -> None:
        """Take on a request of `tokens` prompt tokens. AnswerError 429 where it is too many; then nothing was taken."""
        most = self.limits.concurrent
        if most is not None and self.open_requests >= most:
            raise _too_many(f"{self.name} has {counted(most, 'request')} open, its limit", "concurrent_requests", 1.0)
        self._requests = self._requests or _bucket(self.limits.requests_per_minute, now_s)
        self._tokens = self._tokens or _bucket(self.limits.tokens_per_minute, now_s)
        for bucket, amount, what in ((self._requests, 1, "requests"), (self._tokens, tokens, "tokens")):
            wait_s = bucket.wait_s(amount, now_s) if bucket is not None else 0.0
            if wait_s > 0:
                raise _too_many(f"{self.name} is at its limit of {what} per minute", f"{what}_per_minute", wait_s)
        self.open_requests += 1
        if self._requests is not None:
            self._requests.add(-1)
        if self._tokens is not None:
            self._tokens.add(-tokens)

    def leave(self, more_tokens: int) -> None:
        """A request has ended that took `more_tokens` beside what `enter` took."""
        self.open_requests -= 1
        if self._tokens is not None:
            self._tokens.add(-more_tokens)


class KeyRing:
    """All keys. They are looked up by their SHA-256, so neither the keys nor their comparison can be seen from outside.

    Args:
        keys: each with its sha256; empty: anybody may ask.
        per_key: limits of those that have none of their own.
    """

    def __init__(self, keys: Sequence[Key], per_key: KeyLimits) -> None:
        self._anybody = Client(ANYBODY, per_key) if not keys else None
        self._clients: dict[str, Client] = {}
        self.replace(keys, per_key)

    def replace(self, keys: Sequence[Key], per_key: KeyLimits) -> None:
        """Other keys and limits from now on; who keeps its name keeps the count of its open requests."""
        before = {client.name: client for client in self._clients.values()}
        clients = {}
        for key in keys:
            own = {name: value for name in KeyLimits.model_fields if (value := getattr(key, name)) is not None}
            limits = per_key.model_copy(update=own)
            client = before.get(key.name) or Client(key.name, limits)
            client.limit(limits)
            client.workflow = key.workflow
            clients[key.sha256 or ""] = client
        self._clients = clients
        if keys:
            self._anybody = None
        else:
            self._anybody = self._anybody or Client(ANYBODY, per_key)
            self._anybody.limit(per_key)

    def client(self, authorization: str) -> Client:
        """Whose key the Authorization header holds. AnswerError 401 where it holds none of ours."""
        if self._anybody is not None:
            return self._anybody
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise AnswerError(
                401,
                "no key: send the header Authorization: Bearer KEY",
                code="missing_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        digest = sha256(key.strip().encode("utf-8", "surrogateescape")).hexdigest()
        client = self._clients.get(digest)
        if client is None:
            raise AnswerError(
                401, "there is no such key", code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"}
            )
        return client


def _bucket(per_minute: int | None, now_s: float) -> Bucket | None:
    return Bucket(per_minute, now_s) if per_minute is not None else None


def _too_many(message: str, code: str, wait_s: float) -> AnswerError:
    return AnswerError(429, message, code=code, retry_after_s=wait_s)
