"""Kubernetes' objects of a plan, from what the command lines of `plan manifests` and `plan apply` say alike."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.plan_engines import (
    Arguments,
    Image,
    KnownAs,
    Name,
    NodesFile,
    PlanFile,
    Planned,
    Policy,
    Weights,
    engine_options,
    planned,
    tell_of_plan,
)
from headway.errors import UsageError
from headway.serving.deploy.engines import IMAGE
from headway.serving.deploy.gateway_file import PORT
from headway.serving.deploy.gateway_objects import GatewayOptions, gateway_name, gateway_objects
from headway.serving.deploy.kubernetes import SHARINGS, KubernetesOptions, manifests
from headway.serving.deploy.objects import Manifest

Sharing = Annotated[str, typer.Option(help=f"How parts of GPUs are given: {', '.join(SHARINGS)}.")]
WeightsClaim = Annotated[str, typer.Option(help="PersistentVolumeClaim for downloaded weights.")]
Cpu = Annotated[str, typer.Option(help="Cores that each engine asks for: 4. [default: by its GPUs]")]
Memory = Annotated[str, typer.Option(help="Memory that each engine asks for: 24Gi. [default: by its weights and GPUs]")]
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
class ObjectOptions:
    """What both command lines say; each option's help says what it is."""

    plan: PlanFile = Path("plan.yaml")
    nodes: NodesFile = Path("nodes.yaml")
    image: Image = IMAGE
    weights: Weights = None
    known_as: KnownAs = None
    argument: Arguments = None
    sharing: Sharing = "dra"
    name: Name = "plan"
    weights_claim: WeightsClaim = ""
    cpu: Cpu = ""
    memory: Memory = ""
    policy: Policy = "learned"
    gateway_image: GatewayImage = ""
    gateway_keys: GatewayKeys = ""
    journal_claim: JournalClaim = ""


@dataclass(frozen=True, slots=True)
class Objects:
    """What they make.

    Attributes:
        of: the plan.
        options: of the engines' objects.
        gateway: options of the gateway; None: none in the cluster.
        engines, gateways: objects, in an order in which they can be made.
    """

    of: Planned
    options: KubernetesOptions
    gateway: GatewayOptions | None
    engines: list[Manifest]
    gateways: list[Manifest]


def plan_of(asked: ObjectOptions) -> Planned:
    """Read the plan. UsageError for what is wrong."""
    return planned(
        asked.plan,
        asked.nodes,
        engine_options(asked.image, asked.weights, asked.known_as, asked.argument),
        together="gpu" if asked.sharing == "dra" else "node",
        in_cluster=True,
    )


def objects(of: Planned, asked: ObjectOptions, namespace: str) -> Objects:
    """All objects of a plan. UsageError where there can be none."""
    options = KubernetesOptions(
        name=asked.name,
        namespace=namespace,
        sharing=asked.sharing,
        image=asked.image,
        weights_claim=asked.weights_claim,
        devices=of.devices,
        cpu=asked.cpu,
        memory=asked.memory,
    )
    gateway = _gateway(asked)
    of_engines = manifests(of.servers, options)
    return Objects(
        of,
        options,
        gateway,
        of_engines,
        gateway_objects(of.servers, options, gateway) if gateway is not None else [],
    )


def refuse_all(call: typer.Context, because: str) -> None:
    """UsageError where one of these options was given."""
    for each in fields(ObjectOptions):
        given = call.get_parameter_source(each.name)
        if given is not None and given.name == "COMMANDLINE":
            option = {"argument": "arg"}.get(each.name, each.name.replace("_", "-"))
            raise UsageError(because, where=f"--{option}", hint="give it to plan manifests")


def tell(made: Objects, asked: ObjectOptions) -> None:
    """Print what can go wrong with them, and where a gateway in the cluster is and what it leaves open."""
    tell_of_plan(made.of, asked.weights, made.of.servers, in_cluster=True)
    if made.gateway is None:
        return
    print(f"clients in the cluster: http://{gateway_name(made.options.name)}.{made.options.namespace}:{PORT}/v1")
    if not made.gateway.keys_secret:
        print("note: the gateway takes requests without a key from all who reach it: --gateway-keys SECRET")
    if not made.gateway.journal_claim:
        print("note: the gateway's journal is lost with its pod (emptyDir): --journal-claim CLAIM")


def _gateway(asked: ObjectOptions) -> GatewayOptions | None:
    """UsageError where what goes with a gateway is there alone."""
    if asked.gateway_image:
        return GatewayOptions(asked.gateway_image, asked.policy, asked.gateway_keys, asked.journal_claim)
    for option, value in (("--gateway-keys", asked.gateway_keys), ("--journal-claim", asked.journal_claim)):
        if value:
            raise UsageError("goes with --gateway-image", where=option)
    return None
