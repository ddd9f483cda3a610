"""The last operations of this process, in the form that PyTorch's flight recorder dumps and its analyser reads.

`torchfrtrace DIR` (torch.distributed.flight_recorder.fr_trace) matches the dumps of all ranks and names the rank that
missed a collective, called another one, or called it with another size. Three things differ from a dump of NCCL's,
because the analyser knows no other way to say them:

- Operations are named "gloo:...": it accepts the names of torch's own backends only.
- Each direction between two ranks is a group of its own, "GROUP A->B": sends and receives are then matched with each
  other, and not taken for collectives that the rest of the group missed.
- Lists of equal tensors of an all-gather or a reduce-scatter are written as the one tensor that they make up.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import torch

VERSION = "2.10"  # of the dump's format, as torch 2.13 writes it
CAPACITY = 2000  # torch's default for TORCH_FR_BUFFER_SIZE
MOST_FRAMES = 16

KINDS = frozenset(
    {
        "all_gather",
        "all_gather_into_tensor_coalesced",
        "all_gather_single",
        "all_reduce",
        "all_to_all",
        "all_to_all_single",
        "allreduce_coalesced",
        "barrier",
        "broadcast",
        "gather",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_single",
        "reduce_scatter_tensor_coalesced",
        "scatter",
    }
)
POINT_TO_POINT = frozenset({"send", "recv"})

_DTYPES = {
    torch.bool: "Bool",
    torch.uint8: "Byte",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.float32: "Float",
    torch.float64: "Double",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}

Sizes = Sequence[Sequence[int]]


@dataclass(slots=True)
class _Entry:
    number: int
    group: str
    ranks: tuple[int, ...]
    kind: str
    sequence: int
    operation: int
    point_to_point: bool
    input_sizes: list[list[int]]
    output_sizes: list[list[int]]
    dtype: str
    timeout_s: float
    frames: list[tuple[str, str, int]]
    thread: tuple[str, int]
    created_ns: int
    state: str = "scheduled"
    started_ns: int | None = None
    completed_ns: int | None = None
    retired: bool = False


@dataclass(slots=True)
class _Counters:
    """Of one group or one direction: last sequence numbers that were begun, started and completed; -1 for none."""

    enqueued: int = -1
    started: int = -1
    completed: int = -1


@dataclass
class _State:
    entries: list[_Entry] = field(default_factory=list)
    counters: dict[str, _Counters] = field(default_factory=dict)


class FlightRecorder:
    """A ring of the last operations of one group on this rank. Any thread may call.

    Args:
        group: the group's name, the same on every rank.
        rank: this process's rank in the group.
        size: number of ranks in the group.
        capacity: operations remembered; older ones are forgotten.
        ranks: global rank of each rank of the group; default 0 to size - 1.
        description: the group's description, for people.
    """

    def __init__(
        self,
        group: str,
        rank: int,
        size: int,
        capacity: int = CAPACITY,
        *,
        ranks: Sequence[int] | None = None,
        description: str = "",
    ) -> None:
        if capacity < 1:
            raise ValueError(f"a flight recorder needs room for one operation, not {capacity}")
        self.group, self.rank, self.size = group, rank, size
        self.description = description or "undefined"
        self._ranks = tuple(ranks) if ranks is not None else tuple(range(size))
        if len(self._ranks) != size:
            raise ValueError(f"group {group} has {size} ranks, but {len(self._ranks)} global ranks are given")
        self._capacity = capacity
        self._lock = threading.Lock()
        self._ring: list[_Entry | None] = [None] * capacity
        self._count = 0
        self._counters: dict[str, _Counters] = {}

    def begin(
        self,
        kind: str,
        input_sizes: Sizes,
        output_sizes: Sizes,
        dtype: torch.dtype | None,
        timeout_s: float,
        *,
        peer: int | None = None,
    ) -> int:
        """Note that an operation was called.

        Args:
            kind: one of KINDS, or "send" or "recv".
            input_sizes: shape of each tensor that goes in.
            output_sizes: shape of each tensor that comes out.
            dtype: their type; None where there are none (barrier).
            timeout_s: how long the operation may take.
            peer: rank in the group at the other end of a send or a receive.

        Returns:
            The number to give to `started` and `completed`.

        Raises:
            ValueError: the analyser knows no such kind, or a send or a receive has no peer.
        """
        if kind in POINT_TO_POINT:
            if peer is None or not 0 <= peer < self.size:
                raise ValueError(f"{kind} needs a peer in group {self.group}, not {peer}")
        elif kind not in KINDS:
            raise ValueError(f"{kind!r} is no kind of operation; known: {', '.join(sorted(KINDS | POINT_TO_POINT))}")
        group, ranks, name = self._place(kind, peer)
        made_of = _DTYPES.get(dtype, str(dtype)) if dtype is not None else ""
        frames = _frames(sys._getframe(1))
        thread = threading.current_thread()
        with self._lock:
            counters = self._counters.setdefault(group, _Counters())
            sequence = max(0, counters.enqueued) + 1
            counters.enqueued = sequence
            number = self._count
            self._count += 1
            self._ring[number % self._capacity] = _Entry(
                number=number,
                group=group,
                ranks=ranks,
                kind=name,
                sequence=sequence,
                operation=number + 1,
                point_to_point=kind in POINT_TO_POINT,
                input_sizes=self._joined(kind, "reduce_scatter", input_sizes),
                output_sizes=self._joined(kind, "all_gather", output_sizes),
                dtype=made_of,
                timeout_s=timeout_s,
                frames=frames,
                thread=(thread.name, thread.ident or 0),
                created_ns=time.time_ns(),
            )
        return number

    def started(self, number: int) -> None:
        """The operation has begun to move data. Forgotten operations are ignored."""
        with self._lock:
            entry = self._entry(number)
            if entry is not None and entry.started_ns is None:
                entry.started_ns = time.time_ns()
                if entry.state == "scheduled":
                    entry.state = "started"
                    counters = self._counters[entry.group]
                    counters.started = max(counters.started, entry.sequence)

    def completed(self, number: int, failed: bool = False) -> None:
        """The operation has ended. One that failed keeps its last state: the analyser then sees where it stuck."""
        with self._lock:
            entry = self._entry(number)
            if entry is None or entry.retired:
                return
            entry.retired = True
            if not failed:
                entry.state = "completed"
                entry.completed_ns = time.time_ns()
                counters = self._counters[entry.group]
                counters.completed = max(counters.completed, entry.sequence)

    def dump(self, path: str | Path) -> None:
        """Write what is remembered. The file's name must end in this process's global rank: `<prefix><rank>`.

        Raises:
            OSError: the file cannot be written.
        """
        dump_groups(path, [self])

    def state(self) -> _State:
        """A copy of what is remembered, oldest first."""
        with self._lock:
            oldest = max(0, self._count - self._capacity)
            kept = (self._ring[number % self._capacity] for number in range(oldest, self._count))
            entries = [_copy(entry) for entry in kept if entry is not None]
            counters = {name: _Counters(c.enqueued, c.started, c.completed) for name, c in self._counters.items()}
        return _State(entries, counters)

    @property
    def forgotten(self) -> int:
        """How many operations fell out of the ring."""
        return max(0, self._count - self._capacity)

    @property
    def global_ranks(self) -> tuple[int, ...]:
        """Global rank of each rank of the group."""
        return self._ranks

    def _entry(self, number: int) -> _Entry | None:
        entry = self._ring[number % self._capacity]
        return entry if entry is not None and entry.number == number else None

    def _place(self, kind: str, peer: int | None) -> tuple[str, tuple[int, ...], str]:
        """Group, its global ranks, and name of an operation as the analyser wants them."""
        if peer is None or kind not in POINT_TO_POINT:
            return self.group, self._ranks, kind
        source, sink = (self.rank, peer) if kind == "send" else (peer, self.rank)
        pair = (self._ranks[source], self._ranks[sink])
        ranks = tuple(sorted(set(pair)))
        # Within the pair's group the analyser counts ranks by their order.
        first, second = ranks.index(pair[0]), ranks.index(pair[1])
        name = f"send {first}->{second}" if kind == "send" else f"recv {second}<-{first}"
        return f"{self.group} {pair[0]}->{pair[1]}", ranks, name

    def _joined(self, kind: str, lists: str, sizes: Sizes) -> list[list[int]]:
        """Shapes as lists; the `size` tensors that an operation of kind `lists` has are written as one."""
        shapes = [list(shape) for shape in sizes]
        if kind == lists and self.size > 1 and len(shapes) == self.size and all(s == shapes[0] for s in shapes):
            return [[self.size, *shapes[0]]]
        return shapes


def dump_groups(path: str | Path, recorders: Iterable[FlightRecorder]) -> None:
    """Write the operations of several groups of this process as one dump: the analyser reads one file per rank.

    Args:
        path: `<prefix><global rank>`; the file appears at once or not at all.
        recorders: one per group.

    Raises:
        OSError: the file cannot be written.
    """
    config: dict[str, dict[str, str]] = {}
    status: dict[str, dict[str, int]] = {}
    rows: list[tuple[_Entry, int, str]] = []
    forgotten = 0
    for recorder in recorders:
        state = recorder.state()
        forgotten += recorder.forgotten
        config[recorder.group] = _config(recorder.group, recorder.description, recorder.global_ranks)
        ids: dict[str, int] = {}
        for name, counters in {recorder.group: _Counters(), **state.counters}.items():
            ids[name] = len(status)
            status[str(ids[name])] = {
                "last_enqueued_collective": counters.enqueued,
                "last_started_collective": counters.started,
                "last_completed_collective": counters.completed,
            }
        for entry in state.entries:
            config.setdefault(entry.group, _config(entry.group, recorder.description, entry.ranks))
            rows.append((entry, ids[entry.group], recorder.description))
    rows.sort(key=lambda row: (row[0].created_ns, row[0].number))
    dump = {
        "version": VERSION,
        "pg_config": config,
        "pg_status": status,
        "comm_lib_version": "",
        "entries": [_row(forgotten + index, *row) for index, row in enumerate(rows)],
    }
    target = Path(path)
    partial = target.with_name(f".{target.name}.part")
    try:
        partial.write_bytes(pickle.dumps(dump))
        os.replace(partial, target)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def _config(name: str, description: str, ranks: Sequence[int]) -> dict[str, str]:
    return {"name": name, "desc": description, "ranks": str(list(ranks))}


def _row(record_id: int, entry: _Entry, group_id: int, description: str) -> dict[str, object]:
    dtypes_in = [entry.dtype] * len(entry.input_sizes)
    dtypes_out = [entry.dtype] * len(entry.output_sizes)
    return {
        "record_id": record_id,
        "pg_id": group_id,
        "process_group": (entry.group, description),
        "thread_name": entry.thread[0],
        "thread_id": str(entry.thread[1]),
        "collective_seq_id": entry.sequence,
        "p2p_seq_id": entry.sequence if entry.point_to_point else 0,
        "op_id": entry.operation,
        "profiling_name": f"gloo:{entry.kind}",
        "time_created_ns": entry.created_ns,
        "input_sizes": entry.input_sizes,
        "input_dtypes": dtypes_in,
        "output_sizes": entry.output_sizes,
        "output_dtypes": dtypes_out,
        "state": entry.state,
        "time_discovered_started_ns": entry.started_ns,
        "time_discovered_completed_ns": entry.completed_ns,
        "retired": entry.retired,
        "timeout_ms": round(entry.timeout_s * 1000),
        "is_p2p": entry.point_to_point,
        "frames": [{"name": name, "filename": file, "line": line} for name, file, line in entry.frames],
    }


def _copy(entry: _Entry) -> _Entry:
    return _Entry(**{name: getattr(entry, name) for name in _Entry.__slots__})


def _frames(frame: FrameType | None) -> list[tuple[str, str, int]]:
    """The caller's stack, innermost first, without this package's own frames; the user's line is what helps."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    frames: list[tuple[str, str, int]] = []
    while frame is not None and len(frames) < MOST_FRAMES:
        code = frame.f_code
        if not code.co_filename.startswith(here):
            frames.append((code.co_name, code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return frames
