"""Fast domains from what nvidia-smi prints on machines of several kinds, and from the labels of Kubernetes nodes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import UsageError
from headway.serving.allocation.topology import cliques, device, from_labels, from_topo

NVSWITCH = """\
        GPU0    GPU1    GPU2    GPU3    NIC0    NIC1    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV12    NV12    NV12    PXB     SYS     48-63,176-191   3               N/A
GPU1    NV12     X      NV12    NV12    PXB     SYS     48-63,176-191   3               N/A
GPU2    NV12    NV12     X      NV12    SYS     PXB     16-31,144-159   1               N/A
GPU3    NV12    NV12    NV12     X      SYS     PXB     16-31,144-159   1               N/A
NIC0    PXB     PXB     SYS     SYS      X      SYS
NIC1    SYS     SYS     PXB     PXB     SYS      X

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""
H100 = (
    "\x1b[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\t0-55\t0\t\tN/A\nGPU1\tNV18\t X \t0-55\t0\t\tN/A\n"
)
"""Underlined and with tabs, as on a terminal."""
PCIE_OLD = """\
        GPU0    GPU1    GPU2    GPU3    mlx4_0  CPU Affinity
GPU0     X      PIX     PHB     SYS     PHB     0-9,20-29
GPU1    PIX      X      PHB     SYS     PHB     0-9,20-29
GPU2    PHB     PHB      X      SYS     PHB     0-9,20-29
GPU3    SYS     SYS     SYS      X      SYS     10-19,30-39
mlx4_0  PHB     PHB     PHB     SYS      X
"""
BRIDGES = """\
        GPU0    GPU1    GPU2    GPU3    CPU Affinity    NUMA Affinity
GPU0     X      NV4     NODE    SYS     0-31            0
GPU1    NV4      X      NODE    SYS     0-31            0
GPU2    NODE    NODE     X      SYS     0-31            0
GPU3    SYS     SYS     SYS      X      32-63           1
"""
CUBE_MESH = """\
        GPU0    GPU1    GPU2    GPU3    GPU4    GPU5    GPU6    GPU7    CPU Affinity
GPU0     X      NV1     NV1     NV2     NV2     SYS     SYS     SYS     0-19,40-59
GPU1    NV1      X      NV2     NV1     SYS     NV2     SYS     SYS     0-19,40-59
GPU2    NV1     NV2      X      NV2     SYS     SYS     NV1     SYS     0-19,40-59
GPU3    NV2     NV1     NV2      X      SYS     SYS     SYS     NV1     0-19,40-59
GPU4    NV2     SYS     SYS     SYS      X      NV1     NV1     NV2     20-39,60-79
GPU5    SYS     NV2     SYS     SYS     NV1      X      NV2     NV1     20-39,60-79
GPU6    SYS     SYS     NV1     SYS     NV1     NV2      X      NV2     20-39,60-79
GPU7    SYS     SYS     SYS     NV1     NV2     NV1     NV2      X      20-39,60-79
"""


