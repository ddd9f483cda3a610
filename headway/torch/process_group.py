"""torch.distributed's group with the backend "headway": what has a plan runs on the engine, the rest on gloo.

Methods that are not here are those of torch's `ProcessGroup`, which passes them to the backend that is registered for
the tensor's device: gloo for the CPU.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions, PrefixStore, ReduceScatterOptions, Store
from torch._C._distributed_c10d import Backend as C10dBackend
from torch.distributed import GroupName, ProcessGroup, Work

from headway.torch import calls, other_devices
from headway.torch.completion import CompletionPool
from headway.torch.delegate import InnerGloo
from headway.torch.eager import never_compiled
from headway.torch.own import OwnCollectives
from headway.torch.recording import Recording
from headway.torch.refusals import refuse_average_of_integers
from headway.torch.relayed import RelayedWork
from headway.torch.work import NO_TIMEOUT, CollectiveWork, JoinedWork

CPU = torch.device("cpu")
UNSET = timedelta(milliseconds=-1)


@dataclass(frozen=True)
class GroupParts:
    """What a group is made of.

    Attributes:
        store: the group's own part of the store.
        rank: of this process in the group.
        size: number of ranks.
        timeout: of operations that bring none of their own.
        name: the group's name in torch.
        ranks: rank in the job of each rank in the group.
        own: the collectives on the engine.
        gloo: for all else.
        recording: for the flight recorder; None when it is off.
        split: makes the group of some of this one's ranks: (store, ranks in this group, timeout, name).
    """

    store: Store
    rank: int
    size: int
    timeout: timedelta
    name: str
    ranks: list[int]
    own: OwnCollectives
    gloo: InnerGloo
    recording: Recording | None
    split: Callable[[Store, Sequence[int], timedelta, str], HeadwayProcessGroup]


@never_compiled
class HeadwayProcessGroup(ProcessGroup):
    """One group on one rank. The methods' contracts are torch's; docs/torch.md says which run on what."""

    def __init__(self, parts: GroupParts) -> None:
        # The form for subclasses in Python, which torch's stub lacks.
        super().__init__(parts.rank, parts.size)  # type: ignore[call-arg]
        self._parts = parts
        self._own = parts.own
        self._group_name = parts.name
        self._group_desc = "undefined"
        self._splits = 0
        # A plain group with the same backends: where a method that is overridden here sends what it doesn't take.
        self._plain = ProcessGroup(parts.store, parts.rank, parts.size)
        self._plain._set_default_backend(ProcessGroup.BackendType.GLOO)
        self._backends: dict[str, C10dBackend] = {}
        self._register("cpu", ProcessGroup.BackendType.GLOO, parts.gloo)
        own = weakref.ref(parts.own)
        parts.gloo.on_timeout = lambda timeout: _set_timeout(own, timeout)
        if parts.recording is not None:
            parts.own.on_failure = parts.recording.failed
        self._relays = CompletionPool(f"headway-relay-{parts.name}")
        self._finalizer = weakref.finalize(self, _end, parts.own, self._relays)

    # What torch asks of any group.

    def getBackendName(self) -> str:
        return "headway"

    def name(self) -> str:
        return "headway"

    def _get_backend_name(self) -> str:
        return "headway"

    def getRank(self) -> int:
        return self._parts.rank

    def getSize(self) -> int:
        return self._parts.size

    def getGroupName(self) -> str:
        return self._group_name

    def setGroupName(self, name: str) -> None:
        self._group_name = name
        self._plain._set_group_name(GroupName(name))

    def getGroupDesc(self) -> str:
        return self._group_desc

    def setGroupDesc(self, description: str) -> None:
        self._group_desc = description
        self._plain._set_group_desc(description)

    @property
    def group_name(self) -> GroupName:
        return GroupName(self._group_name)

    @property
    def group_desc(self) -> str:
        return self._group_desc

    def get_group_store(self) -> Store:
        return self._parts.store

    def set_timeout(self, timeout: timedelta) -> None:
        """The limit of operations from now on, on the engine and on every backend."""
        for backend in self._backends.values():
            backend.set_timeout(timeout)

    def abort(self) -> None:
        """Fail everything under way on every rank and let go of the network."""
        self._finalizer.detach()
        self._own.abort("abort() was called")
        for backend in list(self._backends.values()):
            backend.abort()
        self._release()

    def shutdown(self) -> None:
        """Let what is under way end, and let go of the network."""
        self._finalizer.detach()
        self._own.close()
        for backend in list(self._backends.values()):
            backend.shutdown()
        self._release()

    def split_group(
        self,
        new_ranks: list[int],
        timeout: timedelta | None = None,
        opts: C10dBackend.Options | None = None,
        group_name: GroupName | None = None,
        group_desc: str | None = None,
        device_types: list[torch.device] | None = None,
    ) -> ProcessGroup | None:
        """A group of `new_ranks` of this one; None on a rank that is not among them. Every rank must call it."""
        self._splits += 1
        name = group_name or GroupName(f"{self._group_name}:split:{self._splits}")
        ranks = sorted(new_ranks)
        if self._parts.rank not in ranks:
            return None
        store = PrefixStore(f"{name}/", self._parts.store)
        made = self._parts.split(store, ranks, timeout or self._own.timeout, name)
        made._set_group_name(name)
        made._set_group_desc(group_desc or f"{self._group_desc}:split:{self._splits}")
        return made

    # Backends of the devices.

    @property
    def _device_types(self) -> list[torch.device]:
        named = other_devices.device_types(self)
        return [torch.device(kind) for kind in dict.fromkeys([*self._backends, *named])]

    def _get_backend(self, device: torch.device) -> C10dBackend:
        self._ready(device)
        return self._backends[device.type]

    def _ready(self, device: torch.device) -> None:
        if device.type in self._backends:
            return
        name = other_devices.backend_name(self, device.type)
        if name is None or name == "headway":
            raise other_devices.refuse(device)
        self._register(device.type, *other_devices.create(name, device.type, self._parts))

    def _register(self, device_type: str, kind: ProcessGroup.BackendType, backend: C10dBackend) -> None:
        self._backends[device_type] = backend
        for group in (self, self._plain):
            ProcessGroup._register_backend(group, torch.device(device_type), kind, backend)

    def _release(self) -> None:
        self._relays.close()
        # gloo's sockets go with its last reference. Until then it would answer a peer that is still there.
        self._backends.clear()
        if self._parts.recording is not None:
            self._parts.recording.close()

    def _rest(self, tensors: Sequence[Tensor]) -> ProcessGroup:
        """Where a call goes that the engine has no plan for."""
        if tensors and tensors[0].device.type != "cpu":
            self._ready(tensors[0].device)
        return self._plain

    def _relayed(self, work: Work, tensors: Sequence[Tensor]) -> Work:
        """`work` itself, or around one of gloo's a work whose callbacks stay off gloo's threads."""
        if isinstance(work, (CollectiveWork, JoinedWork, RelayedWork)):
            return work
        devices = {tensor.device.type for tensor in tensors} or set(self._backends)
        return RelayedWork(work, self._relays) if devices == {"cpu"} else work

    def _noted(
        self,
        kind: str,
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        timeout: timedelta,
        work: Work,
        *,
        peer: int | None = None,
    ) -> Work:
        """Give `work` to the flight recorder, if there is one, and return it as the user may have it."""
        work = self._relayed(work, [*inputs, *outputs])
        recording = self._parts.recording
        if recording is not None:
            limit = timeout if timeout > NO_TIMEOUT else self._own.timeout
            recording.watch(recording.begin(kind, inputs, outputs, limit.total_seconds(), peer=peer), work)
        return work

    # Collectives with a plan. `Any`: each stands for several overloads of torch (see `calls`).

    def allreduce(self, *args: Any, **kwargs: Any) -> Work:
        tensors, opts = calls.all_reduce(*args, **kwargs)
        refuse_average_of_integers("all_reduce", tensors, opts.reduceOp)
        work = self._own.all_reduce(tensors, opts.reduceOp, opts.timeout)
        done = work or self._rest(tensors).allreduce(tensors, opts)
        return self._noted("all_reduce", tensors, tensors, opts.timeout, done)

    def allreduce_coalesced(self, *args: Any, **kwargs: Any) -> Work:
        tensors, opts = calls.all_reduce_coalesced(*args, **kwargs)
        refuse_average_of_integers("all_reduce_coalesced", tensors, opts.reduceOp)
        work = self._own.all_reduce_coalesced(tensors, opts.reduceOp, opts.timeout)
        done = work or self._rest(tensors).allreduce_coalesced(tensors, opts)
        return self._noted("allreduce_coalesced", tensors, tensors, opts.timeout, done)

    def reduce(self, *args: Any, **kwargs: Any) -> Work:
        tensors, opts = calls.reduce(*args, **kwargs)
        refuse_average_of_integers("reduce", tensors, opts.reduceOp)
        work = self._own.reduce(tensors, opts.reduceOp, opts.rootRank, opts.timeout)
        done = work or self._rest(tensors).reduce(tensors, opts)
        return self._noted("reduce", tensors, tensors, opts.timeout, done)

    def broadcast(self, *args: Any, **kwargs: Any) -> Work:
        tensors, opts = calls.broadcast(*args, **kwargs)
        work = self._own.broadcast(tensors, opts.rootRank, opts.timeout)
        done = work or self._rest(tensors).broadcast(tensors, opts)
        return self._noted("broadcast", tensors, tensors, opts.timeout, done)

    def allgather(self, *args: Any, **kwargs: Any) -> Work:
        outputs, inputs, opts = calls.all_gather(*args, **kwargs)
        work = self._own.all_gather(outputs, inputs, opts.timeout)
        done = work or self._rest(inputs).allgather(outputs, inputs, opts)
        return self._noted("all_gather", inputs, _all_tensors(*outputs), opts.timeout, done)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: AllgatherOptions | None = None) -> Work:
        opts = opts or AllgatherOptions()
        work = self._own.all_gather_single([output], [input], opts.timeout)
        done = work or self._rest([input]).all_gather_single(output, input, opts)
        return self._noted("all_gather_single", [input], [output], opts.timeout, done)

    def all_gather_single_coalesced(
        self, output_lists: list[Tensor], input_list: list[Tensor], opts: AllgatherOptions | None = None
    ) -> Work:
        opts = opts or AllgatherOptions()
        work = self._own.all_gather_single(output_lists, input_list, opts.timeout)
        done = work or self._rest(input_list).all_gather_single_coalesced(output_lists, input_list, opts)
        return self._noted("all_gather_into_tensor_coalesced", input_list, output_lists, opts.timeout, done)

    def reduce_scatter(self, *args: Any, **kwargs: Any) -> Work:
        outputs, inputs, opts = calls.reduce_scatter(*args, **kwargs)
        refuse_average_of_integers("reduce_scatter", outputs, opts.reduceOp)
        work = self._own.reduce_scatter(outputs, inputs, opts.reduceOp, opts.timeout)
        done = work or self._rest(outputs).reduce_scatter(outputs, inputs, opts)
        return self._noted("reduce_scatter", _all_tensors(*inputs), outputs, opts.timeout, done)

    def reduce_scatter_single(
        self, outputTensor: Tensor, inputTensor: Tensor, opts: ReduceScatterOptions | None = None
    ) -> Work:
        opts = opts or ReduceScatterOptions()
        refuse_average_of_integers("reduce_scatter_tensor", [outputTensor], opts.reduceOp)
        work = self._own.reduce_scatter_single([outputTensor], [inputTensor], opts.reduceOp, opts.timeout)
        done = work or self._rest([inputTensor]).reduce_scatter_single(outputTensor, inputTensor, opts)
        return self._noted("reduce_scatter_single", [inputTensor], [outputTensor], opts.timeout, done)

    def reduce_scatter_single_coalesced(
        self, outputTensors: list[Tensor], inputTensors: list[Tensor], opts: ReduceScatterOptions | None = None
    ) -> Work:
        opts = opts or ReduceScatterOptions()
        refuse_average_of_integers("reduce_scatter_tensor", outputTensors, opts.reduceOp)
        work = self._own.reduce_scatter_single(outputTensors, inputTensors, opts.reduceOp, opts.timeout)
        done = work or self._rest(inputTensors).reduce_scatter_single_coalesced(outputTensors, inputTensors, opts)
        return self._noted("reduce_scatter_tensor_coalesced", inputTensors, outputTensors, opts.timeout, done)

    # torch's names before 2.13, which callers still use.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # gloo's. They are here because other devices' backends may have to be made first, and for the flight recorder.

    def barrier(self, *args: Any, **kwargs: Any) -> Work:
        """As gloo has it, also a barrier for the operations of this group that are under way."""
        pending = self._own.pending()
        work = self._plain.barrier(*args, **kwargs)
        if pending:
            work = JoinedWork([*pending, self._relayed(work, [])], tensors=[])
        return self._noted("barrier", [], [], UNSET, work)

    def gather(self, *args: Any, **kwargs: Any) -> Work:
        tensors = _all_tensors(args, kwargs)
        return self._noted("gather", tensors[-1:], tensors[:-1], UNSET, self._rest(tensors).gather(*args, **kwargs))

    def scatter(self, *args: Any, **kwargs: Any) -> Work:
        tensors = _all_tensors(args, kwargs)
        return self._noted("scatter", tensors[1:], tensors[:1], UNSET, self._rest(tensors).scatter(*args, **kwargs))

    def all_to_all_single(self, *args: Any, **kwargs: Any) -> Work:
        tensors = _all_tensors(args, kwargs)
        work = self._rest(tensors).all_to_all_single(*args, **kwargs)
        return self._noted("all_to_all_single", tensors[1:], tensors[:1], UNSET, work)

    def alltoall_base(self, *args: Any, **kwargs: Any) -> Work:
        return self.all_to_all_single(*args, **kwargs)

    def alltoall(self, *args: Any, **kwargs: Any) -> Work:
        tensors = _all_tensors(args, kwargs)
        half = len(tensors) // 2
        work = self._rest(tensors).alltoall(*args, **kwargs)
        return self._noted("all_to_all", tensors[half:], tensors[:half], UNSET, work)

    def send(self, tensors: list[Tensor], dstRank: int, tag: int) -> Work:
        work = self._rest(tensors).send(tensors, dstRank, tag)
        return self._noted("send", tensors, [], UNSET, work, peer=dstRank)

    def recv(self, tensors: list[Tensor], srcRank: int, tag: int) -> Work:
        work = self._rest(tensors).recv(tensors, srcRank, tag)
        return self._noted("recv", [], tensors, UNSET, work, peer=srcRank)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> Work:
        return self._relayed(self._rest(tensors).recv_anysource(tensors, tag), tensors)

    def allgather_coalesced(self, *args: Any, **kwargs: Any) -> Work:
        tensors = _all_tensors(args, kwargs)
        return self._relayed(self._rest(tensors).allgather_coalesced(*args, **kwargs), tensors)


def _all_tensors(*nested: object) -> list[Tensor]:
    """The tensors in lists of lists, in their order."""
    found: list[Tensor] = []
    for entry in nested:
        if isinstance(entry, Tensor):
            found.append(entry)
        elif isinstance(entry, dict):
            found += _all_tensors(*entry.values())
        elif isinstance(entry, (list, tuple)):
            found += _all_tensors(*entry)
    return found


def _end(own: OwnCollectives, relays: CompletionPool) -> None:
    """What is left to do for a group that nobody destroyed."""
    own.close()
    relays.close()


def _set_timeout(own: weakref.ref[OwnCollectives], timeout: timedelta) -> None:
    collectives = own()
    if collectives is not None:
        collectives.timeout = timeout
