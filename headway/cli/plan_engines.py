"""Engines of a plan, from what a command line says; and what there is to say of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.plan_words import forecast_words
from headway.errors import UsageError
from headway.serving.allocation.files import read_nodes, read_plan
from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import Forecast
from headway.serving.deploy.engines import Engine, EngineOptions, engines
from headway.serving.deploy.names import check_node
from headway.serving.engine.hardware import MODELS

PlanFile = Annotated[Path, typer.Option(help="From `headway plan make`.")]
NodesFile = Annotated[Path, typer.Option(help="The machines that it is placed on.")]
Image = Annotated[str, typer.Option(help="vLLM's OpenAI-compatible server.")]
Weights = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=WEIGHTS", help="What vLLM loads for a model: a Hugging Face name or a path; repeatable."
    ),
]
KnownAs = Annotated[
    list[str] | None, typer.Option(metavar="NAME=MODEL", help="A model's name in the engine model, for its memory.")
]
Arguments = Annotated[
    list[str] | None,
    typer.Option("--arg", metavar="ARGUMENT", help="For every vLLM: --arg=--enforce-eager; repeatable."),
]
Name = Annotated[str, typer.Option(help="Of the plan: one of a name in a namespace.")]
Policy = Annotated[str, typer.Option(help="Of the gateway's pools.")]


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan as it was read, and its engines.

    Attributes:
        forecasts: of the plan.
        nodes: of the nodes' file.
        servers: in the order in which they start.
        inputs: files that were read.
    """

    forecasts: tuple[Forecast, ...]
    nodes: tuple[Node, ...]
    servers: tuple[Engine, ...]
    inputs: tuple[Path, ...]

    @property
    def devices(self) -> dict[str, str]:
        """Kind of GPU by node."""
        return {node.name: node.device for node in self.nodes}


def planned(
    plan: Path, nodes: Path, options: EngineOptions, *, together: str = "gpu", in_cluster: bool = False
) -> Planned:
    """Read a plan.

    Args:
        plan, nodes: files.
        options: of the engines.
        together: as for `engines`.
        in_cluster: whether its nodes must have names that Kubernetes takes.

    Raises:
        UsageError: something is wrong with the files, the options, or a name.
    """
    read, there = read_plan(plan), read_nodes(nodes)
    if in_cluster:
        for name in sorted({it.node for it in read.instances}):
            check_node(name, where=str(nodes if any(node.name == name for node in there) else plan))
    servers = engines(read, there, options, together=together)
    return Planned(read.forecasts, tuple(there), tuple(servers), (plan, nodes))


def engine_options(
    image: str, weights: Sequence[str] | None, known_as: Sequence[str] | None, arguments: Sequence[str] | None
) -> EngineOptions:
    """From a command line. UsageError where a name stands twice or without a value."""
    return EngineOptions(
        image, pairs(weights, where="--weights"), pairs(known_as, where="--known-as"), tuple(arguments or ())
    )


def tell_of_plan(
    of: Planned, weights: Sequence[str] | None, servers: Sequence[Engine], *, in_cluster: bool = False
) -> None:
    """Print what can go wrong with engines of a plan: with `servers`, which are all or those of one machine."""
    for forecast in of.forecasts:
        if forecast.latency_s == float("inf"):
            print(f"warning: {forecast_words(forecast)}")
    wide = {engine.instance.node for engine in servers if engine.instance.shape.tensor_parallel > 1}
    for node in of.nodes:
        if in_cluster and node.name in wide and len(node.domains) > 1:
            print(
                f"note: {node.name} has {len(node.domains)} groups of joined GPUs, and which GPUs an instance gets is "
                f"the driver's choice: check that it stays inside one"
            )
    models = {engine.instance.model for engine in servers}
    named = set(pairs(weights, where="--weights"))
    unknown = sorted(named - {engine.instance.model for engine in of.servers})
    if unknown:
        print(f"note: --weights names {', '.join(unknown)}, which the plan does not have")
    for model in sorted(models - named):
        if "/" not in model:
            print(
                f"note: vLLM would load {model}, which is neither a repository nor a path: "
                f"--weights {model}=ORGANISATION/NAME"
            )
    _tell_of_longest(servers)


def _tell_of_longest(servers: Sequence[Engine]) -> None:
    """Print how long requests may be, where less than a model's context; and where that is not known."""
    told: dict[str, list[str]] = {}
    for engine in servers:
        bound = engine.longest
        if bound.asked:
            continue
        if bound.said_tokens is not None:
            words = (
                f"takes no request of more than {bound.said_tokens} tokens with its answer (--max-model-len): its "
                f"cache does not hold the model's context of {bound.context_tokens}"
            )
        elif bound.held_tokens is None:
            words = (
                "has a cache of unknown size: where it does not hold the model's context, vLLM does not start; "
                "--arg=--max-model-len=auto lets it take what fits"
            )
        elif engine.instance.model not in MODELS:
            words = (
                f"has a cache of {bound.held_tokens} tokens: where its weights are for a longer context, vLLM does "
                f"not start; --arg=--max-model-len=auto lets it take what fits"
            )
        else:
            continue
        told.setdefault(words, []).append(engine.name)
    for words, names in told.items():
        print(f"note: {'each of ' if len(names) > 1 else ''}{', '.join(sorted(names))} {words}")


def pairs(texts: Sequence[str] | None, *, where: str) -> dict[str, str]:
    """NAME=VALUE, each name once. UsageError else."""
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name or not value or name in found:
            raise UsageError(f"{text!r} is not NAME=VALUE, each name once", where=where)
        found[name] = value
    return found
