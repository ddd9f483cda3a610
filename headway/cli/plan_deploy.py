"""`headway plan manifests`, `compose`, `gateway` and `apply`: what runs a plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from headway.cli.called import read_text
from headway.cli.journals import write_text
from headway.cli.plan_words import forecast_words
from headway.errors import UsageError
from headway.report.words import counted
from headway.serving.allocation.files import read_nodes, read_plan
from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import Forecast, Plan
from headway.serving.deploy import compose as composing
from headway.serving.deploy import kubernetes
from headway.serving.deploy.engines import Engine, EngineOptions, engines
from headway.serving.deploy.gateway_file import gateway_file
from headway.serving.deploy.kubernetes import KubernetesOptions, Manifest
from headway.serving.deploy.names import check_name
from headway.serving.deploy.text import documents
from headway.serving.deploy.written import FILE, read_manifests

_IN_MANIFESTS = ("plan", "nodes", "image", "weights", "known_as", "argument", "sharing", "name", "weights_claim")
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
Sharing = Annotated[str, typer.Option(help=f"How parts of GPUs are given: {', '.join(kubernetes.SHARINGS)}.")]
Namespace = Annotated[str, typer.Option(help="Of all objects.")]
Name = Annotated[str, typer.Option(help="Of the plan: one of a name in a namespace.")]
WeightsClaim = Annotated[str, typer.Option(help="PersistentVolumeClaim for downloaded weights.")]
Policy = Annotated[str, typer.Option(help="Of the gateway's pools.")]


def manifests(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write into.")],
    plan: PlanFile = Path("plan.yaml"),
    nodes: NodesFile = Path("nodes.yaml"),
    image: Image = EngineOptions().image,
    weights: Weights = None,
    known_as: KnownAs = None,
    argument: Arguments = None,
    sharing: Sharing = "dra",
    namespace: Namespace = "default",
    name: Name = "plan",
    weights_claim: WeightsClaim = "",
    policy: Policy = "learned",
) -> None:
    """Write a plan's Kubernetes manifests, and the gateway's file."""
    read, there = read_plan(plan), read_nodes(nodes)
    options = EngineOptions(image, _names(weights), _names(known_as), tuple(argument or ()))
    servers = _engines(read, there, options, sharing)
    _warn_of_rates(read.forecasts)
    made = _made(servers, there, image, sharing, namespace, name, weights_claim)
    _folder(output)
    _write(output / FILE, documents(made))
    devices = {node.name: node.device for node in there}
    text = gateway_file(servers, devices=devices, namespace=namespace, policy=policy)
    _write(output / "gateway.yaml", text)
    if sharing != "dra":
        config = kubernetes.plugin_config(servers, sharing, namespace="gpu-operator")
        if config is not None:
            _write(output / "device-plugin.yaml", documents([config]))
            print("let the device plugin use it (GPU operator: devicePlugin.config.name=headway-device-plugin), and:")
            for node, replicas in kubernetes.equal_parts(servers).items():
                key = kubernetes.config_key(sharing, replicas)
                print(f"  kubectl label node {node} nvidia.com/device-plugin.config={key} --overwrite")
    _warn(there, servers)
    _warn_of_names(servers, weights)


def compose(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write into.")],
    plan: PlanFile = Path("plan.yaml"),
    nodes: NodesFile = Path("nodes.yaml"),
    image: Image = EngineOptions().image,
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
    read, there = read_plan(plan), read_nodes(nodes)
    options = EngineOptions(image, _names(weights), _names(known_as), tuple(argument or ()))
    servers = engines(read, there, options)
    if node:
        servers = [engine for engine in servers if engine.instance.node == node]
        if not servers:
            raise UsageError(f"the plan has nothing on {node}", where="--node")
    if not 1 <= port <= 65535 - len(servers):
        raise UsageError(f"{len(servers)} ports from {port} on do not all exist", where="--port")
    check_name(name, where="--name")
    body = composing.compose(servers, name=name, image=image, first_port=port)
    urls = {each: f"http://127.0.0.1:{number}" for each, number in composing.ports(servers, port).items()}
    _folder(output)
    _write(output / "compose.yaml", documents([body]))
    devices = {each.name: each.device for each in there}
    _write(output / "gateway.yaml", gateway_file(servers, devices=devices, urls=urls, policy=policy))
    _warn_of_names(servers, weights)


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
    there = read_nodes(nodes)
    servers = engines(read_plan(plan), there, EngineOptions())
    urls = _names(url, where="--url")
    missing = sorted({engine.name for engine in servers} - set(urls))
    if missing:
        raise UsageError(f"says nothing of {', '.join(missing)}", where="--url")
    devices = {node.name: node.device for node in there}
    _write(output, gateway_file(servers, devices=devices, urls=urls, policy=policy))


def apply(
    call: typer.Context,
    from_: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="What `plan manifests` wrote there, as it is; instead of a plan."),
    ] = None,
    plan: PlanFile = Path("plan.yaml"),
    nodes: NodesFile = Path("nodes.yaml"),
    image: Image = EngineOptions().image,
    weights: Weights = None,
    known_as: KnownAs = None,
    argument: Arguments = None,
    sharing: Sharing = "dra",
    namespace: Annotated[str, typer.Option(help="Of all objects. [default: the context's]")] = "",
    name: Name = "plan",
    weights_claim: WeightsClaim = "",
    kubeconfig: Annotated[Path | None, typer.Option(help="[default: as kubectl]")] = None,
    context: Annotated[str, typer.Option(help="Of the kubeconfig. [default: its current one]")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do it. Without it, only say what would be done.")] = False,
) -> None:
    """Make a cluster what the plan says: first as a dry run, which shows what would change."""
    from headway.serving.deploy.apply import Cluster, Reach

    if namespace:
        check_name(namespace, where="--namespace")
    servers: list[Engine] = []
    there: list[Node] = []
    made: list[Manifest] = []
    forecasts: tuple[Forecast, ...] = ()
    if from_ is not None:
        _refuse_what_is_written(call, from_)
        file = from_ / FILE
        written = read_manifests(read_text(file), where=str(file))
        if namespace not in ("", written.namespace):
            raise UsageError(f"{file} is for {written.namespace}, not for {namespace}", where="--namespace")
        made, name, namespace = list(written.manifests), written.plan, written.namespace
    else:
        read, there = read_plan(plan), read_nodes(nodes)
        options = EngineOptions(image, _names(weights), _names(known_as), tuple(argument or ()))
        servers, forecasts = _engines(read, there, options, sharing), read.forecasts
    cluster = Cluster(Reach(kubeconfig, context), namespace)
    try:
        made = made or _made(servers, there, image, sharing, cluster.namespace, name, weights_claim)
        changes = cluster.apply(made, name) if yes else cluster.difference(made, name)
        done = 0
        for change in changes:
            done += change.action != "keep"
            print(f"{change.action:<7}{change.kind} {change.name}", flush=True)
            if not yes and change.action == "change":
                for line in change.diff:
                    print(f"       {line}")
    finally:
        cluster.close()
    _warn_of_rates(forecasts)
    _warn(there, servers)
    _warn_of_names(servers, weights)
    if yes:
        print(f"{counted(done, 'object')} changed in {cluster.namespace}")
    else:
        print(f"{counted(done, 'object')} would change in {cluster.namespace}; nothing was done: add --yes to do it")


def _engines(plan: Plan, nodes: Sequence[Node], options: EngineOptions, sharing: str) -> list[Engine]:
    return engines(plan, nodes, options, together="gpu" if sharing == "dra" else "node")


def _made(
    servers: Sequence[Engine],
    nodes: Sequence[Node],
    image: str,
    sharing: str,
    namespace: str,
    name: str,
    weights_claim: str,
) -> list[Manifest]:
    options = KubernetesOptions(
        name=name,
        namespace=namespace,
        sharing=sharing,
        image=image,
        weights_claim=weights_claim,
        devices={node.name: node.device for node in nodes},
    )
    return kubernetes.manifests(servers, options)


def _warn(nodes: Sequence[Node], servers: Sequence[Engine]) -> None:
    """What Kubernetes cannot be told."""
    wide = {engine.instance.node for engine in servers if engine.instance.shape.tensor_parallel > 1}
    for node in nodes:
        if node.name in wide and len(node.domains) > 1:
            print(
                f"note: {node.name} has {len(node.domains)} groups of joined GPUs, and which GPUs an instance gets is "
                f"the driver's choice: check that it stays inside one"
            )


def _refuse_what_is_written(call: typer.Context, folder: Path) -> None:
    for each in _IN_MANIFESTS:
        given = call.get_parameter_source(each)
        if given is not None and given.name == "COMMANDLINE":
            option = {"argument": "arg"}.get(each, each.replace("_", "-"))
            raise UsageError(f"--from {folder} has it already", where=f"--{option}", hint="give it to plan manifests")


def _warn_of_rates(forecasts: Sequence[Forecast]) -> None:
    for forecast in forecasts:
        if forecast.latency_s == float("inf"):
            print(f"warning: {forecast_words(forecast)}")


def _warn_of_names(servers: Sequence[Engine], weights: Sequence[str] | None) -> None:
    """Of models that vLLM would look for under a name that no repository has."""
    models = {engine.instance.model for engine in servers}
    unknown = sorted(set(_names(weights)) - models)
    if unknown and servers:
        print(f"note: --weights names {', '.join(unknown)}, which the plan does not have")
    for model in sorted(models - set(_names(weights))):
        if "/" not in model:
            print(
                f"note: vLLM would load {model}, which is neither a repository nor a path: "
                f"--weights {model}=ORGANISATION/NAME"
            )


def _names(texts: Sequence[str] | None, *, where: str = "NAME=...") -> dict[str, str]:
    names: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name or not value or name in names:
            raise UsageError(f"{text!r} is not NAME=VALUE, each name once", where=where)
        names[name] = value
    return names


def _folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make it: {error.strerror}", where=str(path)) from None


def _write(path: Path, text: str) -> None:
    write_text(path, text)
    print(f"wrote {path}")
