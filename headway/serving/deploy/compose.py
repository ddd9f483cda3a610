"""A compose file for the machine of a plan. Pure.

A shared GPU has an MPS control daemon of its own, which sees that GPU only: under one daemon for several GPUs clients
would number the GPUs as the daemon does, not as the machine does. Its clients share its IPC namespace and its pipe.
Servers on one GPU start one after the other: each depends on the health of the one before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.errors import UsageError
from headway.serving.deploy.engines import PORT, Engine
from headway.serving.deploy.names import check_image, check_name

FIRST_PORT = 8001
PIPE = "/tmp/nvidia-mps"
"""Inside of a container: where CUDA looks by default."""
HEALTH = f"import urllib.request; urllib.request.urlopen('http://127.0.0.1:{PORT}/health', timeout=5)"
"""The image has Python, but no curl."""


def ports(engines: Sequence[Engine], first: int = FIRST_PORT) -> dict[str, int]:
    """Port on the machine's loopback of each engine, by its name: in the order of names, whoever starts first."""
    return {name: first + at for at, name in enumerate(sorted(engine.name for engine in engines))}


def compose(engines: Sequence[Engine], *, name: str, image: str, first_port: int = FIRST_PORT) -> dict[str, Any]:
    """The file's content. UsageError where the plan is on several machines, or a name is none."""
    check_name(name, where="--name")
    check_image(image, where="--image")
    nodes = sorted({engine.instance.node for engine in engines})
    if len(nodes) != 1:
        raise UsageError(
            f"the plan is on {len(nodes)} machines ({', '.join(nodes)}), and a compose file is for one",
            hint="choose one with --node, or use plan manifests",
        )
    port_of = ports(engines, first_port)
    shared = sorted({engine.instance.gpus[0] for engine in engines if engine.shares_a_gpu})
    services: dict[str, Any] = {f"mps-gpu{gpu}": _daemon(gpu, image) for gpu in shared}
    for engine in engines:
        services[engine.name] = _server(engine, image, port_of[engine.name])
    volumes: dict[str, Any] = {"weights": {}, **{f"mps-gpu{gpu}": {} for gpu in shared}}
    return {"name": name, "services": services, "volumes": volumes}


def _daemon(gpu: int, image: str) -> dict[str, Any]:
    return {
        "image": image,
        "entrypoint": ["nvidia-cuda-mps-control", "-f"],  # the container runtime brings the program with the driver
        "environment": {"CUDA_MPS_PIPE_DIRECTORY": PIPE},
        "ipc": "shareable",
        "volumes": [f"mps-gpu{gpu}:{PIPE}"],
        "restart": "unless-stopped",
        "deploy": _gpus([gpu]),
        "healthcheck": {"test": ["CMD", "test", "-e", f"{PIPE}/control"], "interval": "2s", "retries": 15},
    }


def _server(engine: Engine, image: str, port: int) -> dict[str, Any]:
    service: dict[str, Any] = {
        "image": image,
        "entrypoint": [part.replace("$", "$$") for part in engine.command],
        "environment": {"HF_TOKEN": "${HF_TOKEN:-}"},
        "ports": [f"127.0.0.1:{port}:{PORT}"],
        "volumes": ["weights:/root/.cache/huggingface"],
        "restart": "unless-stopped",
        "deploy": _gpus(engine.instance.gpus),
        "healthcheck": {
            "test": ["CMD", "python3", "-c", HEALTH],
            "interval": "5s",
            "timeout": "6s",
            "retries": 3,
            "start_period": "30m",
        },
    }
    if engine.shares_a_gpu:
        daemon = f"mps-gpu{engine.instance.gpus[0]}"
        service["environment"] |= {"CUDA_MPS_PIPE_DIRECTORY": PIPE, **engine.mps_environment()}
        service["ipc"] = f"service:{daemon}"
        service["volumes"].append(f"{daemon}:{PIPE}")
        service["depends_on"] = {daemon: {"condition": "service_healthy"}}
        if engine.after:
            service["depends_on"][engine.after] = {"condition": "service_healthy"}
    elif engine.instance.shape.tensor_parallel > 1:
        service["ipc"] = "host"  # NCCL between the processes of one server
    return service


def _gpus(gpus: Sequence[int]) -> dict[str, Any]:
    device = {"driver": "nvidia", "device_ids": [str(gpu) for gpu in gpus], "capabilities": ["gpu"]}
    return {"resources": {"reservations": {"devices": [device]}}}
