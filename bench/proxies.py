"""The proxies that `bench.gateway_overhead` compares: how each is started in front of some engines, and what it costs.

Peers are never part of this project: they are found on PATH or where a flag says. One that is missing is left out, and
the table says so.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headway.errors import HeadwayError, UsageError

START_LIMIT_S = 120.0
"""litellm's proxy takes half a minute until it answers."""
STOP_LIMIT_S = 10.0
KEY = "sk-bench"
PORTS = range(12_000, 32_000)
"""Linux takes clients' ports from 32,768 on, and there are thousands of them here."""


@dataclass(frozen=True)
class Proxy:
    """A proxy that can be started.

    Attributes:
        name: in tables.
        version: what it says of itself.
        argv: its command line.
        environment: what it needs beside ours.
    """

    name: str
    version: str
    argv: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)


NGINX = """\
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx.err warn;
worker_rlimit_nofile 20000;
events {{ worker_connections 16384; multi_accept on; }}
http {{
  access_log off;
  keepalive_requests 100000000;
  client_max_body_size 16m;
  client_body_buffer_size 1m;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  upstream engines {{
{servers}
    keepalive 4096;
    keepalive_requests 100000000;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://engines;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
"""


def nginx(command: str, port: int, engines: Sequence[int], folder: Path) -> Proxy:
    """As a plain proxy that takes its engines in turn."""
    servers = "\n".join(f"    server 127.0.0.1:{engine};" for engine in engines)
    file = folder / "nginx.conf"
    file.write_text(NGINX.format(folder=folder, port=port, servers=servers))
    said = subprocess.run([command, "-v"], capture_output=True, text=True, check=False, timeout=10)
    found = re.search(r"nginx/\S+", said.stderr + said.stdout)
    version = found.group().replace("/", " ") if found else "nginx"
    return Proxy("nginx", version, (command, "-c", str(file), "-e", str(folder / "nginx.err")))


def _package_version(command: str, package: str) -> str:
    """Of a Python console script, asked of the Python that it runs with."""
    path = shutil.which(command) or command
    with open(path, "rb") as file:
        first = file.readline().decode(errors="replace")
    interpreter = first[2:].strip() if first.startswith("#!") else sys.executable
    code = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    said = subprocess.run([*interpreter.split(), "-c", code], capture_output=True, text=True, check=False, timeout=60)
    return f"{package} {said.stdout.strip()}" if said.returncode == 0 else package


def vllm_router(command: str, port: int, engines: Sequence[int], folder: Path) -> Proxy:
    """vLLM's router (Rust), engines in turn."""
    urls = [f"http://127.0.0.1:{engine}" for engine in engines]
    flags = ("--policy", "round_robin", "--log-level", "error", "--prometheus-port", str(free_ports(1)[0]))
    argv = (command, "--host", "127.0.0.1", "--port", str(port), *flags, "--worker-urls", *urls)
    return Proxy("vllm-router", _package_version(command, "vllm-router"), argv)


def sglang_router(command: str, port: int, engines: Sequence[int], folder: Path) -> Proxy:
    """SGLang's router (Rust), engines in turn."""
    urls = [f"http://127.0.0.1:{engine}" for engine in engines]
    flags = ("--policy", "round_robin", "--log-level", "error", "--prometheus-port", str(free_ports(1)[0]))
    argv = (command, "launch", "--host", "127.0.0.1", "--port", str(port), *flags, "--worker-urls", *urls)
    return Proxy("sglang-router", _package_version(command, "sglang-router"), argv)


