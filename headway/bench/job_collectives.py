"""The collectives of a job's phases on torch.distributed."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from headway.errors import UsageError
from headway.interleave.aggressiveness import Aggressiveness
from headway.interleave.driver import Background
from headway.interleave.sockets import adopt_gloo, gloo_sockets
from headway.lab.jobs import Interleave, Phase

_LIMIT = timedelta(seconds=600)
_ELEMENT_BYTES = 4


class JobCollectives:
    """One rank's group, with buffers for each phase. Needs torchrun's environment.

    Vectors are float32; one that does not divide into elements, or blocks, is rounded up.

    Args:
        backend: `headway`, which has the rest from the environment, or `gloo`.
        loop: the job's phases.
        congestion_control, interleave: of gloo's connections, as of a job.
    """

    def __init__(
        self, *, backend: str, loop: Sequence[Phase], congestion_control: str = "", interleave: Interleave | None = None
    ) -> None:
        torch.set_num_threads(1)
        dist.init_process_group(backend, timeout=_LIMIT)
        self._interleaved: Background | None = None
        if backend == "gloo":
            self._prepare_gloo(congestion_control, interleave)
        size = dist.get_world_size()
        self._whole: dict[Phase, torch.Tensor] = {}
        self._part: dict[Phase, torch.Tensor] = {}
        for phase in loop:
            if phase.kind in ("compute", "send"):
                continue
            blocks = size if phase.kind in ("reduce_scatter", "all_gather") else 1
            of_block = -(-phase.size_bytes // (_ELEMENT_BYTES * blocks))
            self._whole[phase] = torch.zeros(of_block * blocks)
            if blocks > 1:
                self._part[phase] = torch.zeros(of_block)

    def run(self, phase: Phase) -> None:
        """One collective, until this rank has its result."""
        whole = self._whole[phase]
        match phase.kind:
            case "all_reduce":
                dist.all_reduce(whole)
            case "reduce_scatter":
                dist.reduce_scatter_single(self._part.get(phase, whole), whole)
            case "all_gather":
                dist.all_gather_single(whole, self._part.get(phase, whole))
            case "broadcast":
                dist.broadcast(whole, src=phase.root)
            case _:
                dist.reduce(whole, dst=phase.root)

    def _prepare_gloo(self, congestion_control: str, interleave: Interleave | None) -> None:
        if congestion_control:
            for connection in gloo_sockets():
                try:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion_control.encode())
                except OSError as error:
                    what = f"{congestion_control!r}: {error.strerror}"
                    raise UsageError(what, where="congestion_control") from None
                finally:
                    connection.detach()
        if interleave is not None:
            f = Aggressiveness(slope=interleave.slope, intercept=interleave.intercept, most=interleave.most)
            self._interleaved = adopt_gloo(actuator=interleave.actuator, aggressiveness=f)

    def close(self) -> None:
        """Leave the group."""
        if self._interleaved is not None:
            self._interleaved.close()
        dist.destroy_process_group()
