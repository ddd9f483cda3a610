"""Whether profiles are of the GPUs that a plan is for. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from headway.errors import UsageError
from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import ModelProfile
from headway.serving.engine.hardware import DEVICES


def check_devices(
    profiles: Mapping[str, ModelProfile], nodes: Sequence[Node], *, models: Iterable[str], where: str, nodes_where: str
) -> list[str]:
    """The models whose profiles do not say of which GPUs they are.

    Args:
        profiles: by model.
        nodes: the machines.
        models: those that are planned; others' profiles do not matter.
        where: how errors name the profiles.
        nodes_where: how errors name the nodes.

    Raises:
        UsageError: GPUs of several kinds, of another kind than a profile's, or of one that nothing knows.
    """
    used = sorted(set(models) & set(profiles))
    kinds = {node.device: node.name for node in nodes}
    if len(kinds) > 1:
        told = ", ".join(f"{device} on {name}" for device, name in sorted(kinds.items()))
        raise UsageError(
            f"has GPUs of several kinds: {told}", where=nodes_where, hint="make a plan for each kind, of its own nodes"
        )
    for device, name in kinds.items():
        others = [model for model in used if profiles[model].device not in ("", device)]
        if others:
            raise UsageError(
                f"{others[0]} was profiled on {profiles[others[0]].device}, and {name} has {device}",
                where=where,
                hint=f"headway profile --device {device} for {', '.join(others)}, or take other nodes",
            )
        if device not in DEVICES and not any(profiles[model].device for model in used):
            raise UsageError(
                f"{name} has {device!r}, which is none of {', '.join(DEVICES)}",
                where=nodes_where,
                hint="for other GPUs say which the profiles are of: headway profile --device",
            )
    return [model for model in used if not profiles[model].device]
