"""The gloo group inside: everything that the engine has no plan for."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import GroupName, ProcessGroupGloo

GLOO_THREADS = 2
"""What torch gives its own gloo groups."""


class InnerGloo(ProcessGroupGloo):
    """gloo that tells the group around it when torch changes the time limit.

    torch does that on the backend that the group shows for its device, and only if it is a gloo.
    """

    on_timeout: Callable[[timedelta], None] | None = None

    def _set_default_timeout(self, timeout: timedelta) -> None:
        super()._set_default_timeout(timeout)
        if self.on_timeout is not None:
            self.on_timeout(timeout)

    def set_timeout(self, timeout: timedelta) -> None:
        """As torch calls it on any backend."""
        self._set_default_timeout(timeout)


def create_gloo(
    store: Store, *, rank: int, size: int, timeout: timedelta, address: str, ranks: Sequence[int], name: str
) -> InnerGloo:
    """A gloo group on `store`, listening on `address` unless GLOO_SOCKET_IFNAME says otherwise.

    Args:
        store: shared by the ranks of the group.
        rank: of this process in the group.
        size: number of ranks.
        timeout: of each operation.
        address: where to listen; empty: gloo's own choice.
        ranks: ranks of the job that make up the group.
        name: the group's name in torch.
    """
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # torch's stub lacks it
    if address and not os.environ.get("GLOO_SOCKET_IFNAME"):
        options._devices = [ProcessGroupGloo.create_device(hostname=address)]
    else:
        options._devices = [ProcessGroupGloo.create_default_device()]
    options._threads = GLOO_THREADS
    options._timeout = timeout
    gloo = InnerGloo(PrefixStore("headway/gloo", store), rank, size, options)
    gloo.options.global_ranks_in_group = list(ranks)
    gloo.options.group_name = GroupName(name)
    gloo._set_sequence_number_for_group()
    return gloo
