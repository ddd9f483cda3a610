"""The backends of the other devices in a string such as `cpu:headway,cuda:nccl`.

torch lets a group written in Python take the whole group over, and drops the backends that it would have made for
other devices. So this makes them, when the first tensor of such a device comes: only then is known which they are.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend as C10dBackend
from torch._C._distributed_c10d import PrefixStore, Store, _DistributedBackendOptions
from torch.distributed import Backend, ProcessGroup, ProcessGroupGloo

from headway.errors import UsageError


class GroupFacts(Protocol):
    """What a backend is made from."""

    @property
    def store(self) -> Store: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def timeout(self) -> timedelta: ...
    @property
    def ranks(self) -> list[int]: ...
    @property
    def name(self) -> str: ...


def _named(group: ProcessGroup) -> dict[str, str] | None:
    """The backend that the user named for each device; None while torch has not entered the group into its books."""
    config = dist.distributed_c10d._world.pg_backend_config.get(group)
    return None if config is None else dict(pair.split(":", 1) for pair in str(config).split(","))


def device_types(group: ProcessGroup) -> list[str]:
    """The devices that the user named a backend for."""
    return list(_named(group) or ())


def backend_name(group: ProcessGroup, device_type: str) -> str | None:
    """The backend that the user named for `device_type` when the group was made; None for no such device.

    With `device_id` torch asks before it knows the group itself; the answer is then its default for the device.
    """
    named = _named(group)
    return Backend.default_device_backend_map.get(device_type) if named is None else named.get(device_type)


def create(name: str, device_type: str, group: GroupFacts) -> tuple[ProcessGroup.BackendType, C10dBackend]:
    """Make backend `name` for `device_type`, on a store prefix of its own. UsageError if it is not to be had."""
    store = PrefixStore(f"headway/{device_type}/", group.store)
    if name == Backend.GLOO:
        return ProcessGroup.BackendType.GLOO, ProcessGroupGloo(store, group.rank, group.size, group.timeout)
    if name == Backend.NCCL and dist.is_nccl_available():
        return ProcessGroup.BackendType.NCCL, _nccl(store, group)
    plugin = Backend._plugins.get(name.upper())
    if plugin is None or name == "headway":
        raise UsageError(
            f"no backend {name!r} for {device_type} tensors beside headway", hint="cpu:headway,cuda:nccl works"
        )
    if plugin.extended_api:
        options = _DistributedBackendOptions()
        options.store, options.timeout = store, group.timeout
        options.group_rank, options.group_size = group.rank, group.size
        options.group_id, options.global_ranks_in_group = group.name, group.ranks
        made = plugin.creator_fn(options, None)
    else:
        made = plugin.creator_fn(store, group.rank, group.size, group.timeout)
    if not isinstance(made, C10dBackend):
        raise UsageError(f"backend {name!r} wants the whole group and cannot serve {device_type} beside headway")
    return ProcessGroup.BackendType.CUSTOM, made


def _nccl(store: Store, group: GroupFacts) -> C10dBackend:
    from torch.distributed import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = group.timeout
    options.global_ranks_in_group = group.ranks
    options.group_name = dist.GroupName(group.name)
    backend = ProcessGroupNCCL(store, group.rank, group.size, options)
    backend._set_sequence_number_for_group()
    return backend


def refuse(device: torch.device) -> RuntimeError:
    """The error for a tensor on a device that the group has no backend for; torch's own words."""
    return RuntimeError(f"No backend type associated with device type {device.type}")
