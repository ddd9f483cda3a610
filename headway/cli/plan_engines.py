"""Engines and Kubernetes' objects of a plan, from what a command line says; and what there is to say of them."""

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
from headway.serving.deploy.gateway_file import PORT
from headway.serving.deploy.gateway_objects import GatewayOptions, gateway_name, gateway_objects
from headway.serving.deploy.kubernetes import SHARINGS, KubernetesOptions, manifests
from headway.serving.deploy.objects import Manifest
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
Sharing = Annotated[str, typer.Option(help=f"How parts of GPUs are given: {', '.join(SHARINGS)}.")]
Namespace = Annotated[str, typer.Option(help="Of all objects.")]
Name = Annotated[str, typer.Option(help="Of the plan: one of a name in a namespace.")]
WeightsClaim = Annotated[str, typer.Option(help="PersistentVolumeClaim for downloaded weights.")]
Cpu = Annotated[str, typer.Option(help="Cores that each engine asks for: 4. [default: by its GPUs]")]
Memory = Annotated[str, typer.Option(help="Memory that each engine asks for: 24Gi. [default: by its weights and GPUs]")]
Policy = Annotated[str, typer.Option(help="Of the gateway's pools.")]
GatewayImage = Annotated[
    str, typer.Option(help="An image with headway: the gateway runs in the cluster, too; docs/plan.md builds one.")
]
GatewayKeys = Annotated[
    str, typer.Option(metavar="SECRET", help="With --gateway-image: its keys.yaml is the list of keys.")
]
JournalClaim = Annotated[
    str, typer.Option(metavar="CLAIM", help="With --gateway-image: PersistentVolumeClaim for the journal.")
]


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


def planned(plan: Path, nodes: Path, options: EngineOptions, *, sharing: str = "dra") -> Planned:
    """Read a plan. `sharing`: but with DRA it is not ours to say who shares a GPU. UsageError for what is wrong."""
    read, there = read_plan(plan), read_nodes(nodes)
    servers = engines(read, there, options, together="gpu" if sharing == "dra" else "node")
    return Planned(read.forecasts, tuple(there), tuple(servers), (plan, nodes))


def engine_options(
    image: str, weights: Sequence[str] | None, known_as: Sequence[str] | None, arguments: Sequence[str] | None
) -> EngineOptions:
    """From a command line. UsageError where a name stands twice or without a value."""
    return EngineOptions(
        image, pairs(weights, where="--weights"), pairs(known_as, where="--known-as"), tuple(arguments or ())
    )


def gateway_options(image: str, policy: str, keys_secret: str, journal_claim: str) -> GatewayOptions | None:
    """From a command line; None: no gateway in the cluster. UsageError where what goes with one is there alone."""
    if image:
        return GatewayOptions(image, policy, keys_secret, journal_claim)
    for option, value in (("--gateway-keys", keys_secret), ("--journal-claim", journal_claim)):
        if value:
            raise UsageError("goes with --gateway-image", where=option)
    return None


def objects(
    of: Planned, options: KubernetesOptions, gateway: GatewayOptions | None
) -> tuple[list[Manifest], list[Manifest]]:
    """The engines' objects, and the gateway's. UsageError where there can be none."""
    made = manifests(of.servers, options)
    return made, gateway_objects(of.servers, options, gateway) if gateway is not None else []


def tell_of_plan(of: Planned, weights: Sequence[str] | None, *, in_cluster: bool = False) -> None:
    """Print what can go wrong with a plan's engines."""
    for forecast in of.forecasts:
        if forecast.latency_s == float("inf"):
            print(f"warning: {forecast_words(forecast)}")
    wide = {engine.instance.node for engine in of.servers if engine.instance.shape.tensor_parallel > 1}
    for node in of.nodes:
        if in_cluster and node.name in wide and len(node.domains) > 1:
            print(
                f"note: {node.name} has {len(node.domains)} groups of joined GPUs, and which GPUs an instance gets is "
                f"the driver's choice: check that it stays inside one"
            )
    models = {engine.instance.model for engine in of.servers}
    named = set(pairs(weights, where="--weights"))
    unknown = sorted(named - models)
    if unknown:
        print(f"note: --weights names {', '.join(unknown)}, which the plan does not have")
    for model in sorted(models - named):
        if "/" not in model:
            print(
                f"note: vLLM would load {model}, which is neither a repository nor a path: "
                f"--weights {model}=ORGANISATION/NAME"
            )
    _tell_of_longest(of.servers)


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


def tell_of_gateway(gateway: GatewayOptions, options: KubernetesOptions) -> None:
    """Print where a gateway in the cluster is, and what it leaves open."""
    print(f"clients in the cluster: http://{gateway_name(options.name)}.{options.namespace}:{PORT}/v1")
    if not gateway.keys_secret:
        print("note: the gateway takes requests without a key from all who reach it: --gateway-keys SECRET")
    if not gateway.journal_claim:
        print("note: the gateway's journal is lost with its pod (emptyDir): --journal-claim CLAIM")


def pairs(texts: Sequence[str] | None, *, where: str) -> dict[str, str]:
    """NAME=VALUE, each name once. UsageError else."""
    found: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name or not value or name in found:
            raise UsageError(f"{text!r} is not NAME=VALUE, each name once", where=where)
        found[name] = value
    return found
