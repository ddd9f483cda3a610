"""Small programs that the tests run on a lab's hosts."""

from __future__ import annotations

import json
import subprocess
import sys

from headway.lab.lab import Lab, LabHost

RECEIVER = """
import json, socket, sys, time
listener = socket.create_server(("::", 7000), family=socket.AF_INET6, dualstack_ipv6=True)
print("ready", flush=True)
peer, _ = listener.accept()
count, begun = 0, None
while data := peer.recv(1 << 20):
    begun = begun or time.monotonic()
    count += len(data)
    ended = time.monotonic()
print(json.dumps(count / max(ended - begun, 1e-9)), flush=True)
"""
SENDER = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 7000), timeout=10) as peer:
    until = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < until:
        peer.sendall(bytes(1 << 16))
"""
ECHO = """
import socket
listener = socket.create_server(("0.0.0.0", 7000))
print("ready", flush=True)
peer, _ = listener.accept()
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while data := peer.recv(1):
    peer.send(data)
"""
PING = """
import json, socket, sys, time
with socket.create_connection((sys.argv[1], 7000), timeout=10) as peer:
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    trips = []
    for _ in range(15):
        begun = time.perf_counter()
        peer.send(b"x")
        peer.recv(1)
        trips.append(time.perf_counter() - begun)
print(json.dumps(min(trips)))
"""


def _pair(lab: Lab, server: LabHost, server_code: str, client: LabHost, client_code: str, *arguments: str) -> list[str]:
    """Run both; what each printed after its start."""
    python = [sys.executable, "-I", "-S", "-c"]
    with lab.popen(server.name, [*python, server_code], stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"ready\n"
        with lab.popen(client.name, [*python, client_code, *arguments], stdout=subprocess.PIPE) as second:
            said = second.communicate(timeout=60)[0]
            assert second.returncode == 0
        return [first.communicate(timeout=60)[0].decode(), said.decode()]


def throughput_Bps(lab: Lab, source: LabHost, sink: LabHost, *, duration_s: float = 1.5, ipv6: bool = False) -> float:
    """Payload rate of one TCP flow, as its receiver sees it."""
    address = sink.address6 if ipv6 else sink.address
    rate: float = json.loads(_pair(lab, sink, RECEIVER, source, SENDER, address, str(duration_s))[0])
    return rate


def round_trip_s(lab: Lab, source: LabHost, sink: LabHost) -> float:
    """The shortest of some round trips."""
    trip: float = json.loads(_pair(lab, sink, ECHO, source, PING, sink.address)[1])
    return trip
