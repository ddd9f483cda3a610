"""Kubernetes manifests of a placed plan. Pure.

Three ways to share a GPU:

- `dra` (Kubernetes 1.34 and up, NVIDIA's DRA driver with its feature gate MPSSupport): a ResourceClaim for each shared
  GPU, which all pods on it name, so that they meet on one GPU whichever it is; MPS, with each pod's own limits in its
  environment. Whole GPUs come by ResourceClaimTemplate. The only way to parts of unequal size.
- `mps`, `time-slicing`: NVIDIA's device plugin. It cuts all GPUs of a node into equal replicas, hands them out as it
  likes, and gives a pod no more than one: so each node has either whole instances or parts of one size 1/r, and parts
  of a model may meet on one GPU. Time-slicing limits neither arithmetic nor memory: only vLLM's own setting holds.

Every pod is bound to its node by the label kubernetes.io/hostname. Deployments are replaced, not rolled: a second pod
would find no GPU. None gets the variables that Kubernetes makes of Services: of a model called vllm one would be
VLLM_PORT, which vLLM takes for its own and does not survive. Objects carry the labels MANAGED and the plan's name, by
which `plan apply` finds what is left over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from headway.errors import UsageError
from headway.serving.deploy.engines import IMAGE, PORT, Engine, dns_label
from headway.serving.deploy.names import check_image, check_name, check_node, check_object, check_value
from headway.serving.deploy.objects import MANAGED, Manifest, made, plan_labels
from headway.serving.deploy.pod_requests import WAITING, check_requests, requests, shm_size

SHARINGS = ("dra", "mps", "time-slicing")
MODEL_LABEL = "headway.dev/model"
ENGINE_LABEL = "headway.dev/engine"
DEVICE_LABEL = "headway.dev/device"
START_LIMIT_S = 1800
"""For an engine to load its weights and answer, before it is taken for broken, seconds."""
PROBE_S = 10
NOT_READY_AFTER = 3
"""Failed probes in sequence after which an engine gets no requests: an engine with a full batch may be late once."""
_WAIT = """
import sys, time, urllib.request
until = time.monotonic() + {limit}
while time.monotonic() < until:
    try:
        urllib.request.urlopen("http://{host}:{port}/health", timeout=5)
        sys.exit(0)
    except OSError as error:
        last = error
    time.sleep(2)
