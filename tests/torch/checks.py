"""What the ranks of a test world check: each function runs in every rank, with the default group on headway."""

from __future__ import annotations

import gc
import hashlib
import re
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor
from torch._C._distributed_c10d import AllreduceCoalescedOptions, _make_nccl_premul_sum
from torch.distributed.distributed_c10d import _coalescing_manager

from headway.torch.process_group import HeadwayProcessGroup

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8,
    torch.bool, torch.complex64, torch.uint16,
]  # fmt: skip
OPS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"]
COUNT = 24


def world() -> HeadwayProcessGroup:
    group = dist.group.WORLD
    assert isinstance(group, HeadwayProcessGroup)
    return group


def sample(dtype: torch.dtype, rank: int, count: int = COUNT) -> Tensor:
    """Small values, other ones on each rank, whose sums and products are exact in every type."""
    base = (torch.arange(count) * 7 + rank * 3) % 4
    return base.to(torch.float32).to(dtype) if dtype is not torch.uint16 else base.to(torch.int32).to(dtype)


def reduce_op(name: str) -> dist.ReduceOp:
    if name == "PREMUL_SUM":
        made: dist.ReduceOp = _make_nccl_premul_sum(2.0)
        return made
    return dist.ReduceOp(getattr(dist.ReduceOp, name))


def outcome(function: Callable[[], Tensor]) -> Tensor | str:
    try:
        return function()
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0].split("Exception raised from")[0]


