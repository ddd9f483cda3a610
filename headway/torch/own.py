"""The collectives that run on the engine: which calls it takes, and how their tensors become one vector."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from torch import Tensor
from torch.distributed import ReduceOp

from headway.collectives.operation import OperationOutcome, Reducer
from headway.collectives.plan import Collective
from headway.torch import tensors as layout
from headway.torch.completion import CompletionPool
from headway.torch.engine import Engine
from headway.torch.reducers import in_words, reducer_for
from headway.torch.tensors import Staged, is_plain
from headway.torch.work import CollectiveWork, JoinedWork

FLUSH_S = 30.0
"""How long leaving a group waits for operations that nobody waited for."""


class OwnCollectives:
    """Each method starts a collective and returns its work, or None for a call that is gloo's to do or to refuse.

    Whether it is None depends only on what is the same on every rank (types, sizes, the operation), so that all
    ranks of a correct program take the same way.

    Args:
        engine: of this group; None in a group of one rank, where gloo does all.
        group: name, for errors.
        rank: this process's rank in the group.
        ranks: rank in the job of each rank in the group.
        timeout: of an operation that brings none of its own.
    """

    def __init__(
        self, engine: Engine | None, *, group: str, rank: int, ranks: Sequence[int], timeout: timedelta
    ) -> None:
        self.timeout = timeout
        self._engine = engine
        self._group = group
        self._rank = rank
        self._ranks = tuple(ranks)
        self._size = len(ranks)
        self._pool = CompletionPool(f"headway-completion-{group}")
        self._pending: set[CollectiveWork] = set()
        self.on_failure: Callable[[], None] | None = None
        """Called after an operation has failed, on a thread of the pool."""

    def all_reduce(self, tensors: list[Tensor], op: ReduceOp, timeout: timedelta) -> CollectiveWork | None:
        """Of one tensor. Several are one sum over all tensors of all ranks in torch's old meaning: gloo's."""
        if len(tensors) != 1 or not self._takes(tensors):
            return None
        return self._sum(Collective.ALL_REDUCE, "all_reduce", tensors, op, 0, timeout)

    def all_reduce_coalesced(self, tensors: list[Tensor], op: ReduceOp, timeout: timedelta) -> CollectiveWork | None:
        """Of several tensors of one type, packed into one vector."""
        if not tensors or not self._takes(tensors):
            return None
        return self._sum(Collective.ALL_REDUCE, "all_reduce_coalesced", tensors, op, 0, timeout)

    def reduce(self, tensors: list[Tensor], op: ReduceOp, root: int, timeout: timedelta) -> CollectiveWork | None:
        """To rank `root`. As with gloo, the tensors of the other ranks hold no defined value afterwards."""
        if len(tensors) != 1 or not 0 <= root < self._size or not self._takes(tensors):
            return None
        return self._sum(Collective.REDUCE, "reduce", tensors, op, root, timeout)

    def broadcast(self, tensors: list[Tensor], root: int, timeout: timedelta) -> CollectiveWork | None:
        """From rank `root`."""
        if len(tensors) != 1 or not 0 <= root < self._size or not self._takes(tensors):
            return None
        staged = layout.in_place(tensors[0])
        return self._start(Collective.BROADCAST, "broadcast", staged, tensors, None, root, timeout)

    def all_gather(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], timeout: timedelta
    ) -> CollectiveWork | None:
        """Into a list of tensors, one of each rank, all alike."""
        if len(outputs) != 1 or len(inputs) != 1 or len(outputs[0]) != self._size:
            return None
        own = inputs[0]
        if not self._takes([own, *outputs[0]]) or any(output.shape != own.shape for output in outputs[0]):
            return None
        staged = layout.gathered(outputs[0], own, self._rank)
        return self._start(Collective.ALL_GATHER, "all_gather", staged, outputs[0], None, 0, timeout)

    def all_gather_single(
        self, outputs: list[Tensor], inputs: list[Tensor], timeout: timedelta, *, name: str = "all_gather_into_tensor"
    ) -> CollectiveWork | JoinedWork | None:
        """Each input of all ranks into the output at the same place in the list."""
        pairs = list(zip(outputs, inputs, strict=False))
        if len(outputs) != len(inputs) or not all(
            self._takes([output, own]) and output.numel() == self._size * own.numel() for output, own in pairs
        ):
            return None
        works = [
            self._start(
                Collective.ALL_GATHER, name, layout.gathered_flat(output, own, self._rank), [output], None, 0, timeout
            )
            for output, own in pairs
        ]
        return works[0] if len(works) == 1 else JoinedWork(works)

    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], op: ReduceOp, timeout: timedelta
    ) -> CollectiveWork | None:
        """Of a list of tensors, one for each rank, all alike; lists of unlike sizes are gloo's."""
        if len(outputs) != 1 or len(inputs) != 1 or len(inputs[0]) != self._size:
            return None
        output = outputs[0]
        if not self._takes([output, *inputs[0]]) or any(block.shape != output.shape for block in inputs[0]):
            return None
        reducer = reducer_for(output.dtype, op, size=self._size)
        if reducer is None:
            return None
        staged = layout.scattered(output, inputs[0], self._rank)
        return self._start(Collective.REDUCE_SCATTER, "reduce_scatter", staged, outputs, reducer, 0, timeout)

    def reduce_scatter_single(
        self, outputs: list[Tensor], inputs: list[Tensor], op: ReduceOp, timeout: timedelta
    ) -> CollectiveWork | JoinedWork | None:
        """Each input, which holds the blocks of all ranks, into the output at the same place in the list."""
        pairs = list(zip(outputs, inputs, strict=False))
        if len(outputs) != len(inputs) or not all(
            self._takes([output, whole]) and whole.numel() == self._size * output.numel() for output, whole in pairs
        ):
            return None
        reducers = [reducer_for(output.dtype, op, size=self._size) for output in outputs]
        if None in reducers:
            return None
        works = [
            self._start(
                Collective.REDUCE_SCATTER,
                "reduce_scatter_tensor",
                layout.scattered(output, [whole], self._rank),
                [output],
                reducer,
                0,
                timeout,
            )
            for (output, whole), reducer in zip(pairs, reducers, strict=True)
        ]
        return works[0] if len(works) == 1 else JoinedWork(works)

    def pending(self) -> list[CollectiveWork]:
        """Works that are neither complete nor failed."""
        return list(self._pending)

    def abort(self, reason: str) -> None:
        """Fail everything under way, on every rank, and release what the engine holds. Idempotent."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.abort(reason)
            self._wait_for_pending(limit_s=1.0)
            engine.close()
        self._pool.close()

    def close(self) -> None:
        """Let what is under way end, then release what the engine holds. Idempotent."""
        engine, self._engine = self._engine, None
        if engine is not None:
            if not self._wait_for_pending(limit_s=FLUSH_S):
                engine.abort("it left the group while operations were under way")
                self._wait_for_pending(limit_s=1.0)
            engine.close()
        self._pool.close()

    def _wait_for_pending(self, *, limit_s: float) -> bool:
        deadline_s = time.monotonic() + limit_s
        return all(work.settles(max(0.0, deadline_s - time.monotonic())) for work in self.pending())

    def _settled(self, work: CollectiveWork) -> None:
        self._pending.discard(work)
        if self.on_failure is not None and not work.is_success():
            self._pool.submit(self.on_failure)

    def _takes(self, tensors: Sequence[Tensor]) -> bool:
        if self._engine is None:
            return False
        dtype = tensors[0].dtype
        return all(is_plain(tensor) and tensor.dtype is dtype for tensor in tensors)

    def _sum(
        self, collective: Collective, name: str, tensors: list[Tensor], op: ReduceOp, root: int, timeout: timedelta
    ) -> CollectiveWork | None:
        reducer = reducer_for(tensors[0].dtype, op, size=self._size)
        if reducer is None:
            return None
        staged = layout.in_place(tensors[0]) if len(tensors) == 1 else layout.in_place_of_many(tensors)
        return self._start(collective, name, staged, tensors, reducer, root, timeout)

    def _start(
        self,
        collective: Collective,
        name: str,
        staged: Staged,
        value: list[Tensor],
        reducer: Reducer | None,
        root: int,
        timeout: timedelta,
    ) -> CollectiveWork:
        limit_s = timeout.total_seconds()
        if limit_s <= 0:
            limit_s = self.timeout.total_seconds()
        work = CollectiveWork(
            label=f"{name} of group {self._group}",
            tensors=value,
            after=staged.after,
            limit_s=limit_s,
            pool=self._pool,
            global_ranks=self._ranks,
            settled=self._settled,
        )
        if not len(staged.buffer):
            now_s = time.monotonic()
            work.finished(OperationOutcome(now_s, now_s, None))
            return work
        if self._engine is None:
            raise RuntimeError(f"{name}: group {self._group} was shut down")
        self._pending.add(work)
        try:
            self._engine.run(
                collective,
                staged.buffer,
                element_bytes=value[0].itemsize,
                reducer=reducer,
                root=root,
                timeout_s=limit_s,
                done=work.finished,
                what=in_words(value[0].dtype, reducer),
            )
        except BaseException:
            self._pending.discard(work)
            raise
        return work
