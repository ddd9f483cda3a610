"""What every source of replicas is."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from headway.serving.replica import ReplicaSpec

Replicas = tuple[ReplicaSpec, ...]
"""The whole set, no two of one name."""


class Source(Protocol):
    """Knows which replicas there are.

    Attributes:
        name: for log lines and errors: `file replicas.yaml`, `dns engines.svc:8000`.
    """

    name: str

    def watch(self) -> AsyncGenerator[Replicas, None]:
        """The whole set of replicas: once at first, as soon as it is known, and then each time that it has changed.

        A source that stops answering keeps what it knew, for as long as its own rules say. It says so once, in the log,
        and goes on asking. `aclose()`, or a cancelled task, ends it and frees what it holds within a second or so.
        Never returns by itself, so that a set which cannot change is waited on like any other.
        """
        ...
