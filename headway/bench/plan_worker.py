"""One rank that runs any plan by the executor, without torch: `python -m headway.bench.plan_worker`.

Arguments: the coordinator's socket, rank, size, interface, a folder that all ranks reach. Every line from the
coordinator is an `Order`; the answer is when this rank began and ended each of its operations.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

from headway.bench.rank_lines import RankLine
from headway.collectives.executor import PipelinedExecutor
from headway.collectives.operation import Operation, OperationOutcome
from headway.collectives.plan import Collective
from headway.collectives.plan_codec import decode
from headway.collectives.reducers import NumpyReducer, ReduceKind
from headway.errors import DeadlineError
from headway.transport.options import TcpOptions
from headway.transport.tcp import TcpTransport

GROUP = "plans"
LIMIT_S = 60.0
_POLL_S = 0.01
_ELEMENT_BYTES = 4


class Order(BaseModel):
    """Run a plan.

    Attributes:
        plan: encoded.
        collective: what is computed.
        size_bytes: of the whole vector, a multiple of 4 times the number of ranks.
        chunk_bytes: piece size.
        at_s: when to begin, on time.monotonic(), which all of a machine's namespaces share.
    """

    model_config = ConfigDict(frozen=True)

    plan: str
    collective: Collective
    size_bytes: int
    chunk_bytes: int
    at_s: float


class FileRendezvous:
    """A meeting in a folder.

    Args:
        folder: that all ranks reach.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, key: str, value: bytes) -> None:
        """See `Rendezvous`."""
        path = self._path(key)
        draft = path.with_suffix(".draft")
        draft.write_bytes(value)
        draft.replace(path)

    def get(self, key: str, timeout_s: float) -> bytes:
        """See `Rendezvous`."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                return self._path(key).read_bytes()
            except FileNotFoundError:
                if time.monotonic() > deadline_s:
                    raise DeadlineError(f"nobody put {key} within {timeout_s:g} s") from None
                time.sleep(_POLL_S)

    def _path(self, key: str) -> Path:
        return self._folder / key.replace("/", "-")


def main(socket_path: str, rank: int, size: int, interface: str, folder: str) -> None:
    """Carry out orders until the coordinator hangs up."""
    options = TcpOptions(interface=interface, connect_timeout_s=LIMIT_S)
    transport = TcpTransport(
        rank=rank, size=size, rendezvous=FileRendezvous(Path(folder)), options=options, group=GROUP
    )
    executor = PipelinedExecutor(transport)
    line = RankLine(socket_path, group=GROUP, rank=rank)
    reducer = NumpyReducer(ReduceKind.SUM, np.float32, size=size)
    line.send("ready")
    number = 0
    while text := line.receive():
        order = Order.model_validate_json(text)
        vector = np.ones(order.size_bytes // _ELEMENT_BYTES, dtype=np.float32)
        operation = Operation(
            number=number, collective=order.collective, plan=decode(order.plan), buffer=vector.data.cast("B"),
            element_bytes=_ELEMENT_BYTES, reducer=reducer if order.collective.reduces else None, in_rank_order=False,
            chunk_bytes=order.chunk_bytes, label=f"operation #{number}", deadline_s=order.at_s + LIMIT_S,
        )  # fmt: skip
        number += 1
        time.sleep(max(0.0, order.at_s - time.monotonic()))
        outcome = _run(executor, operation)
        if outcome.error is not None:
            raise outcome.error
        if order.collective is Collective.ALL_REDUCE and not np.all(vector == size):
            raise ArithmeticError(f"operation #{number - 1}: a sum is wrong")
        line.send(json.dumps([outcome.started_s, outcome.ended_s]))
    transport.close()


def _run(executor: PipelinedExecutor, operation: Operation) -> OperationOutcome:
    ended = threading.Event()
    outcomes: list[OperationOutcome] = []

    def done(outcome: OperationOutcome) -> None:
        outcomes.append(outcome)
        ended.set()

    executor.start(operation, done)
    ended.wait()
    return outcomes[0]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5])
