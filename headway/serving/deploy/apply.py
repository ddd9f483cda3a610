"""Makes a cluster what a plan's manifests say, by server-side apply with the official client. Blocking.

`difference` asks the API server what would change (dry run: it checks and fills in defaults, and stores nothing) and
`apply` does it. What carries the plan's labels and is no longer in it is deleted first: its GPUs are needed. What other
managers have set is never taken over: such a conflict is an error that names the field.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from headway.errors import HeadwayError, UsageError
from headway.serving.deploy.gateway_objects import gateway_name
from headway.serving.deploy.objects import GATEWAY_KINDS, KINDS, MANAGED, PLAN_LABEL, Manifest
from headway.serving.deploy.text import documents
from headway.serving.gateway.discovery.kubernetes_api import configure
from headway.serving.gateway.discovery.options import KubernetesOptions

MANAGER = "headway"
CALL_LIMIT_S = 30.0
"""For one call to the API server, seconds."""
_SERVERS_OWN = ("managedFields", "resourceVersion", "uid", "creationTimestamp", "generation", "selfLink")


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of one object.

    Attributes:
        kind, name: of it.
        action: "create", "change", "delete" or "keep".
        diff: lines of a unified diff; empty where nothing changes.
    """

    kind: str
    name: str
    action: str
    diff: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reach:
    """Which cluster, as kubectl would know it; empty: the current context, or the pod's own account."""

    kubeconfig: Path | None = None
    context: str = ""