def reductions(group: dist.ProcessGroup, dtype: torch.dtype, op: dist.ReduceOp) -> dict[str, Tensor | str]:
    """Each reducing collective once, on `group`."""
    rank, size = group.rank(), group.size()

    def all_reduce() -> Tensor:
        tensor = sample(dtype, rank)
        dist.all_reduce(tensor, op, group=group)
        return tensor

    def coalesced() -> Tensor:
        tensors = [sample(dtype, rank, 5), sample(dtype, rank + 1, 3).reshape(3, 1)]
        options = AllreduceCoalescedOptions()
        options.reduceOp = op
        group.allreduce_coalesced(tensors, options).wait()
        return torch.cat([tensor.reshape(-1) for tensor in tensors])

    def reduce() -> Tensor:
        tensor = sample(dtype, rank)
        dist.reduce(tensor, group_dst=1, op=op, group=group)
        return tensor if rank == 1 else torch.zeros(0)

    def scatter_list() -> Tensor:
        output = torch.zeros(COUNT // size).to(dtype)
        dist.reduce_scatter(output, list(sample(dtype, rank).reshape(size, -1).unbind()), op, group=group)
        return output

    def scatter_tensor() -> Tensor:
        output = torch.zeros(COUNT // size).to(dtype)
        whole = sample(dtype, rank)
        dist.reduce_scatter_single(output, whole, op, group=group)
        assert torch.equal(whole.view(torch.uint8), sample(dtype, rank).view(torch.uint8))
        return output

    functions = [all_reduce, coalesced, reduce, scatter_list, scatter_tensor]
    return {function.__name__: outcome(function) for function in functions}


def same_as_gloo() -> int:
    """Every collective x dtype x op gives gloo's values, or fails where gloo does. Returns the number of cells."""
    gloo = dist.new_group(backend="gloo")
    cells = 0
    for dtype in DTYPES:
        for name in OPS:
            ours = reductions(world(), dtype, reduce_op(name))
            theirs = reductions(gloo, dtype, reduce_op(name))
            for key, mine in ours.items():
                other = theirs[key]
                where = f"{key} of {dtype}, {name}: {mine} against gloo's {other}"
                assert isinstance(mine, Tensor) == isinstance(other, Tensor), where
                if isinstance(mine, Tensor) and isinstance(other, Tensor):
                    assert torch.allclose(mine.to(torch.complex128), other.to(torch.complex128)), where
                elif name == "AVG" and not dtype.is_floating_point:
                    assert re.match(
                        rf"RuntimeError: \w+: ReduceOp.AVG of {str(dtype)[6:]} tensors is refused", str(mine)
                    ), where
                else:
                    assert mine == other, where
                cells += 1
    return cells


def moves_every_type() -> None:
    """Broadcast and all-gather move bytes, so they take every real type, also those that gloo refuses."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in [*DTYPES, torch.int16, torch.uint32, torch.uint64, torch.float8_e4m3fn]:
        if dtype.is_complex:
            continue
        expected = [torch.full((6 * dtype.itemsize,), r + 1, dtype=torch.uint8) for r in range(size)]
        own = expected[rank].clone().view(dtype)
        outputs = [torch.empty_like(own) for _ in range(size)]
        dist.all_gather(outputs, own)
        assert all(torch.equal(o.view(torch.uint8), e) for o, e in zip(outputs, expected, strict=True)), dtype
        flat = torch.empty(6 * size * dtype.itemsize, dtype=torch.uint8).view(dtype)
        dist.all_gather_single(flat, own)
        assert torch.equal(flat.view(torch.uint8), torch.cat(expected)), dtype
        dist.broadcast(own, src=size - 1)
        assert torch.equal(own.view(torch.uint8), expected[-1]), dtype


def layouts() -> None:
    """Strides, views, leaves, empties and aliases: the values are right and nothing beside them changes."""
    rank, size = dist.get_rank(), dist.get_world_size()
    total = sum(range(1, size + 1))

    row = torch.arange(12.0).reshape(3, 4) * (rank + 1)
    transposed = row.t() if rank % 2 else row.t().contiguous()  # other strides on other ranks
    dist.all_reduce(transposed)
    assert torch.equal(transposed, torch.arange(12.0).reshape(3, 4).t() * total)

    base = torch.zeros(20)
    base[::2] = rank + 1.0
    base[1::2] = -5.0
    dist.all_reduce(base[::2])
    assert torch.equal(base[::2], torch.full((10,), float(total)))
    assert torch.equal(base[1::2], torch.full((10,), -5.0))

    base = torch.full((10,), -1.0)
    base[3:7] = rank + 1.0
    dist.all_reduce(base[3:7])
    assert torch.equal(base, torch.tensor([-1.0] * 3 + [total] * 4 + [-1.0] * 3))

    image = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(1)).to(memory_format=torch.channels_last)
    mine = image.clone() * (rank + 1)
    dist.all_reduce(mine)
    assert mine.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(mine, image * total)

    leaf = torch.full((3,), float(rank + 1), requires_grad=True)
    dist.all_reduce(leaf)
    assert leaf.is_leaf
    assert leaf.requires_grad
    assert leaf.tolist() == [total] * 3

    scalar = torch.tensor(float(rank + 1))
    dist.all_reduce(scalar)
    assert scalar.item() == total

    for empty in (torch.empty(0), torch.empty(3, 0)):
        dist.all_reduce(empty)
        dist.broadcast(empty, 0)
        gathered = [torch.empty_like(empty) for _ in range(size)]
        dist.all_gather(gathered, empty)
        dist.reduce_scatter_single(torch.empty(0), torch.empty(0))

    strided = [torch.zeros(8)[::2] for _ in range(size)]
    dist.all_gather(strided, torch.full((8,), float(rank))[::2])
    assert [tensor.tolist() for tensor in strided] == [[r] * 4 for r in range(size)]

    flat = torch.zeros(size * 4)
    flat[rank * 4 : rank * 4 + 4] = rank
    dist.all_gather(list(flat.chunk(size)), flat[rank * 4 : rank * 4 + 4])  # in place, without a copy
    assert flat.tolist() == [float(r) for r in range(size) for _ in range(4)]

    table = torch.zeros(4, size).t()
    dist.all_gather_single(table, torch.full((4,), float(rank)))
    assert table.tolist() == [[float(r)] * 4 for r in range(size)]

    output = torch.zeros(2, 6).t()[:3]
    whole = (torch.arange(6.0 * size).reshape(2, 3 * size) * (rank + 1)).t()
    dist.reduce_scatter_single(output, whole)
    expected = torch.arange(6.0 * size).reshape(2, 3 * size).t() * total
    assert torch.equal(output, expected[rank * 3 : rank * 3 + 3])

    rows = torch.arange(8.0).reshape(4, 2).t() * (rank + 1)
    dist.broadcast(rows, src=1)
    assert torch.equal(rows, torch.arange(8.0).reshape(4, 2).t() * 2)


def call_forms() -> None:
    """The shorter overloads of torch's methods, by position and by name."""
    rank, size, group = dist.get_rank(), dist.get_world_size(), world()
    total = float(sum(range(1, size + 1)))

    def mine() -> Tensor:
        return torch.full((4,), float(rank + 1))

    limit = timedelta(seconds=20)
    for arguments, named in (
        ((mine(),), {}),
        ((mine(), dist.ReduceOp.SUM), {}),
        (([mine()], dist.ReduceOp.SUM, limit), {}),
        ((), {"tensors": [mine()], "op": dist.ReduceOp.SUM, "timeout": limit}),
        ((), {"tensor": mine(), "op": dist.ReduceOp.SUM}),
    ):
        work = group.allreduce(*arguments, **named)
        assert work.wait()
        assert work.result()[0].tolist() == [total] * 4
    tensor = mine()
    group.broadcast(tensor, 1).wait()
    assert tensor.tolist() == [2.0] * 4
    tensor = mine()
    group.broadcast(tensor, root=0, timeout=limit).wait()
    assert tensor.tolist() == [1.0] * 4
    tensor = mine()
    group.reduce(tensor, 0, dist.ReduceOp.MAX).wait()
    assert rank or tensor.tolist() == [size] * 4
    outputs = [torch.zeros(4) for _ in range(size)]
    group.allgather(outputs, mine(), limit).wait()
    assert [output[0].item() for output in outputs] == [r + 1.0 for r in range(size)]
    tensor = torch.zeros(1)
    group.reduce_scatter(tensor, list(torch.full((size,), rank + 1.0).chunk(size)), dist.ReduceOp.SUM).wait()
    assert tensor.tolist() == [total]
    two = [torch.zeros(2 * size), torch.zeros(3 * size)]
    group.all_gather_single_coalesced(two, [torch.full((2,), float(rank)), torch.full((3,), float(rank))]).wait()
    assert two[1].tolist() == [float(r) for r in range(size) for _ in range(3)]
    with _coalescing_manager():
        first, second = mine(), mine() * 2
        dist.all_reduce(first)
        dist.all_reduce(second)
    assert second.tolist() == [2 * total] * 4


def refusals() -> None:
    """What gloo refuses is refused in its words, and the group goes on working."""
    rank, size = dist.get_rank(), dist.get_world_size()
    with pytest.raises(RuntimeError, match="invalid tensor size"):
        dist.all_gather([torch.zeros(r + 1) for r in range(size)], torch.zeros(rank + 1))
    with pytest.raises(RuntimeError, match="must all have the same type"):
        world().allreduce_coalesced([torch.zeros(2), torch.zeros(2, dtype=torch.float64)]).wait()
    with pytest.raises(RuntimeError, match="invalid tensor size"):
        dist.all_gather_single(torch.zeros(2 * size - 1), torch.zeros(2))
    with pytest.raises(RuntimeError, match="invalid root rank"):
        world().broadcast(torch.zeros(2), 99)
    uneven = torch.zeros(rank + 1)
    dist.reduce_scatter(uneven, [torch.ones(r + 1) for r in range(size)])
    assert uneven.tolist() == [size] * (rank + 1)
    pair = [torch.ones(2), torch.ones(2)]
    world().allreduce(pair).wait()
    assert pair[0].tolist() == [2 * size] * 2


def delegated() -> None:
    """gather, scatter, all-to-all, point to point, objects, barriers, sparse: through gloo."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = torch.full((2,), float(rank))
    gathered = [torch.zeros(2) for _ in range(size)] if rank == 1 else None
    dist.gather(mine, gathered, dst=1)
    assert gathered is None or [tensor[0].item() for tensor in gathered] == list(range(size))
    got = torch.zeros(2)
    dist.scatter(got, [torch.full((2,), float(r)) for r in range(size)] if rank == 0 else None, src=0)
    assert got.tolist() == mine.tolist()
    out = torch.zeros(size)
    dist.all_to_all_single(out, torch.full((size,), float(rank)))
    assert out.tolist() == list(range(size))
    outs = [torch.zeros(1) for _ in range(size)]
    dist.all_to_all(outs, list(torch.full((size,), float(rank)).chunk(size)))
    assert [tensor.item() for tensor in outs] == list(range(size))
    right, left = (rank + 1) % size, (rank - 1) % size
    request = dist.isend(mine, right)
    dist.recv(got, left)
    assert request is not None
    request.wait()
    assert got[0].item() == left
    dist.barrier()
    if rank == 0:
        for _ in range(size - 1):
            assert dist.recv(got) == got[0].item()
    else:
        dist.send(mine, 0)
    dist.barrier()  # or a receive from anybody could take what follows
    operations = [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, got, left)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert got[0].item() == left
    objects: list[object] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": r} for r in range(size)]
    collected: list[object] | None = [None] * size if rank == 0 else None
    dist.gather_object(rank, collected, dst=0)
    assert collected is None or collected == list(range(size))
    shared = ["word" if rank == 0 else None]
    dist.broadcast_object_list(shared, src=0)
    assert shared == ["word"]
    dist.barrier()
    world().monitored_barrier(timedelta(seconds=20))  # type: ignore[attr-defined]  # torch's stub lacks it
    with pytest.raises(ValueError, match="only implemented for GLOO"):  # torch itself asks for gloo by name
        dist.monitored_barrier()
    sparse = torch.sparse_coo_tensor(torch.tensor([[rank]]), torch.ones(1), (size,))
    dist.all_reduce(sparse)
    assert sparse.to_dense().tolist() == [1.0] * size
    complex_ones = torch.full((2,), 1 + 1j)
    dist.all_reduce(complex_ones)
    assert complex_ones.tolist() == [size * (1 + 1j)] * 2


def asynchronous() -> None:
    """Works and futures, many at once, on several groups, from several threads."""
    rank, size = dist.get_rank(), dist.get_world_size()
    total = float(sum(range(1, size + 1)))
    tensors = [torch.full((1000 * (k + 1),), rank + 1.0) for k in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    futures = [work.get_future() for work in works if work is not None]
    seen: list[float] = []
    chained = [future.then(lambda done: seen.append(done.value()[0][0].item())) for future in futures]
    torch.futures.wait_all(chained)
    assert seen == [total] * 20 or sorted(seen) == [total] * 20
    for work, tensor in zip(works, tensors, strict=True):
        assert work is not None
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
        assert work.result()[0] is tensor

    def nested(done: torch.futures.Future[list[Tensor]]) -> Tensor:
        """A callback that waits for another collective, as PowerSGD's does."""
        following = dist.all_reduce(done.value()[0], async_op=True)
        assert following is not None
        value: Tensor = following.get_future().wait()[0]
        return value

    work = dist.all_reduce(torch.ones(3), async_op=True)
    assert work is not None
    assert work.get_future().then(nested).wait().tolist() == [size * size] * 3

    groups = [dist.new_group() for _ in range(3)]
    errors: list[BaseException] = []

    def use(group: dist.ProcessGroup) -> None:
        try:
            for step in range(10):
                tensor = torch.full((5000,), float(step))
                dist.all_reduce(tensor, group=group)
                assert tensor[0].item() == step * size
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=use, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    for group in groups:
        dist.destroy_process_group(group)
    late = dist.all_reduce(torch.ones(2), async_op=True)
    dist.barrier()
    assert late is not None
    assert late.is_completed()


def groups_of_ranks() -> None:
    """Subgroups, a group of one rank, a split; each knows its own ranks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    upper = dist.new_group(list(range(1, size)))
    alone = [dist.new_group([r]) for r in range(size)][rank]
    if rank:
        tensor = torch.full((3,), float(rank))
        dist.all_reduce(tensor, group=upper)
        assert tensor[0].item() == sum(range(1, size))
        dist.broadcast(tensor, src=1, group=upper)
    tensor = torch.full((3,), float(rank))
    dist.all_reduce(tensor, dist.ReduceOp.AVG, group=alone)
    dist.barrier(alone)
    assert tensor.tolist() == [rank] * 3
    part = world().split_group([0, 1], timedelta(seconds=20))
    assert (part is None) == (rank > 1)
    if part is not None:
        tensor = torch.ones(2)
        part.allreduce(tensor).wait()
        assert tensor.tolist() == [2.0, 2.0]
        assert part.group_name
        part.shutdown()


def functional_collectives() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    group = world()
    total = float(sum(range(1, size + 1)))
    mine = torch.full((4,), rank + 1.0)
    assert functional.all_reduce(mine, "sum", group).tolist() == [total] * 4
    assert functional.all_gather_tensor(mine, 0, group).tolist() == [r + 1.0 for r in range(size) for _ in range(4)]
    assert functional.reduce_scatter_tensor(torch.ones(size * 2), "avg", 0, group).tolist() == [1.0, 1.0]
    first, second = functional.all_reduce_coalesced([mine, mine * 2], "sum", group)
    assert second.tolist() == [2 * total] * 4
    assert functional.broadcast(mine, 1, group).tolist() == [2.0] * 4
    gathered = functional.all_gather_into_tensor_coalesced([mine, mine], group)
    assert gathered[1].numel() == 4 * size
    assert first.tolist() == [total] * 4
    lazy = functional.all_reduce(mine, "sum", group)
    dist.all_reduce(lazy)  # a tensor whose own collective nobody has waited for
    assert lazy.tolist() == [total * size] * 4


def releases_everything() -> list[str]:
    """Names of our threads and sockets that are left after the groups' end, with operations that nobody waited for."""
    dist.all_reduce(torch.ones(1000))
    subgroup = dist.new_group()
    dist.all_reduce(torch.ones(1000), group=subgroup, async_op=True)
    dist.all_reduce(torch.ones(100_000), async_op=True)
    del subgroup
    dist.destroy_process_group()
    gc.collect()
    return [*_threads(), *_sockets()]


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("headway")]


def _sockets() -> list[str]:
    links = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith("socket:"):
            links.append(target)
    return links


def beside_another_device() -> str:
    """`cpu:headway,cuda:stand-in`: the CPU's tensors are ours, the other device has the backend that was named."""
    group = dist.group.WORLD
    assert isinstance(group, HeadwayProcessGroup)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [dist.get_world_size()] * 3
    assert {device.type for device in group._device_types} == {"cpu", "cuda"}
    other = group._get_backend(torch.device("cuda"))
    assert group._get_backend(torch.device("cuda")) is other
    with pytest.raises(RuntimeError, match="No backend type associated with device type xpu"):
        group._get_backend(torch.device("xpu"))
    return other.name()


def exact_bits() -> str:
    """A digest of sums whose bits depend on the order of addition."""
    rank = dist.get_rank()
    source = torch.Generator().manual_seed(rank)
    digest = hashlib.sha256()
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        tensor = (torch.randn(50_000, generator=source) * 10.0**rank).to(dtype)
        dist.all_reduce(tensor)
        digest.update(tensor.view(torch.uint8).numpy().tobytes())
        scattered = torch.empty(1000, dtype=dtype)
        dist.reduce_scatter_single(scattered, tensor[: 1000 * dist.get_world_size()])
        gathered = torch.empty(1000 * dist.get_world_size(), dtype=dtype)
        dist.all_gather_single(gathered, scattered)
        digest.update(gathered.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def timeouts() -> None:
    """torch's ways to change a group's limit reach the engine."""
    group = world()
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=11))
    assert group._own.timeout == timedelta(seconds=11)
    group.set_timeout(timedelta(seconds=12))
    assert group._own.timeout == timedelta(seconds=12)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert dist.get_backend() == "headway"
    assert group.group_name
    assert group.get_group_store() is not None


def alone() -> None:
    """A world of one rank."""
    tensor = torch.full((3,), 5.0)
    for op in ("SUM", "AVG", "PRODUCT", "MIN", "MAX"):
        dist.all_reduce(tensor, reduce_op(op))
    gathered = [torch.zeros(3)]
    dist.all_gather(gathered, tensor)
    output = torch.zeros(3)
    dist.reduce_scatter_single(output, tensor)
    dist.broadcast(tensor, 0)
    dist.barrier()
    assert tensor.tolist() == gathered[0].tolist() == output.tolist() == [5.0] * 3
