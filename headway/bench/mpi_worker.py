"""One rank of an MPI peer: `python -m headway.bench.mpi_worker SOCKET FAMILY`, started by mpirun or mpiexec.

mpi4py binds to the MPI library that `MPI4PY_MPIABI` and the library path name (see `families`).
"""

from __future__ import annotations

import sys

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

from headway.bench.control import connect
from headway.bench.data import Cell
from headway.bench.worker import Station, serve
from headway.collectives.plan import Collective
from headway.errors import HeadwayError

_NUMPY = {
    "int8": np.int8, "uint8": np.uint8, "int32": np.int32, "int64": np.int64, "float": np.float32, "double": np.float64,
}  # fmt: skip
_OPS = {"sum": MPI.SUM, "prod": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX}


class MpiPeer:
    """MPI_Allreduce and its relatives on numpy buffers, out of place."""

    def __init__(self) -> None:
        self._comm = MPI.COMM_WORLD
        self.rank: int = self._comm.Get_rank()
        self._cell: Cell | None = None
        self._op: MPI.Op = MPI.SUM
        self._source: NDArray[np.generic] = np.empty(0, np.float32)
        self._input = self._source
        self._output = self._source

    def prepare(self, cell: Cell) -> None:
        """Make buffers for `cell`."""
        kind = _NUMPY.get(cell.kind.name)
        if kind is None:
            raise HeadwayError(f"MPI knows no {cell.kind.name}")
        if cell.collective.reduces and cell.redop not in _OPS:
            raise HeadwayError(f"MPI has no reduction {cell.redop!r}")
        self._cell = cell
        self._op = _OPS.get(cell.redop, MPI.SUM)
        inputs = cell.count * (cell.ranks if cell.collective is Collective.REDUCE_SCATTER else 1)
        outputs = cell.count * (cell.ranks if cell.collective is Collective.ALL_GATHER else 1)
        self._source = np.resize(cell.contribution(self.rank).astype(kind), inputs)
        self._input = self._source.copy()
        self._output = np.zeros(outputs, kind)

    def reset(self) -> None:
        """Only a broadcast overwrites its input."""
        if self._cell is not None and self._cell.collective is Collective.BROADCAST:
            self._input[...] = self._source

    def barrier(self) -> None:
        """MPI_Barrier."""
        self._comm.Barrier()

    def run(self) -> None:
        """The collective."""
        cell = self._cell
        if cell is None:
            raise HeadwayError("nothing prepared")
        if cell.collective is Collective.ALL_REDUCE:
            self._comm.Allreduce(self._input, self._output, self._op)
        elif cell.collective is Collective.REDUCE_SCATTER:
            self._comm.Reduce_scatter_block(self._input, self._output, self._op)
        elif cell.collective is Collective.ALL_GATHER:
            self._comm.Allgather(self._input, self._output)
        elif cell.collective is Collective.REDUCE:
            self._comm.Reduce(self._input, self._output, self._op, root=cell.root)
        else:
            self._comm.Bcast(self._input, root=cell.root)

    def result(self) -> NDArray[np.generic]:
        """The output buffer; a broadcast's is its input."""
        if self._cell is not None and self._cell.collective is Collective.BROADCAST:
            return self._input
        return self._output

    def plan(self) -> str:
        """MPI does not say which algorithm it took."""
        return ""


def main(socket_path: str, family: str) -> None:
    """Serve the coordinator until it hangs up."""
    peer = MpiPeer()
    line = connect(socket_path, family=family, rank=peer.rank)
    serve(Station(lambda backend: peer), rank=peer.rank, receive=line.receive, send=line.send)
    line.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
