"""The objects of Kubernetes that a plan is made of: their kinds, and the labels by which they are found again. Pure."""

from __future__ import annotations

from typing import Any

MANAGED = {"app.kubernetes.io/managed-by": "headway"}
PLAN_LABEL = "headway.dev/plan"
KINDS: dict[str, tuple[str, str]] = {
    "ServiceAccount": ("v1", "serviceaccounts"),
    "Role": ("rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("rbac.authorization.k8s.io/v1", "rolebindings"),
    "ConfigMap": ("v1", "configmaps"),
    "ResourceClaim": ("resource.k8s.io/v1", "resourceclaims"),
    "ResourceClaimTemplate": ("resource.k8s.io/v1", "resourceclaimtemplates"),
    "Service": ("v1", "services"),
    "Deployment": ("apps/v1", "deployments"),
}
"""Kinds that plans are made of, with their API's version and plural, in the order in which they are made."""
GATEWAY_KINDS = ("ServiceAccount", "Role", "RoleBinding", "ConfigMap")
"""Those that only a gateway has. Accounts that may change Deployments often may not even list Roles."""

Manifest = dict[str, Any]


def made(kind: str, name: str, *, namespace: str, plan: str, labels: dict[str, str], **body: Any) -> Manifest:
    """One object, with the labels of its plan. `body`: what it has beside its metadata."""
    metadata = {"name": name, "namespace": namespace, "labels": plan_labels(plan, labels)}
    return {"apiVersion": KINDS[kind][0], "kind": kind, "metadata": metadata, **body}


def plan_labels(plan: str, labels: dict[str, str]) -> dict[str, str]:
    """Of an object or a pod of a plan."""
    return {**MANAGED, PLAN_LABEL: plan, **labels}
