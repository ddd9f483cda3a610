"""A placed plan's instances as vLLM servers: names, arguments, memory, and who starts after whom. Pure.

Memory. An instance with a part of a GPU may have that part of its memory, times MEMORY_SHARE: vLLM reserves what
`--gpu-memory-utilization` says, a part of the whole GPU, for itself alone. Where the model is known, a part's KV cache
is said in bytes as well (`--kv-cache-memory-bytes`): what vLLM measures at its start is wrong while a neighbour
allocates, and under an MPS limit it is not sure which total it sees. So is the cache of whole GPUs that does not hold
the model's context: the longest request (`--max-model-len`, see `context`) is reckoned from it.

Start-up. Two vLLM servers that start at once on one GPU both count its memory as free, and one fails. So servers that
may share a GPU start one after the other, the largest first: each waits until the one before it answers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from headway.errors import UsageError
from headway.serving.allocation.place import check_places
from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import Instance, Plan
from headway.serving.deploy.arguments import check_arguments
from headway.serving.deploy.context import OPTION, Longest, cache_bytes, longest
from headway.serving.engine import hardware

MEMORY_SHARE = hardware.MEMORY_SHARE
"""Of an instance's part of a GPU's memory that vLLM takes (1); the rest is for CUDA's own context."""
PORT = 8000
IMAGE = "vllm/vllm-openai:v0.26.0"
_LONGEST_NAME = 50
"""Of a name that gets a number behind it: Kubernetes allows 63 in a label."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What a plan does not say.

    Attributes:
        image: of vLLM's OpenAI-compatible server.
        weights: what vLLM loads for a model of the plan (a Hugging Face name or a path); the model's name where it
            is not there.
        known_as: the name in the engine model's table of a model, to reckon its memory.
        arguments: further arguments for all engines, as vLLM takes them.
    """

    image: str = IMAGE
    weights: Mapping[str, str] = field(default_factory=dict)
    known_as: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Engine:
    """One server.

    Attributes:
        name: unique, fit for a DNS label.
        instance: of the plan.
        part: of each of its GPUs (1); 1: it has them alone.
        memory_bytes: of each GPU that it may have; None: the device is not known.
        weights_bytes: of the whole model; None: it is not in the engine model's table.
        longest: what its cache allows a request to be.
        command: what its container runs.
        after: name of the engine that must answer before this one starts; empty: none.
    """

    name: str
    instance: Instance
    part: float
    memory_bytes: int | None
    weights_bytes: int | None
    longest: Longest
    command: tuple[str, ...]
    after: str = ""

    @property
    def shares_a_gpu(self) -> bool:
        """Whether others may be on its GPU."""
        return self.part < 1

    @property
    def thread_percentage(self) -> int:
        """For CUDA_MPS_ACTIVE_THREAD_PERCENTAGE."""
        return max(1, math.floor(100 * self.part + 0.5))

    def mps_environment(self) -> dict[str, str]:
        """What limits it under MPS: arithmetic, a ceiling; and memory, where it is known."""
        limits = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(self.thread_percentage)}
        if self.memory_bytes is not None:
            limits["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={self.memory_bytes >> 20}M"
        return limits


def engines(plan: Plan, nodes: Sequence[Node], options: EngineOptions, *, together: str = "gpu") -> list[Engine]:
    """All servers, in the order in which they may start.

    Args:
        plan: placed.
        nodes: those that it is placed on.
        options: see there.
        together: "gpu": those on one GPU start one after the other; "node": those on a node that share any GPU do,
            for where it is not ours to say who shares which.

    Raises:
        UsageError: the plan is not placed, or on nodes that are not there; a GPU is given away twice; an instance does
            not fit into its memory; two things would have one name; an argument is none, the plan's to decide, or a
            longest request that a cache does not hold.
    """
    if not plan.instances:
        raise UsageError("the plan is not placed", hint="headway plan make places what it makes")
    check_arguments(options.arguments)
    by_name = {node.name: node for node in nodes}
    check_places(plan, nodes, where="the plan")
    made = []
    names: dict[str, str] = {}
    for instance in plan.instances:
        stem = dns_label(instance.model)
        if names.setdefault(stem, instance.model) != instance.model:
            raise UsageError(f"{instance.model} and {names[stem]} are both called {stem}", hint="rename one of them")
        part = instance.shape.slices / plan.slices_per_gpu
        made.append(_engine(f"{stem}-{instance.number}", instance, part, by_name[instance.node], options))
    for engine in made:  # whose Service, pool or host name would be another model's
        if engine.name in names:
            raise UsageError(
                f"{names[engine.name]} and number {engine.instance.number} of {engine.instance.model} are both called "
                f"{engine.name}",
                hint="rename one of them",
            )
    return _in_turn(made, together)


def dns_label(name: str) -> str:
    """A name as Kubernetes and DNS allow it: "Qwen/Qwen2.5-7B" -> "qwen-qwen2-5-7b"."""
    label = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_LONGEST_NAME].strip("-")
    if not label:
        raise UsageError(f"{name!r} has no letter or digit to name anything by")
    return label if label[0].isalpha() else f"m-{label}"


def _engine(name: str, instance: Instance, part: float, node: Node, options: EngineOptions) -> Engine:
    model = instance.model
    chip = hardware.DEVICES.get(node.device)
    net = hardware.MODELS.get(options.known_as.get(model, model))
    memory_bytes = int(chip.memory_bytes * part) if chip is not None else None
    weights_bytes = net.parameters * hardware.BYTES_PER_VALUE if net is not None else None
    degree = instance.shape.tensor_parallel
    command = [
        *("vllm", "serve", options.weights.get(model, model), "--served-model-name", model, "--port", str(PORT)),
        *("--tensor-parallel-size", str(degree)),
        *("--gpu-memory-utilization", f"{math.floor(1000 * part * MEMORY_SHARE) / 1000:g}"),
    ]
    room_bytes = cache_bytes(net, memory_bytes, degree) if net is not None and memory_bytes is not None else None
    bound = longest(name, net, room_bytes, degree, options.arguments)
    if memory_bytes is not None and room_bytes is not None:
        if room_bytes <= 0 or bound.held_tokens == 0:
            used_bytes = memory_bytes * MEMORY_SHARE - room_bytes
            raise UsageError(
                f"{model} on {node.name} needs {used_bytes / 1e9:.1f} GB before it has a "
                f"cache, and its part of the GPU is {memory_bytes / 1e9:.1f} GB",
                hint="plan with a profile that knows the model's memory: headway profile --from engine-model",
            )
        if part < 1 or bound.said_tokens is not None:
            command += ["--kv-cache-memory-bytes", str(room_bytes)]
    if bound.said_tokens is not None:
        command += [OPTION, str(bound.said_tokens)]
    return Engine(name, instance, part, memory_bytes, weights_bytes, bound, (*command, *options.arguments))


def _in_turn(made: Sequence[Engine], together: str) -> list[Engine]:
    before: dict[object, str] = {}
    ordered = []
    for engine in sorted(made, key=lambda it: (-it.part * it.instance.shape.tensor_parallel, it.name)):
        if not engine.shares_a_gpu:
            ordered.append(engine)
            continue
        place: object = engine.instance.node
        if together == "gpu":
            place = (engine.instance.node, engine.instance.gpus)
        ordered.append(replace(engine, after=before.get(place, "")))
        before[place] = engine.name
    return ordered
