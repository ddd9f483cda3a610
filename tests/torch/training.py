"""Training in a test world: each function runs in every rank and returns the weights it ends with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

STEPS = 50


def model() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 5)
    )


def batch(step: int) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    return torch.randn(8, 20, generator=source), torch.randn(8, 5, generator=source)


def train(network: Callable[[Tensor], Tensor], parameters: Iterable[Tensor], steps: int = STEPS) -> None:
    optimiser = torch.optim.SGD(parameters, lr=0.02, momentum=0.9)
    for step in range(steps):
        inputs, targets = batch(step)
        optimiser.zero_grad()
        loss: Tensor = nn.functional.mse_loss(network(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()


def flat(tensors: list[Tensor]) -> list[float]:
    values: list[float] = torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).tolist()
    return values


def ddp(hook: str) -> list[float]:
    """Weights after 50 steps of DDP with the communication hook `hook`.

    Several buckets, but for PowerSGD: its callbacks start collectives, in an order that differs between ranks when
    buckets overtake each other, on any backend whose callbacks have threads of their own.
    """
    bucket_cap_mb = 25 if hook == "powersgd" else 0.01
    network = DistributedDataParallel(model(), bucket_cap_mb=bucket_cap_mb, gradient_as_bucket_view=True)
    if hook == "allreduce":
        network.register_comm_hook(None, default_hooks.allreduce_hook)
    elif hook == "fp16":
        network.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=5)
        network.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(network, network.parameters())
    return flat(list(network.parameters()))


def ddp_without_sync() -> list[float]:
    """Gradient accumulation, unused parameters, a static graph."""
    network = DistributedDataParallel(model(), find_unused_parameters=True)
    for step in range(4):
        with network.no_sync():
            network(batch(step)[0]).sum().backward()
        network(batch(step + 10)[0]).sum().backward()
    return flat([parameter.grad for parameter in network.parameters() if parameter.grad is not None])


def compiled_ddp(compiler: str) -> list[float]:
    """Weights after a few steps of compiled DDP."""
    torch._dynamo.config.optimize_ddp = True
    network = DistributedDataParallel(model())
    train(torch.compile(network, backend=compiler), network.parameters(), steps=5)
    return flat(list(network.parameters()))


def fsdp(mesh_shape: tuple[int, ...]) -> list[float]:
    """Weights after some steps of FSDP2, or HSDP on a mesh of two dimensions."""
    names = ("replicate", "shard")[-len(mesh_shape) :]
    mesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names=names)
    network = nn.Sequential(*[layer for layer in model() if not isinstance(layer, nn.BatchNorm1d)])
    for layer in network:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(network, mesh=mesh)
    train(network, network.parameters(), steps=15)
    return flat([parameter.full_tensor() for parameter in network.parameters() if isinstance(parameter, DTensor)])


def second_group_after_the_first() -> list[float]:
    """Destroy all, and begin again in the same process."""
    store = dist.distributed_c10d._get_default_store()
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    again = PrefixStore("again", store)
    dist.init_process_group("cpu:headway", store=again, rank=rank, world_size=size, timeout=timedelta(seconds=20))
    tensor = torch.full((4,), rank + 1.0)
    dist.all_reduce(tensor)
    return flat([tensor])


def compiled_collectives() -> list[float]:
    """Collectives inside a compiled function, traced or at a graph break."""

    def step(inputs: Tensor) -> Tensor:
        doubled = inputs * 2
        dist.all_reduce(doubled)
        return doubled + 1

    return flat([torch.compile(step, backend="aot_eager")(torch.full((4,), dist.get_rank() + 1.0))])
