"""Nodes, their GPUs, and which of these are joined by a fast interconnect. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """A machine with GPUs of one kind.

    Attributes:
        name: unique.
        device: kind of GPU, a key of `headway.serving.engine.hardware.DEVICES`.
        domains: GPU numbers that are joined by a fast interconnect (NVLink, NVSwitch), each GPU in one domain; a
            tensor-parallel instance stays inside one.
    """

    name: str
    device: str
    domains: tuple[tuple[int, ...], ...]

    @property
    def gpus(self) -> int:
        """How many GPUs it has."""
        return sum(len(domain) for domain in self.domains)
