"""`headway plan nodes`: which machines there are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.cli.called import read_text, spare_inputs
from headway.cli.plan_figures import figures_of
from headway.cli.plan_files import check_output
from headway.cli.shown import print_line
from headway.errors import UsageError
from headway.serving.allocation.files import NODES, write_nodes
from headway.serving.allocation.topology import from_labels, from_topo
from headway.serving.allocation.topology_types import Node
from headway.serving.deploy.names import check_node
from headway.serving.engine import hardware

MOST_GPUS = 1024
"""Of one machine (count): more is a slip of the finger."""


def nodes_(
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("nodes.yaml"),
    gpus: Annotated[list[str] | None, typer.Option(metavar="NAME=COUNT", help="A machine; repeatable.")] = None,
    topo: Annotated[
        list[str] | None, typer.Option(metavar="NAME=FILE", help="What `nvidia-smi topo -m` printed there; repeatable.")
    ] = None,
    device: Annotated[str, typer.Option(help=f"Kind of their GPUs: {', '.join(hardware.DEVICES)}.")] = "",
    domain_gpus: Annotated[
        int | None, typer.Option(help="With --gpus: how many are joined by a fast interconnect. [default: 1]")
    ] = None,
    pcie: Annotated[
        bool, typer.Option("--pcie", help="With --topo: GPUs below one PCIe bridge count as joined.")
    ] = False,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="From the labels of a Kubernetes cluster's nodes.")
    ] = False,
    kubeconfig: Annotated[Path | None, typer.Option(help="With --cluster.")] = None,
    context: Annotated[str, typer.Option(help="With --cluster: of the kubeconfig.")] = "",
) -> None:
    """Write down which machines there are, and which of their GPUs are joined by a fast interconnect."""
    if cluster == bool(gpus or topo):
        raise UsageError("say what there is: --gpus NAME=COUNT and --topo NAME=FILE, or --cluster")
    _check_company(
        ("--domain-gpus", domain_gpus is not None, "--gpus", bool(gpus)),
        ("--pcie", pcie, "--topo", bool(topo)),
        ("--device", bool(device), "--gpus or --topo", not cluster),
        ("--kubeconfig", kubeconfig is not None, "--cluster", cluster),
        ("--context", bool(context), "--cluster", cluster),
    )
    if cluster:
        spare_inputs([output], [kubeconfig])
        found = _of_cluster(kubeconfig, context)
    else:
        kind, size = _kind(device), 1 if domain_gpus is None else domain_gpus
        counts = figures_of(gpus or [], "--gpus")
        found = [
            _counted(name, n, text, kind, size) for (name, n), text in zip(counts.items(), gpus or [], strict=True)
        ]
        for text in topo or []:
            name, equals, file = text.partition("=")
            if not equals or not name:
                raise UsageError(f"{text!r} is not NAME=FILE", where="--topo")
            spare_inputs([output], [Path(file)])
            found.append(from_topo(read_text(Path(file)), name=name, device=kind, where=file, pcie=pcie))
    names = [node.name for node in found]
    for name in names:
        check_node(name, where="--cluster" if cluster else "--gpus and --topo")  # else no manifests could be made
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{twice} is there twice", where="--gpus and --topo")
    check_output(output, NODES)
    write_nodes(output, found)
    for node in found:
        print_line(f"{node.name}: {node.gpus} x {node.device}, joined: {_joined(node)}")
    print(f"wrote {output}")


def _check_company(*options: tuple[str, bool, str, bool]) -> None:
    """UsageError where an option is given that means nothing without another one."""
    for option, given, other, there in options:
        if given and not there:
            raise UsageError(f"means nothing without {other}", where=option)


def _of_cluster(kubeconfig: Path | None, context: str) -> list[Node]:
    from headway.serving.deploy.apply import Cluster, Reach

    reached = Cluster(Reach(kubeconfig, context))
    try:
        return from_labels(reached.node_labels())
    finally:
        reached.close()


def _kind(device: str) -> str:
    """A key of DEVICES, however it is written."""
    if device.lower() not in hardware.DEVICES:
        told = f"{device!r} is none of" if device else "is needed: one of"
        raise UsageError(f"{told} {', '.join(hardware.DEVICES)}", where="--device")
    return device.lower()


def _counted(name: str, count: float, text: str, device: str, domain_gpus: int) -> Node:
    """A machine. UsageError tells what was typed, `text`."""
    if not count.is_integer() or count > MOST_GPUS:
        raise UsageError(f"{text} is no number of GPUs from 1 to {MOST_GPUS}", where="--gpus")
    if not 1 <= domain_gpus <= MOST_GPUS:
        raise UsageError(f"{domain_gpus} is not from 1 to {MOST_GPUS}", where="--domain-gpus")
    gpus = list(range(int(count)))
    return Node(name, device, tuple(tuple(gpus[at : at + domain_gpus]) for at in range(0, len(gpus), domain_gpus)))


def _joined(node: Node) -> str:
    if all(len(domain) == 1 for domain in node.domains):
        return "none"
    return "; ".join(",".join(map(str, domain)) for domain in node.domains)