@pytest.mark.parametrize(
    ("text", "domains"),
    [
        (NVSWITCH, ((0, 1, 2, 3),)),
        (H100, ((0, 1),)),
        (PCIE_OLD, ((0,), (1,), (2,), (3,))),
        (BRIDGES, ((0, 1), (2,), (3,))),
        (CUBE_MESH, ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("        GPU0    CPU Affinity\nGPU0     X      0-7\n", ((0,),)),
    ],
)
def test_domains_are_what_nvlink_joins(text: str, domains: tuple[tuple[int, ...], ...]) -> None:
    node = from_topo(text, name="n", device="a100")
    assert node.domains == domains
    assert node.gpus == sum(len(domain) for domain in domains)


def test_pcie_bridges_count_where_they_are_asked_to() -> None:
    assert from_topo(PCIE_OLD, name="n", device="a10", pcie=True).domains == ((0, 1), (2,), (3,))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no line with the names of the GPUs"),
        ("nvidia-smi: command not found", "no line with the names of the GPUs"),
        (NVSWITCH.replace("GPU1    NV12     X      NV12", "GPU1    NV12     X      ERR "), "topo:3: 'ERR' is no kind"),
        ("\n".join(NVSWITCH.splitlines()[:3]), "4 GPUs in its first line and rows of 2"),
        ("GPU0 GPU1\nGPU0 X\n", "topo:2: 1 of 2 links"),
        (H100.replace("GPU1\tNV18", "GPU1\tSYS"), "topo: GPU0 has NV18 to GPU1, and GPU1 has SYS to GPU0"),
    ],
)
def test_broken_outputs(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        from_topo(text, name="n", device="a100", where="topo")


@given(st.integers(1, 8), st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7))))
def test_all_of_a_domain_are_joined(gpus: int, pairs: set[tuple[int, int]]) -> None:
    fast = {(a, b) for a, b in pairs if a < b < gpus}
    groups = cliques(gpus, fast)
    assert sorted(gpu for group in groups for gpu in group) == list(range(gpus))
    assert all(pair in fast for group in groups for pair in itertools.combinations(group, 2))


def test_labels_of_gpu_feature_discovery() -> None:
    labels = {
        "cpu-only": {"kubernetes.io/arch": "amd64"},
        "dgx": {
            "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
            "nvidia.com/gpu.count": "4",
            "nvidia.com/gpu.memory": "81920",
        },
        "fabric": {
            "nvidia.com/gpu.product": "NVIDIA-H200",
            "nvidia.com/gpu.count": "2",
            "nvidia.com/gpu.memory": "143771",
            "nvidia.com/gpu.clique": "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.1",
        },
        "cards": {
            "nvidia.com/gpu.product": "NVIDIA-L40S-SHARED",
            "nvidia.com/gpu.count": "2",
            "nvidia.com/gpu.memory": "46068",
        },
        "mesh": {"nvidia.com/gpu.product": "Tesla-V100-SXM2-32GB", "nvidia.com/gpu.count": "8"},
    }
    nodes = {node.name: node for node in from_labels(labels)}
    assert list(nodes) == ["cards", "dgx", "fabric", "mesh"]
    assert (nodes["dgx"].device, nodes["dgx"].domains) == ("a100", ((0, 1, 2, 3),))
    assert (nodes["fabric"].device, nodes["fabric"].domains) == ("h200", ((0, 1),))
    assert (nodes["cards"].device, nodes["cards"].domains) == ("l40s", ((0,), (1,)))
    assert nodes["mesh"].domains == ((0, 1, 2, 3), (4, 5, 6, 7))


@pytest.mark.parametrize(
    ("product", "count", "memory", "said"),
    [
        ("A100-SXM4-40GB-MIG-1g.5gb", "56", "4864", "MIG slices"),
        ("NVIDIA-A100-SXM4-80GB", "many", "81920", "'many', not a number"),
        ("NVIDIA-A100-SXM4-40GB", "8", "40960", "figures of a100 are for 81920 MiB"),
        ("GeForce-GT-710", "1", "2048", "no figures for 'GeForce-GT-710'"),
    ],
)
def test_labels_that_cannot_be_planned_with(product: str, count: str, memory: str, said: str) -> None:
    labels = {"nvidia.com/gpu.product": product, "nvidia.com/gpu.count": count, "nvidia.com/gpu.memory": memory}
    with pytest.raises(UsageError, match=f"node n: .*{said}"):
        from_labels({"n": labels})


def test_no_gpus_at_all() -> None:
    with pytest.raises(UsageError, match="GPU feature discovery"):
        from_labels({"n": {"kubernetes.io/arch": "amd64"}})


def test_products_that_are_known() -> None:
    assert device("NVIDIA H100 80GB HBM3") == "h100"
    assert device("Tesla-T4") == "t4"
