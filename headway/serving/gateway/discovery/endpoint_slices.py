"""From the EndpointSlices of a Service to its replicas. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headway.serving.gateway.discovery.options import KubernetesOptions, spec_of
from headway.serving.gateway.discovery.source import Replicas
from headway.serving.replica import ReplicaSpec

Slice = Mapping[str, Any]
"""An EndpointSlice of discovery.k8s.io/v1 as JSON."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One ready endpoint.

    Attributes:
        name: of the pod; empty where the slice names none.
        address: IP address.
        node: the node that it runs on; empty where the slice names none.
        device: kind of accelerator, as the slice's label or annotation says; empty where it doesn't.
        port: where it listens; None where the slice does not say which of its ports is meant.
    """

    name: str
    address: str
    node: str
    device: str
    port: int | None


def endpoints(slices: Iterable[Slice], options: KubernetesOptions) -> list[Endpoint]:
    """The ready endpoints, one per pod: of a dual-stack pod the IPv4 one. In the order of the slices' names.

    An endpoint without a `ready` condition is ready: so the API defines it.
    """
    found: dict[str, Endpoint] = {}
    ordered = sorted(slices, key=lambda each: (each.get("addressType") != "IPv4", _metadata(each).get("name", "")))
    for each in ordered:
        if each.get("addressType") not in ("IPv4", "IPv6"):
            continue
        metadata = _metadata(each)
        labels = {**(metadata.get("annotations") or {}), **(metadata.get("labels") or {})}
        port = _port(each, options.port)
        for entry in each.get("endpoints") or ():
            addresses = entry.get("addresses") or ()
            if not addresses or (entry.get("conditions") or {}).get("ready") is False:
                continue
            target = entry.get("targetRef") or {}
            name = target.get("name", "") if target.get("kind", "Pod") == "Pod" else ""
            found.setdefault(
                name or addresses[0],
                Endpoint(
                    name=name,
                    address=addresses[0],
                    node=entry.get("nodeName") or "",
                    device=labels.get(options.device_key, ""),
                    port=port,
                ),
            )
    return list(found.values())


def replicas(found: Iterable[Endpoint], options: KubernetesOptions, node_devices: Mapping[str, str]) -> Replicas:
    """The replicas at some endpoints, sorted by name; without those of which no port is known.

    Args:
        found: the endpoints.
        options: what holds for all.
        node_devices: accelerator by node, for those that have none of their own.
    """
    specs: list[ReplicaSpec] = []
    for each in found:
        if each.port is not None:
            host = f"[{each.address}]" if ":" in each.address else each.address
            place = f"{host}:{each.port}"
            device = each.device or node_devices.get(each.node, "")
            specs.append(spec_of(each.name or place, f"{options.scheme}://{place}", options, device=device))
    return tuple(sorted(specs, key=lambda spec: spec.name))


def _metadata(each: Slice) -> Mapping[str, Any]:
    metadata: Mapping[str, Any] = each.get("metadata") or {}
    return metadata


def _port(each: Slice, wanted: int | str) -> int | None:
    if isinstance(wanted, int):
        return wanted
    ports = [p for p in each.get("ports") or () if p.get("protocol", "TCP") == "TCP" and p.get("port")]
    named = [p["port"] for p in ports if (p.get("name") or "") == (wanted or "http")]
    if named:
        return int(named[0])
    return int(ports[0]["port"]) if not wanted and len(ports) == 1 else None
