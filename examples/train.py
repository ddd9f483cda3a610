"""Train a small model with DDP: an ordinary torchrun script that knows nothing of Headway.

    torchrun --nproc-per-node 4 examples/train.py --backend gloo
    torchrun --nproc-per-node 4 examples/train.py --backend headway

The name of the backend is the one word that changes. The task: predict a fixed random teacher network's outputs. Data
and weights are seeded, so that two runs do the same arithmetic. Rank 0 prints a line for each step.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def make_model(width: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--width", type=int, default=1408, help="1408 gives 8.3 MB of gradients")
    parser.add_argument("--batch", type=int, default=8, help="samples per rank and step")
    parser.add_argument("--save", type=Path, help="where rank 0 leaves the weights at the end")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group(arguments.backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()

    teacher = make_model(32, seed=1)
    model = DistributedDataParallel(make_model(arguments.width, seed=2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    gradient_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    if rank == 0:
        print(f"training on {ranks} ranks over {arguments.backend}: {gradient_bytes} bytes of gradients", flush=True)

    for step in range(arguments.steps):
        begin_s = time.perf_counter()
        generator = torch.Generator().manual_seed(step * ranks + rank)
        inputs = torch.randn(arguments.batch, 64, generator=generator)
        with torch.no_grad():
            targets = teacher(inputs)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.6f} time {time.perf_counter() - begin_s:.4f} s", flush=True)

    if rank == 0 and arguments.save is not None:
        torch.save(model.module.state_dict(), arguments.save)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
