"""`headway plan`: GPUs shared out among the models of workflows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.called import read_all_calls, read_text
from headway.cli.plan_deploy import apply, compose, gateway, manifests
from headway.cli.plan_profiles import check_profiles, gpu_bytes, workflows_of
from headway.cli.plan_simulate import simulate
from headway.cli.plan_watch import watch
from headway.cli.plan_within import enough_words, limits_of
from headway.cli.plan_words import carries, print_plan
from headway.errors import UsageError
from headway.serving.allocation.fewest import fewest
from headway.serving.allocation.files import (
    read_aggregates,
    read_nodes,
    read_plan,
    read_profiles,
    write_aggregates,
    write_nodes,
    write_plan,
)
from headway.serving.allocation.interference import PER_NEIGHBOUR, Interference
from headway.serving.allocation.place import place
from headway.serving.allocation.predict import Predictor
from headway.serving.allocation.search import search
from headway.serving.allocation.topology import from_topo
from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import Demand
from headway.serving.engine import hardware
from headway.serving.workflows.aggregate import aggregate
from headway.serving.workflows.record import by_workflow, runs_of

app = typer.Typer(no_args_is_help=True, help="Share GPUs out among the models of workflows.")
app.command("manifests")(manifests)
app.command("compose")(compose)
app.command("gateway")(gateway)
app.command("apply")(apply)
app.command("watch")(watch)
app.command("simulate")(simulate)


@app.command("make")
def make(
    rate: Annotated[list[str], typer.Option(metavar="NAME=RATE", help="Runs per second of a workflow; repeatable.")],
    calls: Annotated[
        list[Path] | None, typer.Option(help="Recorded calls: from `headway trace import`, or a journal; repeatable.")
    ] = None,
    workflows: Annotated[
        Path | None, typer.Option(help="Instead: what `headway trace calls --aggregates` wrote.")
    ] = None,
    profiles: Annotated[Path, typer.Option(help="From `headway profile`.")] = Path("profiles.yaml"),
    nodes: Annotated[Path, typer.Option(help="The machines; `headway plan nodes` writes such a file.")] = Path(
        "nodes.yaml"
    ),
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The plan; what it was made for goes beside it.")
    ] = Path("plan.yaml"),
    calibrate: Annotated[
        list[str] | None, typer.Option(metavar="NAME=FACTOR", help="Measured over predicted latency of a workflow.")
    ] = None,
    interference: Annotated[
        float, typer.Option(help="Slowdown by a busy neighbour that has a whole GPU's worth; 0 for MIG.")
    ] = PER_NEIGHBOUR,
    most: Annotated[int, typer.Option(help="Rejected neighbours to print; all are in the file.")] = 8,
    within: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=TIME",
            help="Mean latency that a workflow may have: take the fewest GPUs that keep it; repeatable.",
        ),
    ] = None,
) -> None:
    """Find the shares with which workflows are served at their rates, soonest; place them; and say why.

    With --within: on the fewest GPUs that will do. Exit code 1: the plan is written, and does not carry all rates, or
    does not keep all limits.
    """
    rates = _figures(rate, "--rate")
    limits_s = limits_of(within or [], rates)
    if bool(calls) == (workflows is not None):
        raise UsageError("say what the workflows are like: by --calls, or by --workflows")
    if calls:
        seen = {name: aggregate(runs) for name, runs in by_workflow(runs_of(read_all_calls(calls))).items()}
    else:
        assert workflows is not None
        seen = {each.workflow: each for each in read_aggregates(workflows)}
    unknown = sorted(set(rates) - set(seen))
    if unknown:
        raise UsageError(
            f"no run of {', '.join(unknown)} was recorded", where="--rate", hint=f"recorded: {', '.join(seen)}"
        )
    demands = [Demand(seen[name], each) for name, each in rates.items()]
    slices, known = read_profiles(profiles)
    there = read_nodes(nodes)
    factors = _figures(calibrate or [], "--calibrate")
    others = sorted(set(factors) - set(rates))
    if others:
        raise UsageError(f"{others[0]} is not planned for", where="--calibrate", hint=f"by --rate: {', '.join(rates)}")
    predictor = Predictor(known, interference=Interference(interference), calibration=factors, slices_per_gpu=slices)
    domains = [len(domain) for node in there for domain in node.domains]
    if not domains:
        raise UsageError("has no GPUs", where=str(nodes))
    check_profiles(known, there, demands, profiles=profiles, nodes=nodes)
    memory_bytes, missed = gpu_bytes(there), False
    if limits_s:
        few = fewest(demands, predictor, there, limits_s, slices_per_gpu=slices, gpu_bytes=memory_bytes)
        placed, missed = few.plan, bool(few.missed)
        print(f"{enough_words(few)}\n")
    else:
        found = search(
            demands, predictor, gpus=sum(domains), slices_per_gpu=slices, domain_gpus=domains, gpu_bytes=memory_bytes
        )
        placed = place(found, there)
        placed = replace(placed, forecasts=predictor.forecast(demands, placed.shares, placed.instances))
    write_plan(output, placed)
    write_aggregates(workflows_of(output), [demand.aggregate for demand in demands])
    print_plan(placed, there, most_rejected=most)
    print(f"wrote {output} and {workflows_of(output)}")
    if missed or not carries(placed):
        raise typer.Exit(1)


@app.command("show")
def show(
    plan: Annotated[Path, typer.Argument(help="From `headway plan make`.")] = Path("plan.yaml"),
    nodes: Annotated[Path | None, typer.Option(help="The machines, to show what is free on them, too.")] = None,
    most: Annotated[int, typer.Option(help="Rejected neighbours to print.")] = 8,
) -> None:
    """Print a plan as people read it."""
    print_plan(read_plan(plan), read_nodes(nodes) if nodes is not None else [], most_rejected=most)


@app.command("nodes")
def nodes_(
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("nodes.yaml"),
    gpus: Annotated[list[str] | None, typer.Option(metavar="NAME=COUNT", help="A machine; repeatable.")] = None,
    topo: Annotated[
        list[str] | None, typer.Option(metavar="NAME=FILE", help="What `nvidia-smi topo -m` printed there; repeatable.")
    ] = None,
    device: Annotated[str, typer.Option(help=f"Kind of their GPUs: {', '.join(hardware.DEVICES)}.")] = "",
    domain_gpus: Annotated[int, typer.Option(help="With --gpus: how many are joined by a fast interconnect.")] = 1,
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
    if cluster:
        from headway.serving.allocation.topology import from_labels
        from headway.serving.deploy.apply import Cluster, Reach

        reached = Cluster(Reach(kubeconfig, context))
        try:
            found = from_labels(reached.node_labels())
        finally:
            reached.close()
    else:
        if device not in hardware.DEVICES:
            raise UsageError(f"{device!r} is none of {', '.join(hardware.DEVICES)}", where="--device")
        found = [_counted(name, count, device, domain_gpus) for name, count in _figures(gpus or [], "--gpus").items()]
        for text in topo or []:
            name, equals, file = text.partition("=")
            if not equals:
                raise UsageError(f"{text!r} is not NAME=FILE", where="--topo")
            found.append(from_topo(read_text(Path(file)), name=name, device=device, where=file, pcie=pcie))
    names = [node.name for node in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{twice} is there twice", where="--gpus and --topo")
    write_nodes(output, found)
    for node in found:
        print(f"{node.name}: {node.gpus} x {node.device}, joined: {_joined(node)}")
    print(f"wrote {output}")


def _counted(name: str, count: float, device: str, domain_gpus: int) -> Node:
    if not count.is_integer() or domain_gpus < 1:
        raise UsageError(f"{count:g} GPUs in domains of {domain_gpus}", where="--gpus")
    gpus = list(range(int(count)))
    return Node(name, device, tuple(tuple(gpus[at : at + domain_gpus]) for at in range(0, len(gpus), domain_gpus)))


def _joined(node: Node) -> str:
    if all(len(domain) == 1 for domain in node.domains):
        return "none"
    return "; ".join(",".join(map(str, domain)) for domain in node.domains)


def _figures(texts: Sequence[str], where: str) -> dict[str, float]:
    figures: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = 0.0
        if not equals or not name or not 0 < value < float("inf"):
            raise UsageError(f"{text!r} is not NAME=NUMBER, with a number above 0", where=where)
        if name in figures:
            raise UsageError(f"{name} is there twice", where=where)
        figures[name] = value
    return figures
