"""What the gateway's file may hold. `docs/gateway.md` documents every field; a test holds it to these models. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from headway.serving.gateway.discovery.options import (
    DiscoveryOptions,
    ReplicaOptions,
    StaticOptions,
    check_distinct,
)

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=0, le=65535)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Tls(_Part):
    """Files in PEM form."""

    certificate: Path
    """The gateway's certificate and those between it and the root."""
    key: Path


class Listen(_Part):
    """Where the gateway listens."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """An address of this machine; `0.0.0.0` or `::` for all."""
    port: Port = 8080
    """0: one that is free; the first line of output says which."""
    tls: Tls | None = None
    """Left out: plain HTTP."""


class KeyLimits(_Part):
    """What one key may ask for. Left out: without limit."""

    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    """Prompt, as estimated, and output, as counted."""
    concurrent: Count | None = None
    """Requests that are open at once."""


class Key(KeyLimits):
    """One client's key, said in one of three ways, so that it need not stand in the file."""

    name: str = Field(min_length=1)
    """For metrics and logs; the key itself never goes there."""
    env: str | None = None
    """Environment variable that holds the key."""
    file: Path | None = None
    """File that holds the key and nothing else."""
    sha256: str | None = None
    """The key's SHA-256, 64 hexadecimal digits."""
    workflow: str = Field(default="", max_length=256)
    """Kind, or kind/run, of the workflow that its calls are steps of, where they name none."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if sum(each is not None for each in (self.env, self.file, self.sha256)) != 1:
            raise ValueError("a key needs exactly one of env, file and sha256")
        return self

    @field_validator("sha256")
    @classmethod
    def _digits(cls, text: str | None) -> str | None:
        if text is not None and (len(text) != 64 or not set(text.lower()) <= set("0123456789abcdef")):
            raise ValueError("must be 64 hexadecimal digits: printf %s KEY | sha256sum")
        return text.lower() if text is not None else None


class Limits(_Part):
    """What the gateway takes on. Beyond it clients get 413 or 429."""

    body_bytes: Count = 8 * 2**20
    """Of one request. While JSON is parsed nothing else happens: up to some 20 ms a MiB where it is all small parts."""
    open_requests: Count = 20_000
    """In all."""
    requests_per_replica: Count = 1024
    """Open at one replica, in its batch or its queue; where all are full the client gets 429."""
    per_key: KeyLimits = KeyLimits()
    """For keys that don't say otherwise, and for all clients together where there are no keys."""


class Timeouts(_Part):
    """Limits on waiting."""

    connect_s: Seconds = 5.0
    """For a connection to a replica."""
    first_byte_s: Seconds = 120.0
    """From the request to the first byte of a stream."""
    stall_s: Seconds = 60.0
    """Between two chunks of a stream."""
    total_s: Seconds = 3600.0
    """For a request as a whole; the only limit on the wait for an answer that isn't streamed."""
    body_s: Seconds = 60.0
    """For the client to send its request."""
    client_s: Seconds = 60.0
    """For the client to read what waits for it, after which it is dropped."""
    drain_s: Seconds = 30.0
    """For open requests to end when the gateway is stopped."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.connect_s > self.first_byte_s:
            raise ValueError(f"connect_s {self.connect_s:g} is more than first_byte_s {self.first_byte_s:g}")
        if self.first_byte_s > self.total_s:
            raise ValueError(f"first_byte_s {self.first_byte_s:g} is more than total_s {self.total_s:g}")
        return self


class Retries(_Part):
    """What is done when a replica fails before the first byte."""

    attempts: Annotated[int, Field(ge=1, le=10)] = 2
    """In all, each on another replica. 1: no retries."""
    on_too_many: bool = True
    """Whether an engine's 429 is tried elsewhere; 502, 503 and 504 always are."""