def litellm(command: str, port: int, engines: Sequence[int], folder: Path) -> Proxy:
    """litellm's proxy (Python), one worker, engines at random, which is its default."""
    models = [
        {
            "model_name": "m",
            "litellm_params": {"model": "openai/m", "api_base": f"http://127.0.0.1:{engine}/v1", "api_key": "none"},
        }
        for engine in engines
    ]
    file = folder / "litellm.json"  # JSON is YAML
    file.write_text(json.dumps({"model_list": models, "general_settings": {"master_key": KEY}}))
    argv = (command, "--config", str(file), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1")
    local = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_TELEMETRY": "False"}
    return Proxy("litellm", _package_version(command, "litellm"), argv, local)


PEERS: dict[str, tuple[Callable[[str, int, Sequence[int], Path], Proxy], str]] = {
    "nginx": (nginx, "nginx"),
    "vllm-router": (vllm_router, "vllm-router"),
    "sglang-router": (sglang_router, "sglang-router"),
    "litellm": (litellm, "litellm"),
}
"""How each is set up, and its command."""


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 on which nobody listens now, outside of those that the system gives to clients."""
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        for port in random.sample(PORTS, len(PORTS)):
            held = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                held.bind(("127.0.0.1", port))
                found.append(port)
            if len(found) == count:
                return found
    raise HeadwayError(f"no {count} ports are free")


def children() -> dict[int, list[int]]:
    """All processes by their parents."""
    found: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                after_name = (folder / "stat").read_text().rpartition(")")[2].split()
                if after_name[0] != "Z":
                    found.setdefault(int(after_name[1]), []).append(int(folder.name))
    return found


def prioritize(pid: int, nice: int) -> None:
    """Give a process's session this niceness among all sessions. OSError where that is not allowed.

    Linux weighs sessions before it looks at the niceness of their processes (`sched(7)`, autogroups), so that `nice`
    alone changes nothing among what is started in sessions of its own.
    """
    file = Path(f"/proc/{pid}/autogroup")
    if file.exists():
        file.write_text(str(nice))
    os.setpriority(os.PRIO_PROCESS, pid, nice)


class Running:
    """A process and its children, in a session of their own, on one core or on any (None); `nice` is the session's."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        core: int | None,
        environment: dict[str, str],
        log: Path,
        nice: int = 0,
    ) -> None:
        self.name, self.log = name, log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [*(("taskset", "-c", str(core)) if core is not None else ()), *argv],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **environment},
            )
        if nice:
            prioritize(self.process.pid, nice)

    def pids(self) -> list[int]:
        """It and all that it has started, whatever sessions these made for themselves."""
        known = children()
        found = [self.process.pid] if self.process.poll() is None else []
        for pid in found:
            found += known.get(pid, ())
        return found

    def cpu_s(self) -> float:
        """Processor time so far, children included."""
        ticks = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += int(after_name[11]) + int(after_name[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def rss_MB(self) -> float:
        """Memory, 1e6 bytes, children included."""
        pages = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def signal(self, number: signal.Signals) -> None:
        """To all of them."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def ended(self) -> str:
        """The end of what it wrote."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no output"

    def stop(self) -> None:
        """End them: asked first, then killed."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        until_s = time.monotonic() + STOP_LIMIT_S
        while self.pids() and time.monotonic() < until_s:
            self.process.poll()
            time.sleep(0.05)
        self.signal(signal.SIGKILL)
        self.process.wait()


def answers(port: int) -> bool:
    """Whether a streamed request through this port comes back whole."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]})
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
    try:
        connection.request("POST", "/v1/chat/completions", body, headers)
        response = connection.getresponse()
        return response.status == 200 and b"[DONE]" in response.read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def wait_until_up(running: Running, port: int) -> None:
    """HeadwayError when it ends, or does not answer within the limit."""
    until_s = time.monotonic() + START_LIMIT_S
    while not answers(port):
        if running.process.poll() is not None:
            raise HeadwayError(f"{running.name} ended at once: {running.ended()}")
        if time.monotonic() > until_s:
            raise HeadwayError(f"{running.name} answers nothing after {START_LIMIT_S:.0f} s: {running.ended()}")
        time.sleep(0.2)


@contextlib.contextmanager
def started(proxy: Proxy, port: int, *, core: int, folder: Path, nice: int = 0) -> Iterator[Running]:
    """The proxy, once it answers."""
    log = folder / f"{proxy.name.replace(' ', '-')}.log"
    running = Running(proxy.name, proxy.argv, core=core, environment=proxy.environment, log=log, nice=nice)
    try:
        wait_until_up(running, port)
        yield running
    finally:
        running.stop()


def command_of(name: str, given: str | None) -> str | None:
    """Where a peer's command is; None when it is missing. UsageError when the user named one that isn't there."""
    if given is not None:
        if shutil.which(given) is None:
            raise UsageError(f"{given} is no command", where=f"--{name}")
        return given
    return shutil.which(PEERS[name][1])