class Cluster:
    """A namespace of a cluster.

    Attributes:
        namespace: its name.

    Args:
        reach: which cluster.
        namespace: empty: that of the context.

    Raises:
        UsageError: the client is not installed, or there is no usable kubeconfig.
    """

    def __init__(self, reach: Reach, namespace: str = "") -> None:
        try:
            from kubernetes import client
        except ModuleNotFoundError:
            raise UsageError(
                "applying a plan needs Kubernetes' client", hint="pip install 'headway[kubernetes]'"
            ) from None
        if reach.kubeconfig is not None and not reach.kubeconfig.is_file():
            raise UsageError(f"there is no file {reach.kubeconfig}", where="--kubeconfig")
        configuration = client.Configuration()
        options = KubernetesOptions(
            kind="kubernetes", service=MANAGER, namespace=namespace, kubeconfig=reach.kubeconfig, context=reach.context
        )
        try:
            self.namespace = configure(configuration, options)
        except UsageError as error:
            where = "--kubeconfig" if reach.kubeconfig is not None or not reach.context else "--context"
            raise UsageError(error.what, where=where, hint="--kubeconfig FILE, or run in a pod") from None
        configuration.retries = False
        self._api = client.ApiClient(configuration)
        dynamic: Any = import_module("kubernetes.dynamic")
        self._client = dynamic.DynamicClient(self._api, discoverer=lambda *_: None)
        self._resource = import_module("kubernetes.dynamic.resource").Resource

    def difference(self, manifests: Sequence[Manifest], plan: str) -> list[Change]:
        """What `apply` would do, as the server says.

        Raises:
            UsageError: an object is another plan's.
            HeadwayError: the server refuses, or cannot be asked.
        """
        self._check_owner(manifests, plan)
        changes = [Change(kind, name, "delete") for kind, name in self._left_over(manifests, plan)]
        for manifest in manifests:
            kind, name = manifest["kind"], manifest["metadata"]["name"]
            before = self._read(kind, name)
            after = self._apply(manifest, dry_run=True)
            lines = tuple(_diff(before, after))
            action = "create" if before is None else "change" if lines else "keep"
            changes.append(Change(kind, name, action, lines))
        return changes

    def apply(self, manifests: Sequence[Manifest], plan: str) -> Iterator[Change]:
        """Do it, and say of each object what was done.

        Raises:
            UsageError: an object is another plan's; nothing was done.
            HeadwayError: the server refuses; what was done stays.
        """
        self._check_owner(manifests, plan)
        for kind, name in self._left_over(manifests, plan):
            self._call(f"delete {kind} {name}", "delete", kind, name=name, propagation_policy="Foreground")
            yield Change(kind, name, "delete")
        for manifest in manifests:
            kind, name = manifest["kind"], manifest["metadata"]["name"]
            before = self._read(kind, name)
            lines = tuple(_diff(before, self._apply(manifest, dry_run=False)))
            yield Change(kind, name, "create" if before is None else "change" if lines else "keep", lines)

    def node_labels(self) -> dict[str, dict[str, str]]:
        """Labels of all nodes, by name. HeadwayError where they cannot be had."""
        listed = self._call("list nodes", "get", "Node", namespace=None) or {}
        metadata = [each["metadata"] for each in listed.get("items", ())]
        return {str(each["name"]): dict(each.get("labels") or {}) for each in metadata}

    def close(self) -> None:
        """Give the connections back."""
        self._api.rest_client.pool_manager.clear()

    def _left_over(self, manifests: Sequence[Manifest], plan: str) -> list[tuple[str, str]]:
        wanted = {(each["kind"], each["metadata"]["name"]) for each in manifests}
        selector = ",".join(f"{key}={value}" for key, value in {**MANAGED, PLAN_LABEL: plan}.items())

        def left(kinds: Iterable[str]) -> list[tuple[str, str]]:
            found = []
            for kind in kinds:
                listed = self._call(f"list {kind}s", "get", kind, label_selector=selector, missing_ok=True) or {}
                names = sorted(str(each["metadata"]["name"]) for each in listed.get("items", ()))
                found += [(kind, name) for name in names if (kind, name) not in wanted]
            return found

        found = left(kind for kind in reversed(KINDS) if kind not in GATEWAY_KINDS)
        gateway = ("Deployment", gateway_name(plan))
        if gateway in wanted or gateway in found:  # its Deployment goes last, so that what is left of it is found again
            return [*left(reversed(GATEWAY_KINDS)), *found]
        return found

    def _check_owner(self, manifests: Sequence[Manifest], plan: str) -> None:
        for manifest in manifests:
            kind, name = manifest["kind"], manifest["metadata"]["name"]
            there = self._read(kind, name) or {}
            owner = (there.get("metadata", {}).get("labels") or {}).get(PLAN_LABEL, plan)
            if owner != plan:
                raise UsageError(
                    f"{kind} {name} in {self.namespace} is of the plan {owner!r}, not of {plan!r}",
                    hint=f"--name {owner} to replace that plan, or another --namespace for this one",
                )

    def _read(self, kind: str, name: str) -> Manifest | None:
        return self._call(f"read {kind} {name}", "get", kind, name=name, missing_ok=True)

    def _apply(self, manifest: Manifest, *, dry_run: bool) -> Manifest:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        more: dict[str, Any] = {"dry_run": "All"} if dry_run else {}
        result = self._call(
            f"apply {kind} {name}", "server_side_apply", kind, body=manifest, name=name, field_manager=MANAGER, **more
        )
        assert result is not None  # nothing is missing that is applied
        return result

    def _call(self, what: str, verb: str, kind: str, *, missing_ok: bool = False, **arguments: Any) -> Manifest | None:
        """One call of the dynamic client; None where the object is missing and may be."""
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        version, plural = KINDS.get(kind, ("v1", "nodes"))
        group, _, number = version.rpartition("/")
        resource = self._resource(
            prefix="apis" if group else "api",
            group=group,
            api_version=number,
            kind=kind,
            namespaced=kind in KINDS,
            name=plural,
            client=self._client,
        )
        arguments = {"namespace": self.namespace, "_request_timeout": CALL_LIMIT_S, "serialize": False, **arguments}
        try:
            answer = getattr(self._client, verb)(resource, **arguments)
        except ApiException as error:
            if error.status == 404 and missing_ok:
                return None
            raise HeadwayError(f"cannot {what} in {self.namespace}: {_refusal(error, version)}") from None
        except (HTTPError, OSError) as error:
            raise HeadwayError(f"cannot {what} in {self.namespace}: {error}") from None
        try:
            result: Manifest = json.loads(answer.data)
        except ValueError:
            raise HeadwayError(f"cannot {what} in {self.namespace}: the answer is no JSON") from None
        return result


def _refusal(error: Any, version: str) -> str:
    body = error.body.decode(errors="replace") if isinstance(error.body, bytes) else str(error.body or "")
    try:
        message = str(yaml.safe_load(body)["message"])
    except (yaml.YAMLError, TypeError, KeyError):
        message = body[:200] or str(error.reason)
    if error.status == 404 and version.startswith("resource.k8s.io"):
        message += f" (the cluster may not know {version}: it came with Kubernetes 1.34; or share with --sharing mps)"
    return f"{error.status}: {message}"


def _diff(before: Manifest | None, after: Manifest) -> Iterator[str]:
    old = [] if before is None else _lines(before)
    yield from list(difflib.unified_diff(old, _lines(after), lineterm="", n=2))[2:]


def _lines(manifest: Manifest) -> list[str]:
    metadata = {key: value for key, value in manifest.get("metadata", {}).items() if key not in _SERVERS_OWN}
    shown = {key: value for key, value in manifest.items() if key != "status"} | {"metadata": metadata}
    return documents([shown], sort_keys=True).splitlines()
