"""One rank of the torch family: `python -m headway.bench.torch_worker SOCKET JOURNAL_FOLDER TIMEOUT`.

Needs torchrun's environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).
"""

from __future__ import annotations

import datetime
import os
import sys

import torch
import torch.distributed as dist

from headway.bench.control import connect
from headway.bench.torch_peer import TorchPeer, journal_path
from headway.bench.worker import Station, serve


def main(socket_path: str, journals: str, timeout_s: float) -> None:
    """Serve the coordinator until it hangs up."""
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout_s))
    line = connect(socket_path, family="torch", rank=rank)

    def make(backend: str) -> TorchPeer:
        return TorchPeer(backend, journal=journal_path(journals, backend), timeout_s=timeout_s)

    serve(Station(make), rank=rank, receive=line.receive, send=line.send)
    line.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
