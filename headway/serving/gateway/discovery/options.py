"""What a user may say of where replicas come from: the `discovery` part of the gateway's file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from headway.serving.replica import ReplicaSpec

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Port = Annotated[int, Field(ge=1, le=65535)]


class _Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class About(_Options):
    """What holds for all replicas that a source finds, and that the source itself does not say."""

    models: tuple[str, ...] = ()
    """The names that they serve; empty: each is asked."""
    device: str = ""
    """Kind of accelerator, e.g. "a30"."""
    speed: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Prefill speed against the others."""
    cache_tokens: int | None = Field(default=None, ge=0)
    """Size of the prefix cache, tokens; left out: each is asked. 0: it has none."""


class ReplicaOptions(About):
    """One replica in a list."""

    url: str
    """`http://host:port`, or that with `/v1` at its end."""
    name: str = ""
    """Empty: host and port of the address."""

    @field_validator("url")
    @classmethod
    def _http(cls, url: str) -> str:
        return address(url)

    def spec(self) -> ReplicaSpec:
        """The replica."""
        return spec_of(self.name or urlsplit(self.url).netloc, self.url, self)


def address(url: str) -> str:
    """Of an engine, `http://host:port` of that or of that with `/v1` at its end. ValueError: it is none."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url.rpartition('@')[2]!r} is not an address like http://host:8000")
    if parts.username or parts.password:  # which is not shown
        raise ValueError(f"the address of {parts.hostname} has a name or password: use engine_key_env")
    if parts.query or parts.fragment:
        raise ValueError(f"{url!r}: an address has no query or fragment")
    _ = parts.port  # raises ValueError, which names the port, where it is none
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def spec_of(name: str, url: str, about: About, *, device: str = "") -> ReplicaSpec:
    """A replica at `url` of which `about` holds; `device`, where known, is the replica's own."""
    return ReplicaSpec(
        name=name,
        url=url,
        models=about.models,
        device=device or about.device,
        speed=about.speed,
        cache_tokens=about.cache_tokens,
    )


class StaticOptions(_Options):
    """A list that does not change."""

    kind: Literal["static"] = "static"
    replicas: tuple[ReplicaOptions, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _distinct(self) -> StaticOptions:
        check_distinct(self.replicas)
        return self


def check_distinct(replicas: tuple[ReplicaOptions, ...]) -> None:
    """ValueError, which names the second one, where two replicas have one name."""
    seen: set[str] = set()
    for replica in replicas:
        name = replica.spec().name
        if name in seen:
            raise ValueError(f"two replicas are named {name!r}: give one of them another name")
        seen.add(name)


class FileOptions(_Options):
    """A YAML or JSON file with a list of replicas, read again whenever it changes."""

    kind: Literal["file"]
    path: Path
    poll_s: Seconds = 1.0
    """How often it is looked at."""


class DnsOptions(About):
    """The addresses of one name, asked again when the answer expires."""

    kind: Literal["dns"]
    host: str = Field(min_length=1)
    """For `srv`, with service and protocol: `_http._tcp.engines.default.svc.cluster.local`."""
    record: Literal["address", "srv"] = "address"
    """`address`: A and AAAA; `srv`: hosts and ports."""
    port: Port | None = None
    """The engines' port; needed for `address`, since `srv` brings its own."""
    scheme: Literal["http", "https"] = "http"
    nameservers: tuple[str, ...] = ()
    """IP addresses; empty: those of the system."""
    nameserver_port: Port = 53
    at_least_s: Seconds = 1.0
    """Asked again no sooner than this, however short the answer's time to live is,"""
    at_most_s: Seconds = 30.0
    """and no later than this."""
    timeout_s: Seconds = 5.0
    keep_s: float = Field(default=60.0, ge=0, allow_inf_nan=False)
    """The last set is kept for so long when there is no answer or the name is gone."""

    @model_validator(mode="after")
    def _complete(self) -> DnsOptions:
        if self.record == "address" and self.port is None:
            raise ValueError("port is missing: an A or AAAA record has none (or use record: srv)")
        if self.record == "srv" and self.port is not None:
            raise ValueError("port does not go with record: srv, which brings its own")
        if self.at_least_s > self.at_most_s:
            raise ValueError(f"at_least_s {self.at_least_s:g} is more than at_most_s {self.at_most_s:g}")
        return self


class KubernetesOptions(About):
    """The ready endpoints of a Service, followed through its EndpointSlices."""

    kind: Literal["kubernetes"]
    service: str = Field(min_length=1)
    namespace: str = ""
    """Empty: that of the pod that the gateway runs in, or of the kubeconfig's context; else `default`."""
    port: Port | str = ""
    """A port's number or name; empty: the slice's only one, or the one named `http`."""
    scheme: Literal["http", "https"] = "http"
    kubeconfig: Path | None = None
    """Left out: the pod's own account inside a cluster, else the usual kubeconfig."""
    context: str = ""
    """Of the kubeconfig; empty: its current one."""
    device_key: str = "headway.dev/device"
    """Label or annotation of the EndpointSlice that names the accelerator. (A Service's labels are copied there.)"""
    device_node_label: str = ""
    """Label of the endpoint's node that names it, e.g. `nvidia.com/gpu.product`; empty: nodes are not asked.
    The account must be allowed to get nodes."""
    timeout_s: Seconds = 10.0
    watch_s: Annotated[int, Field(ge=1, le=3600)] = 240
    """The server is asked to end a watch after so long; it is then begun anew where it ended."""
    retry_at_most_s: Seconds = 30.0
    """Longest wait before another try after a failure."""


DiscoveryOptions = Annotated[StaticOptions | FileOptions | DnsOptions | KubernetesOptions, Field(discriminator="kind")]
"""One source. The gateway's file may hold several."""
