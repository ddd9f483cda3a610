"""torch.distributed as a peer: gloo, headway, or any other backend for CPU tensors that torch knows."""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from headway.bench.data import Cell
from headway.bench.journal_tail import JournalTail
from headway.collectives.plan import Collective
from headway.decide.journal import OperationRecord
from headway.errors import HeadwayError

_TORCH = {
    "int8": torch.int8, "uint8": torch.uint8, "int32": torch.int32, "int64": torch.int64, "half": torch.float16,
    "bfloat16": torch.bfloat16, "float": torch.float32, "double": torch.float64,
}  # fmt: skip
_OPS = {
    "sum": dist.ReduceOp.SUM, "prod": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX,
    "avg": dist.ReduceOp.AVG,
}  # fmt: skip


class TorchPeer:
    """One process group of one backend. Every rank must make its peers in the same order.

    Args:
        backend: `gloo`, `headway` or `headway:POLICY`; the policy, and the file of the journal, go into the
            environment, where the backend reads its settings when the group is made.
        journal: path of the journal of a headway group; empty for none.
        timeout_s: limit of each operation.
    """

    def __init__(self, backend: str, *, journal: str = "", timeout_s: float) -> None:
        name, _, policy = backend.partition(":")
        if name == "headway":
            os.environ["HEADWAY_POLICY"] = policy or "packing"
            os.environ["HEADWAY_JOURNAL"] = journal
        group = dist.new_group(backend=name, timeout=datetime.timedelta(seconds=timeout_s))
        if group is None:
            raise HeadwayError(f"torch made no group for backend {backend}")
        self._group: dist.ProcessGroup = group
        self._tail = JournalTail(Path(journal)) if name == "headway" and journal else None
        self._plan = ""
        self.rank = dist.get_rank()
        self._cell: Cell | None = None
        self._source = torch.empty(0)
        self._input = torch.empty(0)
        self._output = torch.empty(0)

    def prepare(self, cell: Cell) -> None:
        """Make buffers for `cell`."""
        self._cell = cell
        kind = _TORCH[cell.kind.name]
        inputs = cell.count * (cell.ranks if cell.collective is Collective.REDUCE_SCATTER else 1)
        outputs = cell.count * (cell.ranks if cell.collective is Collective.ALL_GATHER else 1)
        period = torch.from_numpy(cell.contribution(self.rank)).to(kind)
        repeats = -(-inputs // len(period)) if inputs else 0
        self._source = period.repeat(max(1, repeats))[:inputs].contiguous()
        self._input = self._source.clone()
        separate = cell.collective in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
        self._output = torch.zeros(outputs, dtype=kind) if separate else self._input

    def reset(self) -> None:
        """torch's collectives work in place: put the input back."""
        self._input.copy_(self._source)

    def barrier(self) -> None:
        """On the default group, so that the measured one sees nothing but its own operations."""
        dist.barrier()

    def run(self) -> None:
        """The collective."""
        cell = self._cell
        if cell is None:
            raise HeadwayError("nothing prepared")
        op = _OPS.get(cell.redop, dist.ReduceOp.SUM)
        if cell.collective is Collective.ALL_REDUCE:
            dist.all_reduce(self._input, op=op, group=self._group)
        elif cell.collective is Collective.REDUCE_SCATTER:
            dist.reduce_scatter_single(self._output, self._input, op=op, group=self._group)
        elif cell.collective is Collective.ALL_GATHER:
            dist.all_gather_single(self._output, self._input, group=self._group)
        elif cell.collective is Collective.REDUCE:
            dist.reduce(self._input, dst=cell.root, op=op, group=self._group)
        else:
            dist.broadcast(self._input, src=cell.root, group=self._group)

    def result(self) -> NDArray[np.generic]:
        """The output as numpy; half and bfloat16 widen to float, which changes no value."""
        tensor = self._output
        if tensor.dtype in (torch.float16, torch.bfloat16):
            tensor = tensor.float()
        return np.asarray(tensor.numpy())

    def plan(self) -> str:
        """The plan of the last operation in the headway group's journal; "" for others."""
        for record in self._tail.new_records() if self._tail is not None else ():
            if isinstance(record, OperationRecord):
                self._plan = record.plan
        return self._plan


def journal_path(folder: str, backend: str) -> str:
    """File of a headway group's journal; only rank 0 writes one, and an empty folder means none."""
    return str(Path(folder) / f"{backend.replace(':', '-')}.jsonl") if folder and dist.get_rank() == 0 else ""
