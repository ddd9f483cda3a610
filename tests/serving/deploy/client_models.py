"""Objects as the official client's typed models, which are made from Kubernetes' OpenAPI description, see them."""

from __future__ import annotations

from typing import Any

from kubernetes import client

from headway.serving.deploy.objects import Manifest

MODELS = {
    "Deployment": "V1Deployment",
    "Service": "V1Service",
    "ConfigMap": "V1ConfigMap",
    "ResourceClaim": "ResourceV1ResourceClaim",
    "ResourceClaimTemplate": "V1ResourceClaimTemplate",
    "ServiceAccount": "V1ServiceAccount",
    "Role": "V1Role",
    "RoleBinding": "V1RoleBinding",
}


def through_the_client(manifest: Manifest) -> Any:
    """The object read and written by the client: a field that it does not know is lost."""
    api: Any = client.ApiClient()
    known: Any = client
    model = getattr(known, MODELS[manifest["kind"]], None) or known.V1ResourceClaim  # its name in older clients
    return api.sanitize_for_serialization(model.from_dict(manifest))
