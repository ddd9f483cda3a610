"""How many messages an operation takes in pieces, and how many are too many to simulate one by one. Pure."""

from __future__ import annotations

import numpy as np

from headway.cluster.model import Cluster
from headway.collectives.chunking import LEAST_BYTES, chunk_bytes_for, link_rate_Bps
from headway.collectives.plan import Collective, Plan
from headway.collectives.plan_book import PlanBook
from headway.errors import UsageError
from headway.lab.jobs import ELEMENT_BYTES, Job

MOST_MESSAGES = 20_000_000
"""Of one operation: ten minutes, and some gigabytes of memory for the pieces."""
HINT = "take --execution streams"


def message_count(plan: Plan, collective: Collective, size_bytes: int, chunk_bytes: int) -> int:
    """Of one operation, over all ranks."""
    pieces = np.maximum(1.0, np.ceil(plan.shares * size_bytes / chunk_bytes))
    return int(pieces.sum()) * (plan.size - 1) * (int(collective.reduces) + int(collective.spreads))


def check_count(count: int, where: str) -> None:
    """UsageError above `MOST_MESSAGES`; `where` says which operation."""
    if count > MOST_MESSAGES:
        what = f"one operation takes {count:,} messages in pieces; {MOST_MESSAGES:,} are the most"
        raise UsageError(what, where=where, hint=HINT)


def check_job(job: Job, cluster: Cluster) -> None:
    """UsageError naming job and phase where an operation's idle plan has too many messages."""
    book = PlanBook(cluster, "off", bitwise=False, pinned=job.plan)
    for index, phase in enumerate(job.loop):
        if phase.kind in ("compute", "send"):
            continue
        collective, size_bytes = Collective(phase.kind), phase.vector_bytes(cluster.world_size)
        if 2 * cluster.world_size * (size_bytes / LEAST_BYTES + cluster.world_size) < MOST_MESSAGES:
            continue  # by any plan
        plan = book.idle(collective, size_bytes, phase.root)
        chunk_bytes = chunk_bytes_for(plan, collective, size_bytes, ELEMENT_BYTES, link_rate_Bps(cluster))
        count = message_count(plan, collective, size_bytes, chunk_bytes)
        check_count(count, f"job {job.name}: loop.{index}.{phase.kind}")
