"""Options, and which address a choice of interface means."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from headway.errors import UsageError
from headway.transport.options import TcpOptions, local_address
from headway.transport.sockets import begin_connect, listen_on, published

LOOPBACK = "lo"


def test_an_address_is_itself_and_nothing_is_loopback() -> None:
    assert local_address(TcpOptions(interface="10.1.2.3")) == "10.1.2.3"
    assert local_address(TcpOptions(interface="fd00::3")) == "fd00::3"
    assert local_address(TcpOptions()) == "127.0.0.1"
    assert local_address(TcpOptions(ipv6=True)) == "::1"


@pytest.mark.skipif(
    sys.platform != "linux" or LOOPBACK not in [name for _, name in socket.if_nameindex()],
    reason="needs Linux with an interface lo",
)
def test_an_interface_stands_for_its_address() -> None:
    assert local_address(TcpOptions(interface=LOOPBACK)) == "127.0.0.1"
    if not Path("/proc/net/if_inet6").exists():
        pytest.skip("the kernel has no IPv6")
    assert local_address(TcpOptions(interface=LOOPBACK, ipv6=True)) == "::1"


def test_the_address_on_the_way_to_a_host() -> None:
    assert local_address(TcpOptions(towards="127.0.0.1")) == "127.0.0.1"
    assert local_address(TcpOptions(towards="localhost")) == "127.0.0.1"


def test_mistakes_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="no network interface 'eth99'"):
        local_address(TcpOptions(interface="eth99"))
    with pytest.raises(UsageError, match=r"no way towards 'host\.invalid'"):
        local_address(TcpOptions(towards="host.invalid"))
    with pytest.raises(UsageError, match=r"cannot listen on 192\.0\.2\.1"):
        listen_on("192.0.2.1", TcpOptions())
    with pytest.raises(UsageError, match="connect_timeout_s is 0"):
        TcpOptions(connect_timeout_s=0)
    with pytest.raises(UsageError, match="max_message_bytes is 0"):
        TcpOptions(max_message_bytes=0)


def test_a_scope_is_not_published() -> None:
    assert published("fe80::1%eth0") == "fe80::1"
    assert published("10.0.0.1") == "10.0.0.1"


@pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="this system cannot limit unsent bytes")
@pytest.mark.parametrize(("own", "limit"), [("127.0.0.1", 0), ("127.0.0.2", 100_000)])
def test_unsent_bytes_are_limited_only_towards_other_addresses(own: str, limit: int) -> None:
    options = TcpOptions(unsent_bytes=100_000)
    with listen_on("127.0.0.1", options) as listening:
        try:
            sock, code = begin_connect(own, "127.0.0.1", listening.getsockname()[1], options)
        except OSError as error:
            pytest.skip(f"no second loopback address: {error}")
        with sock:
            assert code == 0
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == limit
