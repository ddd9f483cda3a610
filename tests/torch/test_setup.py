"""What a group is built from: the store, the address, the peers, the settings."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore

from headway.errors import DeadlineError, UsageError
from headway.settings import Settings
from headway.torch.backend import create_process_group, tcp_options
from headway.torch.peers import NOMINAL_Bps, Peer, cluster_of, describe_self, exchange
from headway.torch.store import StoreRendezvous, store_host
from headway.transport.options import local_address

LIMIT = timedelta(seconds=7)


def test_what_one_puts_another_gets() -> None:
    store = HashStore()
    threading.Timer(0.05, StoreRendezvous(store, "a").put, ["key", b"\x00\xff"]).start()
    assert StoreRendezvous(store, "a").get("key", 5.0) == b"\x00\xff"
    with pytest.raises(DeadlineError, match=r"'key'.*0\.05 s"):
        StoreRendezvous(store, "b").get("key", 0.05)


def test_a_get_does_not_hold_up_the_store() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    waiting = threading.Thread(target=lambda: StoreRendezvous(store, "a").get("late", 20.0))
    waiting.start()
    time.sleep(0.05)
    StoreRendezvous(store, "a").put("late", b"x")  # would wait for ever behind a `get` in the store
    waiting.join(10.0)
    assert not waiting.is_alive()


def test_the_address_is_the_one_towards_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    nested = PrefixStore("a", PrefixStore("b", store))
    assert store_host(nested) == "localhost"
    assert store_host(HashStore()) == ""
    assert local_address(tcp_options(Settings(), nested, LIMIT)) == "127.0.0.1"
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    options = tcp_options(Settings(congestion_control="reno"), HashStore(), LIMIT)
    assert (options.towards, options.congestion_control, options.connect_timeout_s) == ("127.0.0.1", "reno", 7.0)
    assert local_address(tcp_options(Settings(interface="lo"), HashStore(), LIMIT)) == "127.0.0.1"
    assert local_address(tcp_options(Settings(interface="::1"), HashStore(), LIMIT)) == "::1"
    monkeypatch.setenv("MASTER_ADDR", "::1")
    assert tcp_options(Settings(), HashStore(), LIMIT).ipv6


def test_an_unknown_interface_is_the_users_mistake() -> None:
    with pytest.raises(UsageError, match="nosuch0"):
        local_address(tcp_options(Settings(interface="nosuch0"), HashStore(), LIMIT))


def peers_of(*described: tuple[str, str, float]) -> list[Peer]:
    return [Peer(host, address, rate_Bps) for host, address, rate_Bps in described]


def test_hosts_are_told_apart_by_name_and_address() -> None:
    cluster = cluster_of(peers_of(("a", "10.0.0.1", 1e9), ("a", "10.0.0.1", 1e9), ("b", "10.0.0.2", 0.0)))
    assert [host.name for host in cluster.hosts] == ["a", "b"]
    assert cluster.host_of == (0, 0, 1)
    assert cluster.hosts[1].uplink_Bps == 1e9  # unknown: as the others
    same_name = cluster_of(peers_of(("pod", "10.0.0.1", 0.0), ("pod", "10.0.0.2", 0.0)))
    assert [host.name for host in same_name.hosts] == ["10.0.0.1", "10.0.0.2"]
    assert same_name.hosts[0].uplink_Bps == NOMINAL_Bps


def test_ranks_of_one_machine_count_as_hosts() -> None:
    cluster = cluster_of(peers_of(*[("a", "127.0.0.1", 0.0)] * 3))
    assert cluster.world_size == 3
    assert cluster.host_of == (0, 1, 2)


def test_peers_meet_in_the_store() -> None:
    rendezvous = StoreRendezvous(HashStore(), "x")
    mine = describe_self("127.0.0.1")
    rendezvous.put("peer/1", b'{"host": "b", "address": "10.0.0.2", "rate_Bps": 0}')
    with pytest.raises(UsageError, match=r"HEADWAY_INTERFACE: rank 0 listens on 127.0.0.1"):
        exchange(rendezvous, rank=0, size=2, mine=mine, timeout_s=5.0)
    with pytest.raises(DeadlineError, match="peer/2"):
        exchange(rendezvous, rank=0, size=3, mine=mine, timeout_s=0.05)


@dataclass
class Options:
    store: Store = field(default_factory=HashStore)
    group_rank: int = 0
    group_size: int = 1
    timeout: timedelta = LIMIT
    group_id: str = "g"
    global_ranks_in_group: list[int] = field(default_factory=list)


def test_options_of_other_backends_are_refused() -> None:
    with pytest.raises(UsageError, match="takes no pg_options, but got _Options"):
        create_process_group(Options(), dist.ProcessGroupGloo._Options())  # type: ignore[attr-defined]


def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_POLICY", "fastest")
    with pytest.raises(UsageError, match="HEADWAY_POLICY"):
        create_process_group(Options())


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("HEADWAY_INTERFACE", "nosuch0", "no network interface 'nosuch0'"),
        ("HEADWAY_INTERFACE", "192.0.2.1", "cannot listen on 192.0.2.1"),
        ("HEADWAY_CONGESTION_CONTROL", "nosuch", "congestion control 'nosuch'"),
        ("HEADWAY_CHUNK", "0B", r"'0B' is too small \(at least 4 KiB\)"),
        ("HEADWAY_CHUNK", "4000B", "'4000B' is too small"),
        ("HEADWAY_CHUNK", "65536", "'65536' has no unit"),
    ],
)
def test_a_wrong_value_is_reported_under_its_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, says: str
) -> None:
    monkeypatch.setenv(name, text)
    store = HashStore()

    def make(rank: int) -> None:
        create_process_group(Options(store=store, group_rank=rank, group_size=2))

    with ThreadPoolExecutor(2) as threads:
        for made in [threads.submit(make, rank) for rank in range(2)]:
            with pytest.raises(UsageError, match=rf"^{name}: {says}"):
                made.result()
