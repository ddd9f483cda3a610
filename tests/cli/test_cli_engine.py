"""`headway engine`: what it serves, what it says, how it ends."""

from __future__ import annotations

import inspect
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headway.cli.engine import engine
from headway.cli.main import run
from headway.serving.gateway.config_file import load_config


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own; killed where the test has not ended it."""
    with subprocess.Popen(
        [sys.executable, "-m", "headway.cli.main", "engine", *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline() for _ in range(count)]


def test_two_replicas_answer_and_end_with_a_signal() -> None:
    with started("--replicas", "2", "--port", "0", "--speed", "100x", "--served-model-name", "m") as process:
        said = lines(process, 2)
        urls = [line.split()[0] for line in said]
        assert len(set(urls)) == 2
        for line, url in zip(said, urls, strict=True):
            assert re.fullmatch(r"\S+  m on a30, KV cache of \d+ tokens, contexts up to 32768\n", line)
            request = urllib.request.Request(
                f"{url}/completions", json.dumps({"prompt": "x", "max_tokens": 3}).encode()
            )
            with urllib.request.urlopen(request, timeout=10) as response:
                answer = json.load(response)
            assert (answer["model"], answer["choices"][0]["text"]) == ("m", "w1 w2 w3")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_a_taken_port_is_a_users_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run(["engine", "--port", str(port)]) == 2
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--speed", "10"], "--speed: '10' is no speed (for example 10x)"),
        (["--speed", "0x"], "--speed: '0x' is no speed"),
        (["--replicas", "0"], "--replicas: 0 is less than 1"),
        (["--port", "65535", "--replicas", "2"], "--port: 2 ports from 65535 on do not all exist"),
        (["--max-num-seqs", "0"], "--max-num-seqs: 0 is less than 1"),
        (["--max-model-len", "-1"], "--max-model-len: -1 is less than 0"),
        (["--output-tokens", "nan"], "--output-tokens: nan is less than 0"),
        (["--max-num-seqs", "256", "--max-num-batched-tokens", "128"], "128 tokens cannot hold 256"),
        (["--llama", "--device", "a30"], "--device: does not go with --llama"),
        (["--llama-threads", "2"], "--llama-threads: needs --llama"),
        (["--device", "abacus"], "unknown device 'abacus'"),
        (["--model", "llama-3-70b"], "leaves no room for a cache"),
        (["--max-model-len", "10000000"], "does not fit the KV cache"),
        (["--llama", "--llama-model", "/nowhere.gguf"], "--llama-model: cannot read /nowhere.gguf"),
        (["--llama", "--llama-model", "/dev/null"], "--llama-model: /dev/null is no GGUF file"),
    ],
)
def test_a_wrong_command_line_is_told_in_a_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--llama" in arguments:
        pytest.importorskip("xllamacpp")
    assert run(["engine", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("page", ["examples/gateway/config.yaml", "README.md"])
def test_the_examples_gateway_expects_the_engines_that_its_commands_start(page: str) -> None:
    path = Path("examples/gateway/config.yaml")
    (pool,) = load_config(path).pools
    started = re.findall(r"headway engine --device (\w+) --speed \d+x --port (\d+) &", Path(page).read_text())
    assert [(replica.device, replica.url) for replica in pool.replicas] == [
        (device, f"http://127.0.0.1:{port}") for device, port in started
    ]
    assert len(started) == 3
    assert inspect.signature(engine).parameters["port"].default == 8001  # where --llama --replicas 3 starts
