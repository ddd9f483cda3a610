"""Keeps the flight recorder of each group, and writes this process's dump when something fails or a group ends."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor
from torch.distributed import Work

from headway.torch.flight_recorder import FlightRecorder, dump_groups

MOST_GROUPS = 64
"""Groups of a process that one dump remembers; the oldest are forgotten."""


class Dump:
    """One file of a process: `<prefix><rank of the job>`, with the operations of all its groups.

    Args:
        prefix: HEADWAY_FLIGHT_RECORDER.
        rank: of this process in the job.
    """

    def __init__(self, prefix: str, rank: int) -> None:
        self.path = Path(f"{prefix}{rank}")
        self._recordings: deque[Recording] = deque(maxlen=MOST_GROUPS)
        self._writing = threading.Lock()

    def add(self, recording: Recording) -> None:
        """Let `recording` be part of the dump."""
        self._recordings.append(recording)

    def write(self) -> None:
        """Write the file. A dump is an aid: where it cannot be written, that is logged and nothing else."""
        recordings = list(self._recordings)
        for recording in recordings:
            recording.look()
        try:
            with self._writing:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                dump_groups(self.path, [recording.recorder for recording in recordings])
        except OSError as error:
            logging.getLogger("headway").warning("flight recorder: cannot write %s: %s", self.path, error)


class Recording:
    """One group's part.

    Args:
        dump: of this process.
        group: the group's name.
        rank: of this process in the group.
        ranks: rank in the job of each rank in the group.
    """

    def __init__(self, dump: Dump, *, group: str, rank: int, ranks: Sequence[int]) -> None:
        self.recorder = FlightRecorder(group, rank, len(ranks), ranks=ranks)
        self._dump = dump
        self._watched: list[tuple[int, Work]] = []
        self._looking = threading.Lock()
        dump.add(self)

    def begin(
        self,
        kind: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        timeout_s: float,
        *,
        peer: int | None = None,
    ) -> int:
        """Note that an operation was called and begins; returns its number."""
        given = [*inputs, *outputs]
        number = self.recorder.begin(
            kind,
            [tensor.shape for tensor in inputs],
            [tensor.shape for tensor in outputs],
            given[0].dtype if given else None,
            timeout_s,
            peer=peer,
        )
        self.recorder.started(number)
        return number

    def watch(self, number: int, work: Work) -> None:
        """Find out by looking when `work` has ended: gloo's tell nobody."""
        self.look()
        self._watched.append((number, work))

    def look(self) -> None:
        """Note which watched works have ended, and let go of them."""
        with self._looking:
            still: list[tuple[int, Work]] = []
            ended: list[tuple[int, Work]] = []
            for number, work in self._watched:
                (ended if work.is_completed() else still).append((number, work))
            self._watched = still
        for number, work in ended:
            self.recorder.completed(number, failed=work.exception() is not None)

    def failed(self) -> None:
        """An operation has failed: write the dump while it shows where."""
        self._dump.write()

    def close(self) -> None:
        """The group ends: write the dump, and let go of every work."""
        self._dump.write()
        self._watched = []