sys.exit(f"{host} was not ready within {limit} s: {{last}}")
""".strip()


@dataclass(frozen=True, slots=True)
class KubernetesOptions:
    """How and where.

    Attributes:
        name: of the plan, in labels; one plan of a name in a namespace.
        namespace: of all objects.
        sharing: one of SHARINGS.
        image: of vLLM, as in `EngineOptions`.
        token_secret: Secret whose key `token` is a Hugging Face token; need not be there.
        weights_claim: PersistentVolumeClaim to keep downloaded weights in; empty: each pod downloads.
        devices: kind of GPU by node, for the gateway.
        cpu, memory: what each engine asks for, as Kubernetes writes it; empty: see `pod_requests`.
    """

    name: str = "plan"
    namespace: str = "default"
    sharing: str = "dra"
    image: str = IMAGE
    token_secret: str = "hf-token"
    weights_claim: str = ""
    devices: dict[str, str] = field(default_factory=dict)
    cpu: str = ""
    memory: str = ""


def manifests(engines: Sequence[Engine], options: KubernetesOptions) -> list[Manifest]:
    """All objects, in an order in which they can be made.

    Raises:
        UsageError: an unknown way of sharing, parts that the device plugin cannot give, names that Kubernetes does not
            take, or one name for two objects.
    """
    if options.sharing not in SHARINGS:
        raise UsageError(f"unknown way to share GPUs {options.sharing!r}", hint=", ".join(SHARINGS))
    check_name(options.name, where="the plan's name (--name)")
    check_name(options.namespace, where="--namespace")
    check_image(options.image, where="--image")
    check_requests(cpu=options.cpu, memory=options.memory)
    if options.weights_claim:
        check_object(options.weights_claim, where="--weights-claim")
    for node in sorted({engine.instance.node for engine in engines}):
        check_node(node)
    for device in sorted(set(options.devices.values())):
        check_value(device, what="the device")
    making = _Making(options)
    claims: dict[str, Manifest] = {}
    claimed: dict[str, tuple[str, int]] = {}
    if options.sharing == "dra":
        for engine in engines:
            gpu = (engine.instance.node, engine.instance.gpus[0])
            if engine.shares_a_gpu and claimed.setdefault(_claim_name(engine), gpu) != gpu:
                node, number = claimed[_claim_name(engine)]
                raise UsageError(
                    f"GPU {number} of {node} and GPU {gpu[1]} of {gpu[0]} are both called {_claim_name(engine)}",
                    hint="plan in two steps, each with its own nodes and namespace",
                )
            claims |= making.claim(engine)
    else:
        equal_parts(engines)
    models = sorted({engine.instance.model for engine in engines})
    services = [making.service(model, {MODEL_LABEL: dns_label(model)}, dns_label(model)) for model in models]
    waited_for = {engine.after for engine in engines if engine.after}
    services += [
        making.service(engine.instance.model, {ENGINE_LABEL: engine.name}, engine.name, own=True)
        for engine in engines
        if engine.name in waited_for
    ]
    return [*claims.values(), *services, *(making.deployment(engine) for engine in engines)]


def equal_parts(engines: Sequence[Engine]) -> dict[str, int]:
    """Into how many replicas the device plugin must cut the GPUs of each node that has parts.

    Raises:
        UsageError: a node has whole instances and parts, or parts that are not all one 1/r.
    """
    replicas = {}
    for node in sorted({engine.instance.node for engine in engines}):
        parts = Counter(engine.part for engine in engines if engine.instance.node == node)
        if set(parts) == {1.0}:
            continue
        hint = "share with DRA, or make the plan with headway plan make --equal-parts"
        if 1.0 in parts:
            raise UsageError(
                f"{node} has whole instances and parts of GPUs, and the device plugin shares all GPUs of a node alike",
                hint=hint,
            )
        (part, *others) = sorted(parts)
        count = round(1 / part)
        if others or abs(count * part - 1) > 1e-9:
            sizes = ", ".join(f"{each:g}" for each in sorted(parts))
            raise UsageError(f"{node} has parts of {sizes} GPU, and the device plugin cuts into equal parts", hint=hint)
        replicas[node] = count
    return replicas


def plugin_config(engines: Sequence[Engine], sharing: str, *, namespace: str) -> Manifest | None:
    """The config map of NVIDIA's device plugin, a key for each number of replicas; None: no GPU is shared.

    Nodes choose their key by the label nvidia.com/device-plugin.config.
    """
    counts = sorted(set(equal_parts(engines).values()))
    if not counts:
        return None
    kind = "mps" if sharing == "mps" else "timeSlicing"
    data = {}
    for count in counts:
        lines = ["version: v1", "sharing:", f"  {kind}:", "    renameByDefault: false"]
        if sharing == "time-slicing":
            lines.append("    failRequestsGreaterThanOne: true")  # with mps the plugin itself insists on it
        lines += ["    resources:", "    - name: nvidia.com/gpu", f"      replicas: {count}"]
        data[config_key(sharing, count)] = "\n".join(lines) + "\n"
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "headway-device-plugin", "namespace": namespace, "labels": dict(MANAGED)},
        "data": data,
    }


def config_key(sharing: str, replicas: int) -> str:
    """Of a node's configuration in the config map."""
    return f"{sharing}-{replicas}"


