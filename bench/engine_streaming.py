"""What `headway engine` costs: processor time per streamed token and per prompt. `python -m bench.engine_streaming`.

Processor time of the engine's process, from /proc, over the tokens that came: other work on the machine does not count
into it. The client reads raw sockets in this process.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CASES = ((16, 2000, 1), (64, 500, 1), (256, 200, 1), (512, 100, 1), (512, 100, 8), (64, 1, 12_000))
"""Streams at once, tokens of each answer, words of each prompt; all on one engine."""
START_LIMIT_S = 30.0
READ_LIMIT_S = 60.0


@contextmanager
def engine() -> Iterator[tuple[int, int]]:
    """Process id and port of an engine that always has more to do than it can."""
    order = [sys.executable, "-m", "headway.cli.main", "engine", "--port", "0", "--speed", "1000x", "--device", "h100"]
    with subprocess.Popen(order, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, int(process.stdout.readline().split("/v1")[0].rsplit(":", 1)[1])
        finally:
            process.terminate()
            process.wait(START_LIMIT_S)


def cpu_s(pid: int) -> float:
    """Processor time of a process so far, user and system, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def stream(port: int, streams: int, tokens: int, words: int) -> int:
    """So many answers at once; the bytes that came."""
    received_bytes = 0
    with selectors.DefaultSelector() as selector:
        for number in range(streams):
            messages = [{"role": "user", "content": " ".join([str(number)] * words)}]
            body = json.dumps({"messages": messages, "max_tokens": tokens, "stream": True}).encode()
            client = socket.create_connection(("127.0.0.1", port), START_LIMIT_S)
            client.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            )
            client.setblocking(False)
            selector.register(client, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(READ_LIMIT_S)
            if not ready:
                raise TimeoutError(f"nothing came for {READ_LIMIT_S:g} s")
            for key, _ in ready:
                answering = key.fileobj
                assert isinstance(answering, socket.socket)
                data = answering.recv(2**20)
                received_bytes += len(data)
                if not data or data.endswith(b"0\r\n\r\n"):
                    selector.unregister(answering)
                    answering.close()
    return received_bytes


def main() -> None:
    """Measure the cases and print a table."""
    print("streams  tokens  prompt words  us per token  us per request  bytes per token")
    for streams, tokens, words in CASES:
        with engine() as (pid, port):
            stream(port, streams, tokens, words)  # warms up
            before_s = cpu_s(pid)
            received_bytes = stream(port, streams, tokens, words)
            used_us = 1e6 * (cpu_s(pid) - before_s)
        print(
            f"{streams:7}  {tokens:6}  {words:12}  {used_us / (streams * tokens):12.1f}  {used_us / streams:14.0f}"
            f"  {received_bytes / (streams * tokens):15.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
