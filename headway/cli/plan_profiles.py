"""What the verbs of `headway plan` ask of profiles and nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from headway.cli.shown import print_line
from headway.errors import UsageError
from headway.serving.allocation.devices import check_devices
from headway.serving.allocation.topology_types import Node
from headway.serving.allocation.types import Demand, ModelProfile
from headway.serving.engine import hardware


def check_profiles(
    known: Mapping[str, ModelProfile], there: Sequence[Node], demands: Sequence[Demand], *, profiles: Path, nodes: Path
) -> None:
    """Say which profiles name no GPU. UsageError: they are not of the nodes' GPUs."""
    models = {use.model for demand in demands for use in demand.aggregate.uses}
    silent = check_devices(known, there, models=models, where=str(profiles), nodes_where=str(nodes))
    if silent:
        print_line(f"note: {profiles} does not say of which GPUs the curves of {', '.join(silent)} are")


def gpu_bytes(nodes: Sequence[Node]) -> int | None:
    """Memory of each GPU; None: not known of all."""
    sizes = [hardware.DEVICES[node.device].memory_bytes for node in nodes if node.device in hardware.DEVICES]
    return min(sizes) if len(sizes) == len(nodes) else None


def workflows_of(plan: Path, *, by: str) -> Path:
    """Where the workflows are that a plan was made for. UsageError: the plan's path, which `by` gave, names no file."""
    if not plan.name:
        raise UsageError("names no file", where=by, hint="write for example plan.yaml")
    return plan.with_name(f"{plan.stem}.workflows{plan.suffix}")
