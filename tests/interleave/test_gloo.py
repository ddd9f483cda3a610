"""Gloo's sockets among all the others of a process."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest
import torch
import torch.distributed as dist

from headway.errors import UsageError
from headway.interleave.sockets import _established, adopt_gloo, gloo_sockets
from tests.torch.world import run_world

pytestmark = pytest.mark.ranks


def look() -> tuple[int, int, bool, str, int, list[str]]:
    """Sockets found, others there are, whether those between two ends of our own stayed out, and how it went on."""
    before = len(os.listdir("/proc/self/fd"))
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as mine,
        server.accept()[0],
    ):
        found = gloo_sockets()
        ports = {connection.getsockname()[1] for connection in found}
        apart = mine.getsockname()[1] not in ports
        for connection in found:
            connection.detach()
        others = len(_established()) - len(found)
        background = adopt_gloo(actuator="pacing")
        for _ in range(5):
            time.sleep(0.1)
            tensor = torch.ones(200_000)
            dist.all_reduce(tensor)
            assert tensor[0] == dist.get_world_size()
        sentence = background.report.sentence
    if dist.get_rank() == 0:
        background.close()
    # Another rank leaves it to the end of the group, which the thread must neither hold up nor outlive.
    dist.destroy_process_group()
    time.sleep(0.05)
    background.close()
    left = len(os.listdir("/proc/self/fd")) - before
    return len(found), others, apart, sentence, left, [thread.name for thread in threading.enumerate()]


def test_gloo_s_sockets_are_found_and_no_others() -> None:
    for found, others, apart, sentence, left, threads in run_world(3, look, backend="gloo"):
        assert found == 2
        assert others >= 3
        assert apart
        assert "iterations seen" in sentence
        assert left <= 0
        assert threads == ["MainThread"]


def ask_headway() -> str:
    with pytest.raises(UsageError) as caught:
        adopt_gloo(actuator="pacing")
    return str(caught.value)


def test_another_backend_is_refused() -> None:
    assert set(run_world(2, ask_headway)) == {"adopt_gloo: the group's backend is headway, not gloo"}


def test_streams_are_not_for_gloo() -> None:
    with pytest.raises(UsageError, match="another library"):
        adopt_gloo(actuator="streams")
