"""`headway plan manifests`, `compose`, `gateway` and `apply`: what runs a plan."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.cli.called import read_text
from headway.cli.grouped import grouped
from headway.cli.plan_engines import (
    Arguments,
    Image,
    KnownAs,
    Name,
    NodesFile,
    PlanFile,
    Policy,
    Weights,
    engine_options,
    pairs,
    planned,
    tell_of_plan,
)
from headway.cli.plan_files import (
    ENGINES_FILE,
    GATEWAY_FILE,
    GATEWAY_OBJECTS_FILE,
    MANIFESTS,
    PLUGIN_FILE,
    is_by,
    remove_stale,
    write_files,
)
from headway.cli.plan_objects import ObjectOptions, objects, plan_of, refuse_all, tell
from headway.errors import UsageError
from headway.report.words import counted
from headway.serving.deploy import compose as composing
from headway.serving.deploy.engines import IMAGE, EngineOptions
from headway.serving.deploy.gateway_file import gateway_file
from headway.serving.deploy.kubernetes import config_key, equal_parts, plugin_config
from headway.serving.deploy.names import check_name
from headway.serving.deploy.objects import Manifest
from headway.serving.deploy.text import documents
from headway.serving.deploy.written import Written, read_manifests
from headway.serving.gateway.discovery.options import address

if TYPE_CHECKING:
    from headway.serving.deploy.apply import Cluster

_MANIFESTS_VERB = "plan manifests"
MOST_PORT = 65535


@grouped(ObjectOptions)
def manifests(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write into.")],
    asked: ObjectOptions,
    namespace: Annotated[str, typer.Option(help="Of all objects.")] = "default",
) -> None:
    """Write a plan's Kubernetes manifests, and the gateway's: its objects, or its file."""
    of, sharing = plan_of(asked), asked.sharing
    made = objects(of, asked, namespace)
    texts = {ENGINES_FILE: documents(made.engines)}
    if made.gateway is not None:
        texts[GATEWAY_OBJECTS_FILE] = documents(made.gateways)
    else:
        texts[GATEWAY_FILE] = gateway_file(of.servers, devices=of.devices, namespace=namespace, policy=asked.policy)
    plugin = plugin_config(of.servers, sharing, namespace="gpu-operator") if sharing != "dra" else None
    if plugin is not None:
        texts[PLUGIN_FILE] = documents([plugin])
    write_files(output, _MANIFESTS_VERB, texts, inputs=of.inputs)
    remove_stale(output, _MANIFESTS_VERB, [each for each in MANIFESTS if each not in texts])
    if plugin is not None:
        print("let the device plugin use it (GPU operator: devicePlugin.config.name=headway-device-plugin), and:")
        for node, replicas in equal_parts(of.servers).items():
            key = config_key(sharing, replicas)
            print(f"  kubectl label node {node} nvidia.com/device-plugin.config={key} --overwrite")
    tell(made, asked)
    if made.gateway is None:
        print(
            f"note: the gateway must run where it reaches the pods' addresses: with --gateway-image IMAGE, or by "
            f"headway gateway {output / GATEWAY_FILE} in the cluster's network"
        )


def compose(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write into.")],
    plan: PlanFile = Path("plan.yaml"),
    nodes: NodesFile = Path("nodes.yaml"),
    image: Image = IMAGE,
    weights: Weights = None,
    known_as: KnownAs = None,
    argument: Arguments = None,
    node: Annotated[str, typer.Option(help="Only what is on this machine.")] = "",
    name: Name = "plan",
    port: Annotated[
        int, typer.Option(help="First engine's port on 127.0.0.1; the others count up.")
    ] = composing.FIRST_PORT,
    policy: Policy = "learned",
) -> None:
    """Write a compose file for one machine, and the gateway's file."""
    of = planned(plan, nodes, engine_options(image, weights, known_as, argument))
    servers = [engine for engine in of.servers if node in ("", engine.instance.node)]
    if not servers:
        raise UsageError(f"the plan has nothing on {node}", where="--node")
    if not 1 <= port <= MOST_PORT:
        raise UsageError(f"{port} is not from 1 to {MOST_PORT}", where="--port")
    if port + len(servers) - 1 > MOST_PORT:
        raise UsageError(
            f"{counted(len(servers), 'engine')} from {port} on would need ports above {MOST_PORT}", where="--port"
        )
    body = composing.compose(servers, name=name, image=image, first_port=port)
    urls = {each: f"http://127.0.0.1:{number}" for each, number in composing.ports(servers, port).items()}
    texts = {
        "compose.yaml": documents([body]),
        "gateway.yaml": gateway_file(servers, devices=of.devices, urls=urls, policy=policy),
    }
    write_files(output, "plan compose", texts, inputs=of.inputs)
    tell_of_plan(of, weights, servers)
    elsewhere = {engine.instance.model for engine in of.servers} - {engine.instance.model for engine in servers}
    if elsewhere:
        print(f"note: neither file has {', '.join(sorted(elsewhere))}, which the plan has on other machines only")


