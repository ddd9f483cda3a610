"""Makes the groups of the backend "headway": picks the address, meets the other ranks, starts engine and gloo."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from torch._C._distributed_c10d import PrefixStore, Store

from headway.collectives.chunking import chunk_from_setting
from headway.collectives.communicator import Communicator
from headway.decide.journal import Journal, Record
from headway.decide.journal_file import FileJournal
from headway.errors import UsageError
from headway.interleave import steering as interleave
from headway.settings import Settings, from_environment
from headway.torch.delegate import create_gloo
from headway.torch.engine import Engine
from headway.torch.generation import agree
from headway.torch.own import OwnCollectives
from headway.torch.peers import cluster_of, describe_self, exchange
from headway.torch.process_group import GroupParts, HeadwayProcessGroup
from headway.torch.recording import Dump, Recording
from headway.torch.store import StoreRendezvous, store_host
from headway.transport.lanes import Steering
from headway.transport.options import TcpOptions, local_address
from headway.transport.tcp import TcpTransport


class BackendOptions(Protocol):
    """What torch hands to a backend's creator."""

    store: Store
    group_rank: int
    group_size: int
    timeout: timedelta
    group_id: str
    global_ranks_in_group: list[int]


class _NoJournal:
    """For ranks that keep no journal."""

    dropped = 0

    def write(self, record: Record) -> None:
        """Nothing: only rank 0 writes, and only if the user named a file."""


class _JournalledEngine(Communicator):
    """A communicator that closes its journal file when it ends."""

    journal_file: FileJournal | None = None
    interleaver: interleave.Interleaver | None = None

    def close(self) -> None:
        """Leave the group, then close the file."""
        super().close()
        file, self.journal_file = self.journal_file, None
        if file is not None:
            if self.interleaver is not None:
                file.write(self.interleaver.record(group=self._group, rank=self._transport.rank))
            file.close()


def create_process_group(options: BackendOptions, backend_options: object = None) -> HeadwayProcessGroup:
    """The group that torch asks for. It takes no options of its own: settings come from `HEADWAY_` variables.

    Raises:
        UsageError: a setting or an option is wrong, or the address does not serve.
        DeadlineError: another rank did not come within the group's timeout.
    """
    if backend_options is not None:
        raise UsageError(
            f"the backend headway takes no pg_options, but got {type(backend_options).__name__}",
            hint="set HEADWAY_ environment variables instead",
        )
    ranks = list(options.global_ranks_in_group)
    return make_group(
        options.store,
        rank=options.group_rank,
        ranks=ranks or list(range(options.group_size)),
        timeout=options.timeout,
        name=options.group_id,
        label=f"{options.group_id}" if ranks else "default",
        settings=from_environment(os.environ),
    )


def make_group(
    store: Store, *, rank: int, ranks: Sequence[int], timeout: timedelta, name: str, label: str, settings: Settings
) -> HeadwayProcessGroup:
    """A group of the job's `ranks`, on this process as `rank` in the group.

    Args:
        store: the group's own part of the store.
        rank: of this process in the group.
        ranks: rank in the job of each rank in the group.
        timeout: of operations that bring none of their own, and of the start.
        name: the group's name in torch.
        label: the group's name in errors and in the journal.
        settings: the user's.
    """
    size = len(ranks)
    chunk_from_setting(settings.chunk)  # a wrong one is better told before the ranks meet
    interleave.check(settings)
    options = tcp_options(settings, store, timeout)
    address = _address(options)
    meeting = StoreRendezvous(store, "headway/meeting")
    generation = agree(meeting, rank=rank, size=size, group=label, timeout_s=timeout.total_seconds())
    store = PrefixStore(f"headway/{generation}", store)
    engine = None
    if size > 1:
        engine = _open_engine(store, rank=rank, size=size, label=label, settings=settings, options=options)
    try:
        own = OwnCollectives(engine, group=label, rank=rank, ranks=ranks, timeout=timeout)
        gloo = create_gloo(store, rank=rank, size=size, timeout=timeout, address=address, ranks=ranks, name=name)
    except BaseException:
        if engine is not None:
            engine.close()
        raise

    def split(store: Store, members: Sequence[int], timeout: timedelta, name: str) -> HeadwayProcessGroup:
        return make_group(
            store,
            rank=list(members).index(rank),
            ranks=[ranks[member] for member in members],
            timeout=timeout,
            name=name,
            label=name,
            settings=settings,
        )

    parts = GroupParts(
        store=store,
        rank=rank,
        size=size,
        timeout=timeout,
        name=name,
        ranks=list(ranks),
        own=own,
        gloo=gloo,
        recording=_recording(settings, label=label, rank=rank, ranks=ranks),
        split=split,
    )
    return HeadwayProcessGroup(parts)


