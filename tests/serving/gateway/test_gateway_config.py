"""The gateway's file: what is wrong in it is said with file, line and field; and docs/gateway.md has every field."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import trustme
from pydantic import BaseModel

from headway.errors import UsageError
from headway.serving.gateway import config as models
from headway.serving.gateway.check import checked
from headway.serving.gateway.config import Config, Pool
from headway.serving.gateway.config_file import load_config, load_keys, parse_config

REPLICAS = "pools:\n  - policy: lmetric\n    replicas: [http://127.0.0.1:8001]\n"

WRONG: dict[str, tuple[str, str]] = {
    "empty": ("", "f.yaml: is empty (see docs/gateway.md"),
    "not YAML": ("pools: [", "f.yaml:1: "),
    "a list": ("- a", "f.yaml:1: must be a mapping of fields"),
    "no pools": ("listen: {port: 1}", "f.yaml:1: pools: is missing"),
    "an unknown field": (REPLICAS + "limts: {}", "f.yaml:4: limts: there is no such field (did you mean limits?)"),
    "an unknown field below": (REPLICAS + "    polcy: x", "f.yaml:4: pools.0.polcy: there is no such field (did you"),
    "a field twice": ("listen: {}\nlisten: {}", "f.yaml: 'listen' in line 2 is there already in line 1"),
    "a port too high": (REPLICAS + "listen:\n  port: 99999", "f.yaml:5: listen.port: "),
    "a time of 0": (REPLICAS + "timeouts: {stall_s: 0}", "f.yaml:4: timeouts.stall_s: "),
    "times against each other": (REPLICAS + "timeouts: {first_byte_s: 9, total_s: 5}", "first_byte_s 9 is more than"),
    "no replicas": ("pools: [{policy: lmetric}]", "f.yaml:1: pools.0: a pool needs replicas or discovery"),
    "a bad address": ("pools:\n- replicas: [a:1]", "f.yaml:2: pools.0.replicas.0.url: 'a:1' is not an address"),
    "two of a name": ("pools:\n- replicas: [http://a, http://a]", "two replicas are named 'a'"),
    "an unknown source": ("pools:\n- discovery: [{kind: etcd}]", "f.yaml:2: pools.0.discovery.0: kind must be one of"),
    "a source of no kind": ("pools:\n- discovery: [{host: a}]", "pools.0.discovery.0: kind is missing"),
    "a password in an address": (
        "pools:\n- replicas: [http://u:hush@a]",
        "replicas.0.url: the address of a has a name",
    ),
    "a source without its field": ("pools:\n- discovery: [{kind: file}]", "pools.0.discovery.0.path: is missing"),
    "a key said twice": (REPLICAS + "keys: [{name: a, env: A, file: b}]", "exactly one of env, file and sha256"),
    "a hash that is none": (REPLICAS + "keys: [{name: a, sha256: abc}]", "f.yaml:4: keys.0.sha256: must be 64"),
    "a key of its own in the file": (REPLICAS + "keys: [{name: a, key: s}]", "keys.0.key: there is no such field"),
    "metrics on the gateway's port": (REPLICAS + "metrics: {port: 8080}", "metrics.port is listen.port"),
    "replace without a key": ("pools:\n- {replicas: [http://a], authorization: replace}", "engine_key_env go together"),
}


@pytest.mark.parametrize(("text", "wanted"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_said_with_file_line_and_field(text: str, wanted: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_config(text, where="f.yaml")
    assert wanted in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "hush" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read it"):
        load_config(tmp_path / "none.yaml")


CHECKED: dict[str, tuple[str, str]] = {
    "an unknown policy": ("pools: [{policy: best, replicas: [http://a]}]", "unknown policy 'best'"),
    "an unknown option": ("pools: [{policy: random, options: {x: 1}, replicas: [http://a]}]", "x"),
    "an unknown strategy": ("pools: [{policy: random, strategies: [best], replicas: [http://a]}]", "'best'"),
    "a secret that is not set": (
        "pools: [{policy: random, replicas: [http://a], authorization: replace, engine_key_env: NOPE}]",
        "the environment variable NOPE is not set",
    ),
    "a certificate that is not there": (
        "listen: {tls: {certificate: no.pem, key: no.pem}}\npools: [{policy: random, replicas: [http://a]}]",
        "listen.tls: no.pem: there is no such file",
    ),
    "keys that are the same": (
        REPLICAS + "keys: [{name: a, env: K}, {name: b, env: K}]",
        "the key of 'b' is there twice",
    ),
    "a memory that nobody has": (REPLICAS + "    memory: m.npz", "pool default: memory: only the policy learned"),
    "a tracing endpoint that is none": (REPLICAS + "tracing: {endpoint: 'http://'}", "tracing.endpoint: this is no"),
    "a journal that is a folder": (REPLICAS + "journal: {path: tests}", "journal.path: tests: cannot write"),
    "a host of another machine": (REPLICAS + "listen: {host: 192.0.2.1, port: 0}", "cannot listen on 192.0.2.1:0"),
    "a keys file that is not there": (REPLICAS + "keys_file: no.yaml", "no.yaml: cannot read it"),
}


@pytest.mark.parametrize(("text", "wanted"), CHECKED.values(), ids=CHECKED.keys())
def test_check_finds_what_the_fields_alone_do_not_say(text: str, wanted: str) -> None:
    config = parse_config(text, where="f.yaml")
    with pytest.raises(UsageError) as caught:
        checked(config, {"K": "secret"})
    assert wanted in str(caught.value)


def test_check_says_what_would_run_and_no_secret(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    (tmp_path / "keys.yaml").write_text(f"- {{name: file, file: {tmp_path / 'key'}, concurrent: 3}}\n")
    (tmp_path / "key").write_text("hush\n")
    text = f"""
