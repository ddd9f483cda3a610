"""`headway gateway --check`: everything that can be known to be wrong before the gateway runs, and what would run."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from headway.cluster.units import format_bytes, format_time
from headway.errors import UsageError
from headway.serving.gateway.config import Config, KeyLimits, Pool
from headway.serving.gateway.config_file import load_keys
from headway.serving.gateway.discovery.build import source_of
from headway.serving.gateway.discovery.options import StaticOptions
from headway.serving.gateway.gateway import admin_token, engine_key
from headway.serving.gateway.policy_maker import check_policy
from headway.serving.gateway.server import tls_context
from headway.serving.gateway.tracing import check_tracing
from headway.serving.gateway.training_process import remembered
from headway.serving.policies import known_as


def checked(config: Config, environment: Mapping[str, str]) -> list[str]:
    """What would run, in lines. UsageError: the first thing that is wrong. Nothing is listened on or written."""
    return list(_lines(config, environment))


def _lines(config: Config, environment: Mapping[str, str]) -> Iterator[str]:
    listen = config.listen
    if listen.tls is not None:
        tls_context(listen.tls)
    _check_address(listen.host, listen.port, "listen")
    if config.metrics.port is not None:
        _check_address(config.metrics.host or listen.host, config.metrics.port, "metrics")
    if config.tracing is not None:
        check_tracing(config.tracing.endpoint)
    if config.journal is not None:
        _check_journal(config.journal.path)
    scheme = "https" if listen.tls is not None else "http"
    yield f"listens on {scheme}://{listen.host}:{listen.port}"
    for pool in config.pools:
        yield from _pool_lines(pool, environment)
    limits, timeouts = config.limits, config.timeouts
    yield (
        f"limits: {format_bytes(limits.body_bytes)} a body, {limits.open_requests} open requests, "
        f"{limits.requests_per_replica} a replica"
    )
    keys = load_keys(config, environment)
    yield f"keys: {', '.join(key.name for key in keys)}" if keys else "keys: none; anybody may ask"
    for key in keys:
        own = {name: value for name in KeyLimits.model_fields if (value := getattr(key, name)) is not None}
        yield f"  {key.name}: {_limits(limits.per_key.model_copy(update=own))}"
    if not keys:
        yield f"all clients together: {_limits(limits.per_key)}"
    yield (
        f"timeouts: connect {format_time(timeouts.connect_s)}, first byte {format_time(timeouts.first_byte_s)}, "
        f"between chunks {format_time(timeouts.stall_s)}, in all {format_time(timeouts.total_s)}"
    )
    yield f"attempts: {config.retries.attempts}, before the first byte only"
    yield f"journal: {config.journal.path}" if config.journal is not None else "journal: none"
    if config.metrics.port is None:
        yield "metrics: /metrics on the same address"
    else:
        yield f"metrics: http://{config.metrics.host or listen.host}:{config.metrics.port}/metrics"
    if config.tracing is not None:
        yield f"traces: {config.tracing.endpoint}, {config.tracing.sample:.0%} of those without a traceparent"
    yield "state page: /admin/state" if admin_token(config, environment) else "state page: none"


def _pool_lines(pool: Pool, environment: Mapping[str, str]) -> Iterator[str]:
    check_policy(pool)
    engine_key(pool, environment)
    models = ", ".join(pool.models) or "as its replicas say"
    yield f"pool {pool.name}: policy {known_as(pool.policy)}; models: {models}"
    if pool.strategies:
        yield f"  strategies: {', '.join(pool.strategies)}"
    if pool.memory is not None:
        memory, note = remembered(pool.memory)
        samples = f"a model learnt from {memory.scorer.samples} samples" if memory is not None else "nothing yet"
        yield f"  memory: {note or f'{pool.memory}, {samples}'}"
    for source in pool.sources:
        yield f"  replicas from {source_of(source).name}"
        for replica in source.replicas if isinstance(source, StaticOptions) else ():
            spec = replica.spec()
            yield f"  replica {spec.name}: {spec.url}" + (f" ({spec.device})" if spec.device else "")


def _check_address(host: str, port: int, where: str) -> None:
    """UsageError where it can't be listened on. That it is in use is no mistake here: it may be by this gateway."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise UsageError(f"cannot listen on {host}:{port}: {error.strerror}", where=where) from None


def _check_journal(path: Path) -> None:
    folder = next((each for each in path.parents if each.exists()), Path("."))
    why = "it is a folder" if path.is_dir() else ""
    if not why and not os.access(path if path.exists() else folder, os.W_OK):
        why = "it may not be written"
    if not why and not folder.is_dir():
        why = f"{folder} is no folder"
    if why:
        raise UsageError(f"cannot write the journal: {why}", where=f"journal.path: {path}")


def _limits(limits: KeyLimits) -> str:
    parts = [f"{value} {name.replace('_', ' ')}" for name in KeyLimits.model_fields if (value := getattr(limits, name))]
    return ", ".join(parts) or "without limit"
