"""How fast a model is on an accelerator, from data sheets and public model configurations by roofline. Pure.

    token_s     = 2 * layer parameters / (FLOP/s * matmul_efficiency)   + what tensor parallelism sends for a token
    attention_s = 4 * heads * head size * layers / (FLOP/s * attention_efficiency)
    weights_s   = weight bytes / (memory bytes/s * memory_efficiency)
    context_s   = 2 * KV heads * head size * layers * 2 bytes / (memory bytes/s * memory_efficiency)
    cache       = (memory * memory_share - weights - reserve) / KV bytes of a token

each but `step_s` divided by the number of accelerators that share the model. With tensor parallelism t, every layer
sums a hidden state twice by a ring: 2 * layers * hidden * 2 bytes * 2 (t - 1) / t / (link bytes/s) more for a token,
and 2 * layers * (latency of a sum) more for a step. The head (the last matrix) works on one token of a prompt only and
is left out of `token_s`.

Speeds are dense fp16 on tensor cores, without sparsity. The efficiencies, the reserve and `step_s` are ours and not
measured on these devices: a change of them scales all times, and changes little in how devices or policies compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict, TypeVar, Unpack

from headway.errors import UsageError
from headway.serving.engine.types import EngineProfile

MATMUL_EFFICIENCY = 0.6
"""Of the data sheet's FLOP/s in large matrix products (1)."""
ATTENTION_EFFICIENCY = 0.4
"""Of the data sheet's FLOP/s in attention over prompts (1)."""
MEMORY_EFFICIENCY = 0.8
"""Of the data sheet's memory speed in reading weights and cache (1)."""
STEP_S = 0.004
"""Scheduler, launches and sampling of one step, seconds."""
MEMORY_SHARE = 0.9
"""Of the memory that the engine takes (1): vLLM's default for gpu_memory_utilization."""
RESERVE_BYTES = 1 << 30
"""For activations, graphs and the runtime, bytes on each accelerator."""
BYTES_PER_VALUE = 2
"""fp16 and bf16, weights and cache."""


@dataclass(frozen=True, slots=True)
class Device:
    """An accelerator.

    Attributes:
        flops: dense fp16 FLOP/s on tensor cores.
        memory_Bps: memory speed, bytes per second.
        memory_bytes: memory size.
        link_Bps: to the others of a tensor-parallel group, bytes per second in one direction.
        link_s: latency of one collective operation over these links, seconds. Ours.
        source: where the figures are from.
    """

    flops: float
    memory_Bps: float
    memory_bytes: int
    link_Bps: float
    link_s: float
    source: str


@dataclass(frozen=True, slots=True)
class Model:
    """A dense decoder with gated feed-forward layers and grouped-query attention.

    Attributes:
        layers, hidden, heads, kv_heads, head_size, intermediate, vocabulary: as in its configuration (counts).
        tied: whether the head is the embedding transposed.
        contexts_tokens: `max_position_embeddings` of its published checkpoints, base and instruction-tuned, each once.
        source: whose configuration.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocabulary: int
    tied: bool
    contexts_tokens: tuple[int, ...]
    source: str

    @property
    def layer_parameters(self) -> int:
        """Parameters of all layers' matrices (count): what a token is multiplied with."""
        attention = self.hidden * self.head_size * 2 * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def parameters(self) -> int:
        """All parameters but norms and biases (count)."""
        return self.layer_parameters + self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def kv_bytes(self) -> int:
        """KV cache of one token."""
        return 2 * self.layers * self.kv_heads * self.head_size * BYTES_PER_VALUE


_GiB = 1 << 30
_PCIE4_Bps, _PCIE_S = 25e9, 20e-6
_NVLINK_S = 8e-6


def _nvidia(teraflops: float, GBps: float, GiB: int, link_Bps: float, link_s: float, sheet: str) -> Device:
    return Device(teraflops * 1e12, GBps * 1e9, GiB * _GiB, link_Bps, link_s, f"NVIDIA {sheet} data sheet")


DEVICES: Mapping[str, Device] = {
    "a10": _nvidia(125, 600, 24, _PCIE4_Bps, _PCIE_S, "A10"),
    "a30": _nvidia(165, 933, 24, _PCIE4_Bps, _PCIE_S, "A30"),
    "a100": _nvidia(312, 2039, 80, 300e9, _NVLINK_S, "A100 80GB SXM"),
    "h100": _nvidia(989, 3350, 80, 450e9, _NVLINK_S, "H100 SXM"),
    "h200": _nvidia(989, 4800, 141, 450e9, _NVLINK_S, "H200 SXM"),
    "l4": _nvidia(121, 300, 24, _PCIE4_Bps, _PCIE_S, "L4"),
    "l20": _nvidia(119.5, 864, 48, _PCIE4_Bps, _PCIE_S, "L20"),
    "l40s": _nvidia(362, 864, 48, _PCIE4_Bps, _PCIE_S, "L40S"),
    "t4": _nvidia(65, 320, 16, 12e9, _PCIE_S, "T4"),
    "v100": _nvidia(125, 900, 32, 150e9, _NVLINK_S, "V100 SXM2 32GB"),
}

