"""The gateway of a plan inside of the cluster, as Kubernetes' objects. Pure.

One pod, with an account that may read its namespace's EndpointSlices and nothing else. Its configuration is a
ConfigMap, and a hash of it is on the pod: a new configuration is a new pod. The journal is on a volume, for the next
plan: on the pod's own, which is lost with it, or on a claim; two pods never write one journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from headway.errors import UsageError
from headway.serving.deploy.engines import Engine, dns_label
from headway.serving.deploy.gateway_file import JOURNAL, PORT, gateway_file
from headway.serving.deploy.kubernetes import KubernetesOptions
from headway.serving.deploy.names import check_image, check_name, check_object
from headway.serving.deploy.objects import Manifest, made, plan_labels

GATEWAY_LABEL = "headway.dev/gateway"
CONFIG_HASH = "headway.dev/config"
CONFIG_FOLDER = "/etc/headway"
KEYS_FOLDER = "/etc/headway-keys"
KEYS_FILE = "keys.yaml"
"""Key of the Secret, which is the list of the gateway's keys."""
JOURNAL_FOLDER = "/var/lib/headway"
JOURNAL_LIMIT = "1Gi"
"""On a pod's own volume. A journal ends at 256 MiB (`journal.max_bytes`); above the limit the pod would be put out."""
REQUESTS = {"cpu": "1", "memory": "1Gi"}
"""One process on one core; 32 KiB a stream, and what it imports."""
STOP_S = 45
"""For open requests to end: above the gateway's `drain_s`, seconds."""
USER = 10001
"""Not root, and nobody on the node."""


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """What the plan does not say.

    Attributes:
        image: with headway and its extras serving and kubernetes.
        policy: of all pools.
        keys_secret: Secret whose KEYS_FILE is the list of keys; empty: anybody may ask.
        journal_claim: PersistentVolumeClaim for the journal; empty: it is lost with the pod.
    """

    image: str
    policy: str = "learned"
    keys_secret: str = ""
    journal_claim: str = ""


def gateway_name(plan: str) -> str:
    """Of all the gateway's objects."""
    return f"gateway-{plan}"


def gateway_objects(engines: Sequence[Engine], options: KubernetesOptions, gateway: GatewayOptions) -> list[Manifest]:
    """All objects, in an order in which they can be made.

    Raises:
        UsageError: a name is none, or a model's or an engine's; the policy is unknown.
    """
    name = check_name(gateway_name(options.name), where="--name")
    check_image(gateway.image, where="--gateway-image")
    if gateway.keys_secret:
        check_object(gateway.keys_secret, where="--gateway-keys")
    if gateway.journal_claim:
        check_object(gateway.journal_claim, where="--journal-claim")
    if any(name in (engine.name, dns_label(engine.instance.model)) for engine in engines):
        raise UsageError(f"the gateway and a model are both called {name}", hint="another --name")
    config = gateway_file(
        engines,
        devices=options.devices,
        namespace=options.namespace,
        policy=gateway.policy,
        journal=f"{JOURNAL_FOLDER}/{JOURNAL}",
        keys_file=f"{KEYS_FOLDER}/{KEYS_FILE}" if gateway.keys_secret else "",
    )
    rules = [{"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": options.namespace}
    port = {"name": "http", "port": PORT, "targetPort": "http"}
    selector = {GATEWAY_LABEL: options.name}

    def of_plan(kind: str, **body: Any) -> Manifest:
        return made(kind, name, namespace=options.namespace, plan=options.name, labels=selector, **body)

    return [
        of_plan("ServiceAccount"),
        of_plan("Role", rules=rules),
        of_plan("RoleBinding", roleRef=role, subjects=[subject]),
        of_plan("ConfigMap", data={"gateway.yaml": config}),
        of_plan("Service", spec={"selector": selector, "ports": [port]}),
        of_plan("Deployment", spec=_deployment(name, config, options, gateway)),
    ]


def _deployment(name: str, config: str, options: KubernetesOptions, gateway: GatewayOptions) -> Manifest:
    journal: Manifest = {"emptyDir": {"sizeLimit": JOURNAL_LIMIT}}
    if gateway.journal_claim:
        journal = {"persistentVolumeClaim": {"claimName": gateway.journal_claim}}
    volumes: list[Manifest] = [
        {"name": "config", "configMap": {"name": name}},
        {"name": "journal", **journal},
    ]
    mounts: list[Manifest] = [
        {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True},
        {"name": "journal", "mountPath": JOURNAL_FOLDER},
    ]
    if gateway.keys_secret:
        volumes.append({"name": "keys", "secret": {"secretName": gateway.keys_secret}})
        mounts.append({"name": "keys", "mountPath": KEYS_FOLDER, "readOnly": True})
    probe = {"periodSeconds": 5, "timeoutSeconds": 5, "failureThreshold": 3}
    container: Manifest = {
        "name": "gateway",
        "image": gateway.image,
        "command": ["headway", "gateway", f"{CONFIG_FOLDER}/gateway.yaml"],
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": {"requests": dict(REQUESTS)},
        "startupProbe": {**probe, "httpGet": {"path": "/health", "port": "http"}, "failureThreshold": 24},
        "readinessProbe": {**probe, "httpGet": {"path": "/ready", "port": "http"}},
        "livenessProbe": {**probe, "httpGet": {"path": "/health", "port": "http"}},
        "volumeMounts": mounts,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    pod: Manifest = {
        "serviceAccountName": name,
        "enableServiceLinks": False,  # as for the engines: nothing of what others are called
        "terminationGracePeriodSeconds": STOP_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
    }
    labels = {GATEWAY_LABEL: options.name}
    metadata = {
        "labels": plan_labels(options.name, labels),
        "annotations": {CONFIG_HASH: sha256(config.encode()).hexdigest()[:16]},
    }
    return {
        "replicas": 1,
        "strategy": {"type": "Recreate" if gateway.journal_claim else "RollingUpdate"},
        "selector": {"matchLabels": labels},
        "template": {"metadata": metadata, "spec": pod},
    }