_DUMPS: dict[str, Dump] = {}
"""By prefix. A process writes one dump for all its groups: the analyser reads one file per rank."""


def _recording(settings: Settings, *, label: str, rank: int, ranks: Sequence[int]) -> Recording | None:
    prefix = settings.flight_recorder
    if not prefix:
        return None
    dump = _DUMPS.setdefault(prefix, Dump(prefix, ranks[rank]))
    return Recording(dump, group=label, rank=rank, ranks=ranks)


def tcp_options(settings: Settings, store: Store, timeout: timedelta) -> TcpOptions:
    """The transport's options: the user's interface, else the address from which the store's host is reached."""
    towards = store_host(store) or os.environ.get("MASTER_ADDR", "")
    named = settings.interface or towards
    return TcpOptions(
        interface=settings.interface,
        towards=towards,
        ipv6=bool(named) and _only_ipv6(settings.interface, towards),
        congestion_control=settings.congestion_control,
        connect_timeout_s=timeout.total_seconds(),
    )


def _address(options: TcpOptions) -> str:
    """`local_address`, whose mistakes come from the variable here."""
    try:
        return local_address(options)
    except UsageError as error:
        raise UsageError(error.what, where="HEADWAY_INTERFACE", hint=error.hint) from None


def _only_ipv6(interface: str, towards: str) -> bool:
    """Whether an IPv4 address is not to be had on `interface` (or towards the host), so that IPv6 it is."""
    if not interface:
        try:
            kinds = {entry[0] for entry in socket.getaddrinfo(towards, None)}
        except OSError:
            return False
        return socket.AF_INET not in kinds
    if ":" in interface:
        return True
    try:
        local_address(TcpOptions(interface=interface))
    except UsageError as error:
        return "no IPv4 address" in error.what
    return False


_VARIABLES = {"interface": "HEADWAY_INTERFACE", "congestion_control": "HEADWAY_CONGESTION_CONTROL"}
"""The transport's option -> what the user of this backend sets it with."""


def _open_engine(store: Store, *, rank: int, size: int, label: str, settings: Settings, options: TcpOptions) -> Engine:
    rendezvous = StoreRendezvous(store, "headway/engine")
    mine = describe_self(_address(options))
    peers = exchange(rendezvous, rank=rank, size=size, mine=mine, timeout_s=options.connect_timeout_s)
    file = FileJournal(settings.journal) if settings.journal and rank == 0 else None
    journal: Journal = file if file is not None else _NoJournal()
    steering: Steering | None = None
    try:
        steering = interleave.steering_from(settings)
        transport = TcpTransport(
            rank=rank, size=size, rendezvous=rendezvous, options=options, group=label, steering=steering
        )
    except BaseException as error:
        if file is not None:
            file.close()
        if steering is not None:
            steering.close()
        if isinstance(error, UsageError) and error.where in _VARIABLES:
            raise UsageError(error.what, where=_VARIABLES[error.where], hint=error.hint) from None
        raise
    try:
        engine = _JournalledEngine(
            transport, group=label, cluster=cluster_of(peers), settings=settings, journal=journal
        )
    except BaseException:
        transport.close()
        if file is not None:
            file.close()
        raise
    engine.journal_file = file
    engine.interleaver = steering if isinstance(steering, interleave.Interleaver) else None
    return engine