_LLAMA = "Meta's config.json"
_QWEN = "Qwen's config.json"
_LLAMA_3, _LLAMA_32 = (8192,), (131072,)
_QWEN_25 = (32768, 131072)
"""Instruction-tuned, and base."""

MODELS: Mapping[str, Model] = {
    "llama-3-8b": Model(32, 4096, 32, 8, 128, 14336, 128256, False, _LLAMA_3, _LLAMA),
    "llama-3-70b": Model(80, 8192, 64, 8, 128, 28672, 128256, False, _LLAMA_3, _LLAMA),
    "llama-3.2-1b": Model(16, 2048, 32, 8, 64, 8192, 128256, True, _LLAMA_32, _LLAMA),
    "llama-3.2-3b": Model(28, 3072, 24, 8, 128, 8192, 128256, True, _LLAMA_32, _LLAMA),
    "deepseek-7b": Model(30, 4096, 32, 32, 128, 11008, 102400, False, (4096,), "DeepSeek's config.json"),
    "qwen2.5-1.5b": Model(28, 1536, 12, 2, 128, 8960, 151936, True, _QWEN_25, _QWEN),
    "qwen2.5-7b": Model(28, 3584, 28, 4, 128, 18944, 152064, False, _QWEN_25, _QWEN),
    "qwen2.5-14b": Model(48, 5120, 40, 8, 128, 13824, 152064, False, _QWEN_25, _QWEN),
    "qwen2.5-32b": Model(64, 5120, 40, 8, 128, 27648, 152064, False, _QWEN_25, _QWEN),
}


class EngineSettings(TypedDict, total=False):
    """How an engine is configured, under `EngineProfile`'s names; vLLM's defaults where there is none.

    `step_s` and `cache_tokens` replace what `profile` would work out.
    """

    step_s: float
    step_tokens: int
    most_running: int
    cache_tokens: int
    block_tokens: int
    prefix_caching: bool
    chunked_prefill: bool


_T = TypeVar("_T")


def known(table: Mapping[str, _T], name: str, what: str) -> _T:
    """The entry of that name. UsageError where there is none."""
    if name not in table:
        raise UsageError(f"unknown {what} {name!r}", hint=f"known: {', '.join(table)}")
    return table[name]


def profile(
    device: str, model: str, *, tensor_parallel: int = 1, fraction: float = 1.0, **settings: Unpack[EngineSettings]
) -> EngineProfile:
    """The profile of an engine that serves `model` on `device`.

    On a "v100" prompts are not cut into chunks and prefixes not cached unless `settings` say so: as in Lodestar's
    evaluation.

    Args:
        device: a name in DEVICES.
        model: a name in MODELS.
        tensor_parallel: accelerators that share the model (count).
        fraction: of each accelerator's arithmetic, memory speed and memory size that this engine has, above 0 up to 1.
        settings: what differs from the defaults.

    Raises:
        UsageError: unknown names, shares out of range, or a model that does not fit.
    """
    chip, net = known(DEVICES, device, "device"), known(MODELS, model, "model")
    if tensor_parallel < 1 or net.heads % tensor_parallel:
        raise UsageError(f"{model} has {net.heads} heads, which {tensor_parallel} accelerators cannot share evenly")
    if not 0 < fraction <= 1:
        raise UsageError(f"a share of {fraction:g} of an accelerator is not above 0 and up to 1", where="fraction")
    weights_bytes = net.parameters * BYTES_PER_VALUE
    room_bytes = tensor_parallel * (chip.memory_bytes * MEMORY_SHARE * fraction - RESERVE_BYTES) - weights_bytes
    if "cache_tokens" not in settings and room_bytes < net.kv_bytes:
        raise UsageError(
            f"{model} ({weights_bytes / 1e9:.1f} GB) leaves no room for a cache on {tensor_parallel} x {device} "
            f"at a share of {fraction:g}",
            hint="take more accelerators or a smaller model",
        )
    flops = chip.flops * fraction * tensor_parallel
    memory_Bps = chip.memory_Bps * fraction * tensor_parallel * MEMORY_EFFICIENCY
    old = device == "v100"
    sums = 2 * net.layers if tensor_parallel > 1 else 0
    sent_bytes = net.hidden * BYTES_PER_VALUE * 2 * (tensor_parallel - 1) / tensor_parallel
    return EngineProfile(
        device=device,
        step_s=settings.get("step_s", STEP_S) + sums * chip.link_s,
        token_s=2 * net.layer_parameters / (flops * MATMUL_EFFICIENCY) + sums * sent_bytes / chip.link_Bps,
        attention_s=4 * net.heads * net.head_size * net.layers / (flops * ATTENTION_EFFICIENCY),
        weights_s=weights_bytes / memory_Bps,
        context_s=net.kv_bytes / memory_Bps,
        step_tokens=settings.get("step_tokens", 2048),
        most_running=settings.get("most_running", 256),
        cache_tokens=settings.get("cache_tokens", int(room_bytes // net.kv_bytes)),
        block_tokens=settings.get("block_tokens", 16),
        prefix_caching=settings.get("prefix_caching", not old),
        chunked_prefill=settings.get("chunked_prefill", not old),
    )