listen: {{port: 0, tls: {{certificate: {tmp_path}/both.pem, key: {tmp_path}/both.pem}}}}
pools:
  - {{policy: prefix_cache, replicas: [http://127.0.0.1:8001/v1], authorization: replace, engine_key_env: K}}
keys: [{{name: env, env: K2}}]
keys_file: {tmp_path}/keys.yaml
journal: {{path: {tmp_path}/journal.jsonl}}
admin_token_env: K
"""
    lines = checked(parse_config(text, where="f.yaml"), {"K": "sesame", "K2": "other"})
    whole = "\n".join(lines)
    assert lines[0] == "listens on https://127.0.0.1:0"
    assert "pool default: policy prefix-and-load; models: as its replicas say" in lines
    assert "  replica 127.0.0.1:8001: http://127.0.0.1:8001" in lines
    assert "keys: env, file" in lines
    assert "  file: 3 concurrent" in lines
    assert not re.search("sesame|other|hush", whole)
    assert not (tmp_path / "journal.jsonl").exists()


def test_check_shows_memory_strategies_and_the_replicas_of_each_static_list(tmp_path: Path) -> None:
    (tmp_path / "m.npz").write_text("no npz")
    static = "discovery: [{kind: static, replicas: [{url: http://a}]}]"
    pool = f"{{policy: learned, memory: {tmp_path}/m.npz, strategies: [random], {static}}}"
    lines = checked(parse_config(f"listen: {{port: 0}}\npools: [{pool}]", where="f.yaml"), {})
    assert "  strategies: random" in lines
    assert "  replica a: http://a" in lines
    assert any(line.startswith("  memory: ") and "starts without what it knew" in line for line in lines)


def test_keys_are_hashed_whatever_they_come_from(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("one\n")
    config = parse_config(REPLICAS + f"keys: [{{name: a, env: A}}, {{name: b, file: {tmp_path}/key}}]", where="f.yaml")
    keys = load_keys(config, {"A": "two"})
    assert [(key.env, key.file) for key in keys] == [(None, None)] * 2
    assert [len(key.sha256 or "") for key in keys] == [64, 64]
    with pytest.raises(UsageError, match="variable A is not set"):
        load_keys(config, {})


def parts() -> list[type[BaseModel]]:
    return [
        value
        for value in vars(models).values()
        if isinstance(value, type) and issubclass(value, BaseModel) and value.__module__ == models.__name__
    ]


def test_the_reference_in_the_docs_has_every_field_and_no_other() -> None:
    text = Path("docs/gateway.md").read_text()
    reference = text.partition("## Every field")[2].partition("\n## ")[0]
    sections = dict(re.findall(r"### `([a-z_.\[\]]+)`.*?\n(.*?)(?=\n### |\Z)", reference, re.S))
    wanted: dict[str, type[BaseModel]] = {
        "config": Config,
        "listen": models.Listen,
        "listen.tls": models.Tls,
        "pools[]": Pool,
        "limits": models.Limits,
        "limits.per_key": models.KeyLimits,
        "timeouts": models.Timeouts,
        "retries": models.Retries,
        "keys[]": models.Key,
        "journal": models.Journal,
        "metrics": models.Metrics,
        "tracing": models.Tracing,
    }
    assert {model for model in parts() if not model.__name__.startswith("_")} == set(wanted.values())
    assert sections.keys() == wanted.keys()
    for name, model in wanted.items():
        rows = re.findall(r"^\| `([a-z0-9_]+)` \| ([^|]*) \|", sections[name], re.M)
        assert [field for field, _ in rows] == list(model.model_fields), name
        for field, shown in rows:
            told = model.model_fields[field]
            default = told.default
            if told.is_required():
                assert shown == "needed", field
            elif isinstance(default, bool):
                assert shown == str(default).lower(), field
            elif isinstance(default, (int, float, str)) and default:
                assert shown == (f"{default:g}" if isinstance(default, float) else str(default)), field


def test_the_example_in_the_docs_is_a_good_file() -> None:
    text = Path("docs/gateway.md").read_text()
    examples = re.findall(r"```yaml\n(.*?)```", text, re.S)
    assert len(examples) >= 2
    for example in examples:
        if "pools:" in example:
            parse_config(example, where="docs/gateway.md")
    assert os.path.exists("docs/routing.md")