def gateway(
    url: Annotated[
        list[str],
        typer.Option(metavar="ENGINE=URL", help="Where an engine is: llama-3-8b-0=http://host:8000; for each."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("gateway.yaml"),
    plan: PlanFile = Path("plan.yaml"),
    nodes: NodesFile = Path("nodes.yaml"),
    policy: Policy = "learned",
) -> None:
    """Write the gateway's file for engines that were started in another way."""
    of = planned(plan, nodes, EngineOptions())
    urls = pairs(url, where="--url")
    names = sorted(engine.name for engine in of.servers)
    unknown = sorted(set(urls) - set(names))
    if unknown:
        raise UsageError(
            f"the plan has no engine {', '.join(unknown)}", where="--url", hint=f"it has {', '.join(names)}"
        )
    missing = [each for each in names if each not in urls]
    if missing:
        raise UsageError(f"says nothing of {', '.join(missing)}", where="--url")
    for each, at in urls.items():
        try:
            address(at)
        except ValueError as error:  # the file's reader would name a line of a file that is not written
            raise UsageError(str(error), where=f"--url {each}") from None
    text = gateway_file(of.servers, devices=of.devices, urls=urls, policy=policy)
    write_files(output.parent, "plan gateway", {output.name: text}, inputs=of.inputs)


@grouped(ObjectOptions)
def apply(
    call: typer.Context,
    asked: ObjectOptions,
    from_: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="What `plan manifests` wrote there, as it is; instead of a plan."),
    ] = None,
    namespace: Annotated[str, typer.Option(help="Of all objects. [default: the context's]")] = "",
    kubeconfig: Annotated[Path | None, typer.Option(help="Of the cluster. [default: as kubectl]")] = None,
    context: Annotated[str, typer.Option(help="Of the kubeconfig.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do it. Without: say what would change.")] = False,
) -> None:
    """Make a cluster what a plan says. A dry run, unless --yes.

    Exit code 1: the API server was not reached, or refused.
    """
    from headway.serving.deploy.apply import Cluster, Reach

    if namespace:
        check_name(namespace, where="--namespace")
    if from_ is not None:
        refuse_all(call, f"--from {from_} has it already")
        written = _read_written(from_)
        if namespace not in ("", written.namespace):
            raise UsageError(f"{from_} is for {written.namespace}, not for {namespace}", where="--namespace")
        with closing(Cluster(Reach(kubeconfig, context), written.namespace)) as cluster:
            _bring(cluster, written.manifests, written.plan, yes=yes)
        return
    of = plan_of(asked)
    with closing(Cluster(Reach(kubeconfig, context), namespace)) as cluster:
        made = objects(of, asked, cluster.namespace)
        _bring(cluster, (*made.engines, *made.gateways), asked.name, yes=yes)
    tell(made, asked)


def _bring(cluster: Cluster, made: tuple[Manifest, ...], name: str, *, yes: bool) -> None:
    """Apply, or say what would change."""
    done = 0
    for change in cluster.apply(made, name) if yes else cluster.difference(made, name):
        done += change.action != "keep"
        print(f"{change.action:<7}{change.kind} {change.name}", flush=True)
        if not yes and change.action == "change":
            for line in change.diff:
                print(f"       {line}")
    if yes:
        print(f"{counted(done, 'object')} changed in {cluster.namespace}")
    else:
        print(f"{counted(done, 'object')} would change in {cluster.namespace}; nothing was done: add --yes to do it")


def _read_written(folder: Path) -> Written:
    """What `plan manifests` wrote: the engines, and the gateway where it is in the cluster."""
    files = [folder / ENGINES_FILE]
    if (folder / GATEWAY_OBJECTS_FILE).is_file() and is_by(folder / GATEWAY_OBJECTS_FILE, _MANIFESTS_VERB):
        files.append(folder / GATEWAY_OBJECTS_FILE)
    parts = [read_manifests(read_text(file), where=str(file)) for file in files]
    plans = {(part.plan, part.namespace) for part in parts}
    if len(plans) > 1:
        told = ", ".join(f"{plan} in {namespace}" for plan, namespace in sorted(plans))
        raise UsageError(f"its files are of several plans: {told}", where=str(folder))
    return Written(tuple(each for part in parts for each in part.manifests), parts[0].plan, parts[0].namespace)
