"""Which GPUs are joined by a fast interconnect: from `nvidia-smi topo -m`, or from Kubernetes node labels. Pure.

`nvidia-smi topo -m` prints a matrix with one row and column for each GPU and network card. Between two GPUs it has NV#
(# NVLinks, directly or through an NVSwitch), or how PCIe joins them: PIX (one bridge), PXB (several), PHB (through a
host bridge), NODE (host bridges of one NUMA node), SYS (between NUMA nodes). A fast domain is a set of GPUs each two of
which have NV# between them. Where NVLink joins some pairs only (a hybrid cube mesh as in DGX-1, bridges), domains are
cut so that this holds: largest first, by a small exact search. GPUs without NVLink are a domain each; with
`pcie=True` those below one bridge (PIX, PXB) are one, for devices whose tensor parallelism goes over PCIe anyhow.

Kubernetes nodes have no matrix. GPU feature discovery (NVIDIA/k8s-device-plugin, docs/gpu-feature-discovery) labels
them with nvidia.com/gpu.product, .count and .memory (MiB), and, where the fabric manager has formed a fabric,
nvidia.com/gpu.clique (UUID of the fabric and number of the clique). A clique, or a product that is sold with an
NVSwitch or all-to-all NVLink only, makes all GPUs of a node one domain; SXM2 boards domains of four, as in DGX-1; other
cards are domains of one each, since labels do not tell of bridges. A clique that spans nodes (NVL72) is not made one
domain: an instance here stays in its node.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence

from headway.errors import UsageError
from headway.serving.allocation.topology_types import Node
from headway.serving.engine.hardware import DEVICES

PRODUCT = "nvidia.com/gpu.product"
COUNT = "nvidia.com/gpu.count"
MEMORY = "nvidia.com/gpu.memory"
CLIQUE = "nvidia.com/gpu.clique"
"""Labels of GPU feature discovery."""

_LINK = re.compile(r"^(NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|X)$")
_NVLINK = re.compile(r"^NV\d+$")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_ALL_TO_ALL = re.compile(r"SXM[3-9]|HBM3|^NVIDIA-(H20|H200|B\d{3}|GB\d{3})(-SHARED)?$")
_QUADS = re.compile(r"SXM2")
_LEAST_MEMORY = 0.9
"""Of the memory that the figures for a device are for (1): some of it is not shown."""


def from_topo(text: str, *, name: str, device: str, where: str = "nvidia-smi topo -m", pcie: bool = False) -> Node:
    """A node from what `nvidia-smi topo -m` prints.

    Args:
        text: the output, with or without legend and colours.
        name: of the node.
        device: a key of `headway.serving.engine.hardware.DEVICES`.
        where: for errors.
        pcie: whether GPUs below one PCIe bridge are a domain too.

    Raises:
        UsageError: no matrix is found, or it is not whole.
    """
    lines = [_ESCAPE.sub("", line) for line in text.splitlines()]
    head = next((at for at, line in enumerate(lines) if line.split()[:1] == ["GPU0"] and "X" not in line.split()), None)
    if head is None:
        raise UsageError(
            "has no line with the names of the GPUs", where=where, hint="give it the whole output of nvidia-smi topo -m"
        )
    columns = list(itertools.takewhile(lambda word: re.match(r"^GPU\d+$", word), lines[head].split()))
    rows: dict[int, list[str]] = {}
    for at, line in enumerate(lines[head + 1 :], head + 2):
        words = line.split()
        if not words or not re.match(r"^GPU\d+$", words[0]):
            continue
        cells = words[1 : len(columns) + 1]
        wrong = next((cell for cell in cells if not _LINK.match(cell)), None)
        if wrong is not None or len(cells) < len(columns):
            found = f"{wrong!r} is no kind of link" if wrong is not None else f"{len(cells)} of {len(columns)} links"
            raise UsageError(found, where=f"{where}:{at}")
        rows[int(words[0][3:])] = cells
    if sorted(rows) != list(range(len(columns))):
        raise UsageError(f"has {len(columns)} GPUs in its first line and rows of {len(rows)}", where=where)
    for a, b in itertools.combinations(sorted(rows), 2):
        if rows[a][b] != rows[b][a]:
            raise UsageError(
                f"GPU{a} has {rows[a][b]} to GPU{b}, and GPU{b} has {rows[b][a]} to GPU{a}: links are alike both ways",
                where=where,
            )
    fast = {
        (a, b)
        for a, b in itertools.combinations(sorted(rows), 2)
        if _NVLINK.match(rows[a][b]) or (pcie and rows[a][b] in ("PIX", "PXB"))
    }
    return Node(name, device, cliques(len(rows), fast))


def cliques(gpus: int, fast: set[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """The GPUs in groups within which every two are joined: the largest group first, and of those the lowest numbers.

    Args:
        gpus: how many, numbered from 0.
        fast: pairs that are joined, the lower number first.
    """
    left = list(range(gpus))
    groups = []
    while left:
        group = _largest(left, fast)
        groups.append(group)
        left = [gpu for gpu in left if gpu not in group]
    return tuple(sorted(groups))


def _largest(gpus: Sequence[int], fast: set[tuple[int, int]]) -> tuple[int, ...]:
    """Branch and bound: at most 16 GPUs, so at most some thousand steps."""
    best: tuple[int, ...] = ()

    def grow(group: tuple[int, ...], others: Sequence[int]) -> None:
        nonlocal best
        if len(group) > len(best):
            best = group
        for at, gpu in enumerate(others):
            if len(group) + len(others) - at <= len(best):
                return
            grow((*group, gpu), [other for other in others[at + 1 :] if (gpu, other) in fast])

    grow((), gpus)
    return best


def from_labels(labels: Mapping[str, Mapping[str, str]]) -> list[Node]:
    """Nodes from Kubernetes labels; nodes without GPUs are left out.

    Args:
        labels: of each node, by its name.

    Raises:
        UsageError: a product that is not known, MIG slices, a count that is no number, or no GPUs at all.
    """
    nodes = []
    for name, own in sorted(labels.items()):
        if PRODUCT not in own and COUNT not in own:
            continue
        where = f"node {name}"
        product, count = own.get(PRODUCT, ""), own.get(COUNT, "")
        if "-MIG-" in product:
            raise UsageError(f"{PRODUCT} is {product}: its GPUs are in MIG slices", where=where)
        if not count.isdecimal() or int(count) < 1:
            raise UsageError(f"{COUNT} is {count!r}, not a number of GPUs", where=where)
        gpus = range(int(count))
        kind = device(product, where=where)
        _check_memory(kind, own.get(MEMORY, ""), where)
        size = 1
        if CLIQUE in own or _ALL_TO_ALL.search(product):
            size = len(gpus)
        elif _QUADS.search(product):
            size = 4
        domains = tuple(tuple(gpus[at : at + size]) for at in range(0, len(gpus), size))
        nodes.append(Node(name, kind, domains))
    if not nodes:
        raise UsageError(f"no node has the labels {PRODUCT} and {COUNT}", hint="is GPU feature discovery installed?")
    return nodes


def device(product: str, *, where: str = "") -> str:
    """The key of DEVICES for a product's name, e.g. "NVIDIA-A100-SXM4-80GB" -> "a100". UsageError: there is none."""
    words = re.split(r"[-_ ]", product.lower().removesuffix("-shared"))
    for word in words:
        if word in DEVICES:
            return word
    raise UsageError(
        f"there are no figures for {product or 'a GPU without a name'!r}",
        where=where,
        hint=f"known: {', '.join(DEVICES)}",
    )


def _check_memory(kind: str, memory: str, where: str) -> None:
    """UsageError where the GPUs have less memory than those that the figures are for."""
    known_MiB = DEVICES[kind].memory_bytes >> 20
    if memory.isdecimal() and int(memory) < _LEAST_MEMORY * known_MiB:
        raise UsageError(
            f"{MEMORY} is {memory}, and the figures of {kind} are for {known_MiB} MiB",
            where=where,
            hint="write a nodes file with another device",
        )
