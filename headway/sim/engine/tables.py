"""The arrays that hold a network's flows, and how they grow. Each is one array of records, for compiled code.

A *queue* is the flows of one class on one link; a link's queues are chained from the class that is served first. A
*use* is one flow on one of its links, and chained to the other uses of its queue. Chains hold indices, and NONE at the
end.

Some columns are lists that merely share a table's length: row i holds the list's item i, and says nothing of flow or
queue i. They are marked below; `State` counts their items.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Records = npt.NDArray[np.void]

NONE = -1
POPPED = -2
"""A flow's place in the heap of due times: none, and taken off because it is due."""


def _code() -> str:
    """Names the code that works on the tables.

    Numba keeps a compiled function until that function's own file changes, though it holds what was compiled of other
    files too. As part of a type that all these functions take, the name makes it compile them again.
    """
    here = Path(__file__)
    files = (here, *(here.with_name(name) for name in ("due.py", "progressive.py", "maxmin.py", "flows.py")))
    return f"code_{zlib.crc32(b''.join(file.read_bytes() for file in files)):08x}"


FLOW = np.dtype(
    [
        ("weight", "f8"),
        ("cap_Bps", "f8"),
        ("level", "i8"),  # its class; 0 is served first
        ("size_bytes", "f8"),
        ("mark_bytes", "f8"),  # somebody waits for so many to have left
        ("rate_Bps", "f8"),
        ("since_s", "f8"),  # when the rate began
        ("sent_bytes", "f8"),  # until then
        ("due_s", "f8"),  # when the next mark or the end is reached
        ("number", "i8"),  # order of starting
        ("hops", "i8"),
        ("bound", "i8"),  # the queue that is its bottleneck, or NONE: its cap
        ("place", "i8"),  # in the heap
        ("pending", "?"),  # must be solved
        ("listed", "?"),  # the row is in the list `changed`, maybe since an earlier flow
        ("chosen", "?"),  # rate being solved
        ("joins", "?"),
        ("next_Bps", "f8"),
        ("next_bound", "i8"),
        ("next_done", "?"),
        ("heap", "i8"),  # list: flows, as a heap by due_s
        ("free", "i8"),  # list: unused rows
        ("changed", "i8"),  # list: flows that are new or have another weight or cap
        ("choice", "i8"),  # list: flows whose rates are being solved
        ("joining", "i8"),  # list: flows that will be
        ("ready", "i8"),  # list: flows that are due
        (_code(), "?"),  # says nothing
    ],
    align=True,
)
USE = np.dtype(
    [
        ("flow", "i8"),
        ("queue", "i8"),
        ("next", "i8"),
        ("previous", "i8"),
        ("next_chosen", "i8"),
    ],
    align=True,
)
QUEUE = np.dtype(
    [
        ("link", "i8"),  # NONE: unused row
        ("level", "i8"),
        ("next", "i8"),  # the link's next class
        ("first", "i8"),  # use
        ("count", "i8"),
        ("bound", "i8"),  # flows whose bottleneck it is
        ("used_Bps", "f8"),
        ("changes", "i8"),  # to used_Bps since it was last summed
        ("available_Bps", "f8"),  # what the classes before leave
        ("dirty", "i8"),  # CLEAN, or why it is in the list
        ("seen", "?"),  # while solving: a chosen flow is on it
        ("first_chosen", "i8"),  # use
        ("chosen", "i8"),
        ("outside_Bps", "f8"),  # what flows that are not chosen take
        ("outside_bound", "i8"),
        ("left_Bps", "f8"),  # while filling
        ("open", "i8"),
        ("open_weight", "f8"),
        ("counted_weight", "f8"),
        ("free", "i8"),  # list: unused rows
        ("changed", "i8"),  # list: dirty queues
        ("look", "i8"),  # list: queues seen
        ("heap", "i8"),  # list: queues, as a heap by heap_level
        ("heap_level", "f8"),
    ],
    align=True,
)
LINK = np.dtype([("capacity_Bps", "f8"), ("carried_bytes", "f8"), ("first", "i8")], align=True)
STATE = np.dtype(
    [
        ("flows", "i8"),  # that run
        ("started", "i8"),
        ("free_flows", "i8"),
        ("free_queues", "i8"),
        ("heap", "i8"),
        ("changed_flows", "i8"),
        ("changed_queues", "i8"),
        ("choice", "i8"),
        ("look", "i8"),
        ("solved", "i8"),  # rates solved so far, over all solves
    ],
    align=True,
)


def no_flows(rows: int) -> Records:
    """A table of unused flows."""
    flows = np.zeros(rows, dtype=FLOW)
    flows["free"] = np.arange(rows - 1, -1, -1)
    return flows


def no_queues(rows: int) -> Records:
    """A table of unused queues."""
    queues = np.zeros(rows, dtype=QUEUE)
    queues["link"] = NONE
    queues["free"] = np.arange(rows - 1, -1, -1)
    return queues


@dataclass
class Tables:
    """All of a network's arrays.

    Attributes:
        flows: rows FLOW. uses: rows USE, `width` for each flow. queues: rows QUEUE. links: rows LINK.
        state: one row STATE.
        width: most links of a route so far.
    """

    flows: Records
    uses: Records
    queues: Records
    links: Records
    state: Records
    width: int

    @classmethod
    def of(cls, capacities_Bps: list[float], *, flows: int = 256, width: int = 2) -> Tables:
        """Without flows."""
        links = np.zeros(len(capacities_Bps), dtype=LINK)
        links["capacity_Bps"], links["first"] = capacities_Bps, NONE
        state = np.zeros(1, dtype=STATE)
        state["free_flows"] = state["free_queues"] = flows
        uses = np.zeros(flows * width, dtype=USE)
        return cls(no_flows(flows), uses, no_queues(flows), links, state, width)

    def more_flows(self) -> None:
        """Twice as many rows of flows. Called when none is free."""
        old = len(self.flows)
        self.flows = np.concatenate((self.flows, no_flows(old)))
        self.uses = np.concatenate((self.uses, np.zeros(old * self.width, dtype=USE)))
        self.flows["free"][:old] = np.arange(2 * old - 1, old - 1, -1)
        self.state["free_flows"] = old

    def more_queues(self) -> None:
        """Twice as many rows of queues."""
        old, free = len(self.queues), int(self.state["free_queues"][0])
        self.queues = np.concatenate((self.queues, no_queues(old)))
        self.queues["free"][free : free + old] = np.arange(2 * old - 1, old - 1, -1)
        self.state["free_queues"] = free + old

    def wider(self, width: int) -> None:
        """Rows for routes of `width` links."""
        wide = np.zeros((len(self.flows), width), dtype=USE)
        wide[:, : self.width] = self.uses.reshape(-1, self.width)
        self.uses = wide.reshape(-1)
        for table, columns in ((self.uses, ("next", "previous")), (self.queues, ("first",))):
            for column in columns:
                use = table[column]
                table[column] = np.where(use == NONE, NONE, use // self.width * width + use % self.width)
        self.width = width