@dataclass(frozen=True, slots=True)
class _Making:
    options: KubernetesOptions

    def claim(self, engine: Engine) -> dict[str, Manifest]:
        """What the engine's pods claim, by the claim's name."""
        name = _claim_name(engine)
        request: Manifest = {
            "name": "gpu",
            "exactly": {
                "deviceClassName": "gpu.nvidia.com",
                "allocationMode": "ExactCount",
                "count": engine.instance.shape.tensor_parallel,
            },
        }
        spec: Manifest = {"devices": {"requests": [request]}}
        if not engine.shares_a_gpu:
            return {name: self._object("ResourceClaimTemplate", name, {}, {"spec": spec})}
        parameters = {
            "apiVersion": "resource.nvidia.com/v1beta1",
            "kind": "GpuConfig",
            "sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 100}},
        }
        spec["devices"]["config"] = [
            {"requests": ["gpu"], "opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}
        ]
        return {name: self._object("ResourceClaim", name, {}, spec)}

    def service(self, model: str, selector: dict[str, str], name: str, *, own: bool = False) -> Manifest:
        """For a model; or, `own`, for one engine that another waits for, which no client should use."""
        labels = {ENGINE_LABEL: name} if own else {MODEL_LABEL: dns_label(model)}
        devices = sorted(set(self.options.devices.values()))
        if not own and len(devices) == 1:
            labels[DEVICE_LABEL] = devices[0]
        spec = {"selector": selector, "ports": [{"name": "http", "port": PORT, "targetPort": "http"}]}
        return self._object("Service", name, labels, spec)

    def deployment(self, engine: Engine) -> Manifest:
        """One pod."""
        labels = {MODEL_LABEL: dns_label(engine.instance.model), ENGINE_LABEL: engine.name}
        pod: Manifest = {
            "enableServiceLinks": False,
            "nodeSelector": {"kubernetes.io/hostname": engine.instance.node},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
            "containers": [self._container(engine)],
            "volumes": self._volumes(engine),
        }
        if engine.after:
            wait = _WAIT.format(host=engine.after, port=PORT, limit=START_LIMIT_S)
            pod["initContainers"] = [
                {
                    "name": "wait",
                    "image": self.options.image,
                    "command": ["python3", "-c", wait],
                    "resources": {"requests": dict(WAITING)},
                },
            ]
        if self.options.sharing == "dra":
            kind = "resourceClaimName" if engine.shares_a_gpu else "resourceClaimTemplateName"
            pod["resourceClaims"] = [{"name": "gpu", kind: _claim_name(engine)}]
        if not pod["volumes"]:
            del pod["volumes"]
        spec = {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": {ENGINE_LABEL: engine.name}},
            "template": {"metadata": {"labels": plan_labels(self.options.name, labels)}, "spec": pod},
        }
        return self._object("Deployment", engine.name, labels, spec)

    def _container(self, engine: Engine) -> Manifest:
        environment: list[Manifest] = []
        resources: Manifest = {"requests": requests(engine, cpu=self.options.cpu, memory=self.options.memory)}
        if self.options.sharing == "dra":
            resources["claims"] = [{"name": "gpu"}]
            if engine.shares_a_gpu:
                environment += [{"name": name, "value": value} for name, value in engine.mps_environment().items()]
        else:
            resources["limits"] = {"nvidia.com/gpu": str(engine.instance.shape.tensor_parallel)}
        if self.options.token_secret:
            key = {"name": self.options.token_secret, "key": "token", "optional": True}
            environment.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": key}})
        health = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": PROBE_S, "timeoutSeconds": 5}
        container: Manifest = {
            "name": "vllm",
            "image": self.options.image,
            "command": list(engine.command),
            "env": environment,
            "ports": [{"name": "http", "containerPort": PORT}],
            "resources": resources,
            "startupProbe": {**health, "failureThreshold": START_LIMIT_S // PROBE_S},
            "readinessProbe": {**health, "failureThreshold": NOT_READY_AFTER},
            "livenessProbe": {**health, "failureThreshold": 6},
        }
        mounts = [{"name": each["name"], "mountPath": _MOUNTS[each["name"]]} for each in self._volumes(engine)]
        if mounts:
            container["volumeMounts"] = mounts
        if not environment:
            del container["env"]
        return container

    def _volumes(self, engine: Engine) -> list[Manifest]:
        volumes: list[Manifest] = []
        if engine.instance.shape.tensor_parallel > 1:  # NCCL's; a part of a GPU has MPS' own /dev/shm
            volumes.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": shm_size(engine)}})
        if self.options.weights_claim:
            claim = {"claimName": self.options.weights_claim}
            volumes.append({"name": "weights", "persistentVolumeClaim": claim})
        return volumes

    def _object(self, kind: str, name: str, labels: dict[str, str], spec: Manifest) -> Manifest:
        return made(kind, name, namespace=self.options.namespace, plan=self.options.name, labels=labels, spec=spec)


_MOUNTS = {"shm": "/dev/shm", "weights": "/root/.cache/huggingface"}


def _claim_name(engine: Engine) -> str:
    if engine.shares_a_gpu:
        return f"gpu-{dns_label(engine.instance.node)}-{engine.instance.gpus[0]}"
    return f"gpus-{engine.instance.shape.tensor_parallel}"
