"""Replicas from files on disk."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from contextlib import aclosing
from pathlib import Path

import pytest

from headway.errors import UsageError
from headway.serving.gateway.discovery.build import source_of
from headway.serving.gateway.discovery.file import FileSource, read_replicas
from headway.serving.gateway.discovery.options import FileOptions, ReplicaOptions, StaticOptions

LIMIT_S = 10.0


def _write(path: Path, text: str) -> None:
    """As editors and Kubernetes do it: another file is put in its place."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    os.replace(fresh, path)


def test_a_list_of_addresses_and_of_mappings(tmp_path: Path) -> None:
    path = tmp_path / "replicas.yaml"
    path.write_text(
        "- http://10.0.0.1:8000/v1/\n- {url: 'https://engine.example', name: b, models: [m], device: l20, speed: 2, "
        "cache_tokens: 1000}\n"
    )
    first, second = read_replicas(path)
    assert (first.name, first.url, first.models) == ("10.0.0.1:8000", "http://10.0.0.1:8000", ())
    assert (second.name, second.url, second.models) == ("b", "https://engine.example", ("m",))
    assert (second.device, second.speed, second.cache_tokens) == ("l20", 2.0, 1000)


def test_json_under_a_key(tmp_path: Path) -> None:
    path = tmp_path / "replicas.json"
    path.write_text(json.dumps({"replicas": [{"url": "http://h:1"}]}))
    assert [spec.url for spec in read_replicas(path)] == ["http://h:1"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no list"),
        ("replicas: 3", "no list"),
        ("- url: [", ":1: not YAML"),
        ("- url: ftp://h", "replicas.0.url: 'ftp://h' is not an address"),
        ("- url: http://h:1\n  spede: 2", "replicas.0.spede"),
        ("- http://h:1\n- http://h:1", "two replicas are named 'h:1'"),
        ("- http://h:99999", "replicas.0.url"),
        ("- url: http://user:secret@h:1", "has a name or password: use engine_key_env"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "replicas.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_replicas(path)
    assert str(path) in str(caught.value)
    assert named in str(caught.value)


def test_no_file_at_the_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the replicas"):
        FileSource(FileOptions(kind="file", path=tmp_path / "none.yaml"))


def test_changes_are_followed_and_half_a_file_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "replicas.yaml"
    _write(path, "- http://h:1\n")
    source = source_of(FileOptions(kind="file", path=path, poll_s=0.02))

    async def follow() -> None:
        async with aclosing(source.watch()) as updates:

            async def names() -> list[str]:
                return [spec.name for spec in await asyncio.wait_for(anext(updates), LIMIT_S)]

            assert await names() == ["h:1"]
            _write(path, "- http://h:1\n- http://h:2\n")
            assert await names() == ["h:1", "h:2"]
            path.write_text("- http://h:1\n- {url: 'http")  # half written, and it stays so for a while
            waiting = asyncio.create_task(names())
            await asyncio.sleep(0.2)
            os.utime(path)  # touched again, with the same half
            await asyncio.sleep(0.2)
            assert not waiting.done()
            path.write_text("- http://h:3\n")
            assert await waiting == ["h:3"]
            path.unlink()
            waiting = asyncio.create_task(names())
            await asyncio.sleep(0.1)
            assert not waiting.done()
            _write(path, "[]")
            assert await waiting == []

    with caplog.at_level(logging.WARNING):
        asyncio.run(follow())
    told = [record.getMessage() for record in caplog.records]
    assert len([line for line in told if "not YAML" in line and "the 2 replicas from before stay" in line]) == 1
    assert len([line for line in told if "cannot read the replicas" in line]) == 1
    assert len([line for line in told if "can be read again" in line]) == 2


def test_a_static_list_is_given_once(tmp_path: Path) -> None:
    source = source_of(StaticOptions(replicas=(ReplicaOptions(url="http://h:1"),)))

    async def follow() -> None:
        async with aclosing(source.watch()) as updates:
            assert [spec.name for spec in await asyncio.wait_for(anext(updates), LIMIT_S)] == ["h:1"]
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(updates), 0.05)

    asyncio.run(follow())
