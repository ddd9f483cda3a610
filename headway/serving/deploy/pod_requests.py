"""CPU and memory of the machine that an engine's pod asks for. Pure.

A pod that asks for nothing is the first to be put out when its node runs short, however costly its GPU. So each asks
for what it needs to load and to run, and has no limit: what others leave is its to use.

    cpu    = API server + engine core + a worker for each GPU of several         (one core each)
    memory = weights (read through the page cache, which counts as the pod's) + BASE_BYTES + GPU_BYTES for each GPU

The weights of a model that is not in the engine model's table are not known, and not counted.
"""

from __future__ import annotations

import math
import re

from headway.errors import UsageError
from headway.serving.deploy.engines import Engine

BASE_BYTES = 4 << 30
"""API server, engine core and their libraries. Ours."""
GPU_BYTES = 2 << 30
"""A worker: CUDA's context on the host, pinned buffers, its share of /dev/shm. Ours."""
SHM_BYTES = 1 << 30
"""Of /dev/shm for each GPU, and once for the server: NCCL's and vLLM's own buffers take some hundred MiB each. Ours."""
WAITING = {"cpu": "100m", "memory": "64Mi"}
"""Of the container that waits for another engine: a Python that sleeps."""
_CPU = re.compile(r"(?=.*[1-9])(?:\d{1,6}(?:\.\d{1,3})?|\d{1,9}m)")
_MEMORY = re.compile(r"(?=.*[1-9])\d{1,6}(?:\.\d{1,3})?(?:[KMGT]i|[kMGT])")


def requests(engine: Engine, *, cpu: str = "", memory: str = "") -> dict[str, str]:
    """What the engine's container asks for, as Kubernetes writes it; `cpu` and `memory`, where given, as they are."""
    degree = engine.instance.shape.tensor_parallel
    need_bytes = (engine.weights_bytes or 0) + BASE_BYTES + degree * GPU_BYTES
    return {
        "cpu": cpu or str(2 + (degree if degree > 1 else 0)),
        "memory": memory or _gibibytes(need_bytes),
    }


def shm_size(engine: Engine) -> str:
    """Limit on /dev/shm of a server on several GPUs, as Kubernetes writes it."""
    return _gibibytes((1 + engine.instance.shape.tensor_parallel) * SHM_BYTES)


def check_requests(*, cpu: str, memory: str) -> None:
    """UsageError where what was given is no quantity of Kubernetes above 0; empty is nothing given."""
    if cpu and _CPU.fullmatch(cpu) is None:
        raise UsageError(f"{cpu!r} is no number of cores", where="--cpu", hint="as Kubernetes writes it: 4, 500m")
    if memory and _MEMORY.fullmatch(memory) is None:
        raise UsageError(f"{memory!r} is no size", where="--memory", hint="as Kubernetes writes it: 24Gi, 24G")


def _gibibytes(size_bytes: int) -> str:
    return f"{math.ceil(size_bytes / (1 << 30))}Gi"
