"""Manifests as `plan manifests` wrote them, to be applied as they are. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import yaml

from headway.errors import UsageError
from headway.serving.deploy.objects import KINDS, MANAGED, PLAN_LABEL, Manifest

_HINT = "headway plan manifests writes such a file"


@dataclass(frozen=True, slots=True)
class Written:
    """What a file has.

    Attributes:
        manifests: in its order.
        plan: its name, from the labels.
        namespace: of all objects.
    """

    manifests: tuple[Manifest, ...]
    plan: str
    namespace: str


def read_manifests(text: str, *, where: str) -> Written:
    """The objects in a file's text. UsageError where they are not all those of one plan in one namespace."""
    try:
        found = [each for each in yaml.safe_load_all(text) if each is not None]
    except yaml.YAMLError as error:
        raise UsageError(" ".join(str(error).split()), where=where) from None
    manifests = []
    places = set()
    for number, each in enumerate(found, start=1):
        at = f"{where}: document {number}"
        metadata = each.get("metadata") if isinstance(each, dict) else None
        labels = metadata.get("labels") if isinstance(metadata, dict) else None
        if not isinstance(metadata, dict) or not isinstance(labels, dict):
            raise UsageError("is no object with labels", where=at, hint=_HINT)
        kind, name, plan, namespace = (
            *(each.get("kind"), metadata.get("name")),
            *(labels.get(PLAN_LABEL), metadata.get("namespace")),
        )
        if kind not in KINDS or each.get("apiVersion") != KINDS[kind][0]:
            raise UsageError(f"is a {kind} of {each.get('apiVersion')}, which no plan has", where=at, hint=_HINT)
        if not all(isinstance(text, str) and text for text in (name, plan, namespace)):
            raise UsageError(f"has no name, no namespace or no label {PLAN_LABEL}", where=at, hint=_HINT)
        if any(labels.get(key) != value for key, value in MANAGED.items()):
            raise UsageError("does not carry the labels of what headway manages", where=at, hint=_HINT)
        places.add((str(plan), str(namespace)))
        manifests.append(each)
    if len(places) != 1:
        told = ", ".join(f"{plan} in {namespace}" for plan, namespace in sorted(places)) or "none"
        raise UsageError(f"has objects of not just one plan in one namespace: {told}", where=where, hint=_HINT)
    ((plan, namespace),) = places
    return Written(tuple(manifests), plan, namespace)
