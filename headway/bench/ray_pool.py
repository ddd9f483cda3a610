"""Cells on a Ray cluster. Ray is an optional dependency: `pip install 'headway[ray]'`."""

from __future__ import annotations

import importlib.util
import logging
import re
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from headway.bench.attempt import Attempt, Function, attempt
from headway.errors import UsageError
from headway.sim.studies.cells import Json

POLL_S = 0.5
REACH_S = 5.0
AHEAD = 2
"""Cells in flight per processor of the cluster: so many that none waits for us, so few that an end comes soon."""
HINT = "start one with ray start --head; one that asks for a token needs RAY_AUTH_MODE=token here too"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@contextmanager
def attempts(
    function: Function,
    works: Sequence[Json],
    *,
    address: str,
    version: str,
    check: Callable[[], None],
) -> Iterator[Iterator[Attempt]]:
    """As `worker_pool.attempts`, on the cluster at `address` (`auto`: the one that RAY_ADDRESS or this host names).

    Headway must be installed on every node, with the same sources as here: a node where `version` differs fails its
    cells and says so. UsageError when Ray is missing or there is no such cluster.
    """
    if importlib.util.find_spec("ray") is None:
        raise UsageError("Ray is not installed", where="--ray", hint="pip install 'headway[ray]'")
    _check_reached(address)
    import ray

    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL, namespace="headway")
    except (ConnectionError, ValueError, RuntimeError, AssertionError) as error:
        raise _unreached(address, error) from None
    pending: dict[object, tuple[int, float]] = {}
    try:
        yield _run(function, works, version, check, pending)
    finally:
        for reference in pending:
            ray.cancel(reference, force=True)
        ray.shutdown()


def _check_reached(address: str) -> None:
    """UsageError when nobody listens at HOST:PORT: Ray itself would try again for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        return
    try:
        socket.create_connection((host, int(port)), timeout=REACH_S).close()
    except (OSError, OverflowError) as error:
        raise _unreached(address, error) from None


def _unreached(address: str, error: BaseException) -> UsageError:
    said = " ".join(str(error).split())
    return UsageError(f"no Ray cluster at {address!r}: {said}", where="--ray", hint=HINT)


def _run(
    function: Function,
    works: Sequence[Json],
    version: str,
    check: Callable[[], None],
    pending: dict[object, tuple[int, float]],
) -> Iterator[Attempt]:
    import ray

    # A worker that dies costs its cell; the next run of the same command tries it again.
    remote = ray.remote(num_cpus=1, max_retries=0)(_attempt)
    most = max(1, round(AHEAD * ray.cluster_resources().get("CPU", 1.0)))
    todo = deque(enumerate(works))
    while todo or pending:
        check()
        while todo and len(pending) < most:
            index, work = todo.popleft()
            pending[remote.remote(function, index, work, version)] = (index, time.perf_counter())
        ready, _ = ray.wait(list(pending), num_returns=1, timeout=POLL_S)
        for reference in ready:
            index, since_s = pending.pop(reference)
            try:
                yield ray.get(reference)
            except ray.exceptions.RayError as error:
                said = " ".join(_COLOURS.sub("", str(error)).split())
                yield Attempt(index, error=f"on Ray: {said}", wall_s=time.perf_counter() - since_s)
    check()


def _attempt(function: Function, index: int, work: Json, version: str) -> Attempt:
    from headway.bench.pool import code_version

    if code_version() != version:
        return Attempt(index, error=f"the node runs Headway {code_version()}, not {version}")
    return attempt(function, index, work)