class Pool(_Part):
    """Replicas among which a request may be answered by any."""

    name: str = Field(default="default", min_length=1)
    models: tuple[str, ...] = ()
    """Names that clients may ask for; empty: what the replicas serve."""
    policy: str = "learned"
    """See docs/routing.md for the names."""
    options: dict[str, object] = Field(default_factory=dict)
    """The policy's own."""
    seed: int = 0
    """Of the policy's chance."""
    memory: Path | None = None
    """File where the learned policy keeps what it knows, so that it need not begin anew; left out: nowhere."""
    strategies: tuple[str, ...] = ()
    """Policies that a client may choose by the header `routing-strategy`; `*`: all."""
    replicas: tuple[ReplicaOptions, ...] = ()
    """A list that does not change; an address alone is enough of a replica."""
    discovery: tuple[DiscoveryOptions, ...] = ()
    """Sources of replicas that come and go."""
    authorization: Literal["forward", "replace", "drop"] = "drop"
    """What the replicas get of the header: the client's, `engine_key_env`, or none."""
    engine_key_env: str = ""
    """Environment variable with the replicas' key."""
    shed_hopeless: bool = False
    """Whether a request gets 429 at once when the policy predicts that its `x-slo-ttft-ms` will be missed."""
    ask_usage: bool = False
    """Whether engines are asked for the token counts of each stream; the client then gets them too."""
    scrape_s: Seconds = 0.1
    """How often each replica's `/metrics` are read."""

    @field_validator("replicas", mode="before")
    @classmethod
    def _addresses(cls, value: object) -> object:
        if not isinstance(value, list):
            return value
        return [{"url": each} if isinstance(each, str) else each for each in value]

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if not self.replicas and not self.discovery:
            raise ValueError("a pool needs replicas or discovery")
        check_distinct(self.replicas)
        if (self.authorization == "replace") != bool(self.engine_key_env):
            raise ValueError("authorization: replace and engine_key_env go together")
        return self

    @property
    def sources(self) -> tuple[DiscoveryOptions, ...]:
        """Where replicas come from, the fixed list first."""
        fixed = (StaticOptions(replicas=self.replicas),) if self.replicas else ()
        return (*fixed, *self.discovery)


class Journal(_Part):
    """Where decisions are written down, for `headway explain`."""

    path: Path
    max_bytes: Annotated[int, Field(ge=4096)] = 256 * 2**20
    """At this size records are dropped, and counted."""
    prefix_blocks: bool = False
    """Whether a record holds its prompt's hashes: for replaying a day in the simulation; 20 bytes for 64 tokens."""


class Metrics(_Part):
    """Where the gateway's own `/metrics` are."""

    host: str = ""
    port: Port | None = None
    """Left out: on the gateway's own address; else on one of their own, without a key."""

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.host and self.port is None:
            raise ValueError("metrics.host needs metrics.port")
        return self


class Tracing(_Part):
    """Spans to an OpenTelemetry collector."""

    endpoint: str = Field(min_length=1)
    """OTLP over HTTP, e.g. `http://collector:4318/v1/traces`."""
    sample: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the requests without a `traceparent` that are traced."""


class Config(_Part):
    """A gateway."""

    listen: Listen = Listen()
    pools: tuple[Pool, ...] = Field(min_length=1)
    limits: Limits = Limits()
    timeouts: Timeouts = Timeouts()
    retries: Retries = Retries()
    keys: tuple[Key, ...] = ()
    """Who may ask; empty, and no `keys_file`: anybody."""
    keys_file: Path | None = None
    """A YAML file with a list of more keys."""
    journal: Journal | None = None
    metrics: Metrics = Metrics()
    tracing: Tracing | None = None
    admin_token_env: str = ""
    """Environment variable with the token that opens `/admin/state`; empty: there is no such page."""

    @model_validator(mode="after")
    def _apart(self) -> Self:
        port, host = self.metrics.port, self.metrics.host or self.listen.host
        everywhere = {host, self.listen.host} & {"0.0.0.0", "::"}
        if port and port == self.listen.port and (host == self.listen.host or everywhere):
            raise ValueError("metrics.port is listen.port: leave it out for /metrics on the gateway's own address")
        return self

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        for what, names in (
            ("pool", [pool.name for pool in self.pools]),
            ("model", [model for pool in self.pools for model in pool.models]),
            ("key", [key.name for key in self.keys]),
            ("memory", [str(pool.memory) for pool in self.pools if pool.memory is not None]),
        ):
            twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
            if twice is not None:
                raise ValueError(f"{what} {twice!r} is there twice")
        return self
