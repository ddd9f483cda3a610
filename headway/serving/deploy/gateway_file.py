"""The gateway's configuration for a plan: a pool for each model. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headway.errors import UsageError
from headway.serving.deploy.compose import ports
from headway.serving.deploy.engines import Engine, dns_label
from headway.serving.deploy.text import documents
from headway.serving.gateway.config_file import parse_config
from headway.serving.policies import known_as

JOURNAL = "gateway.jsonl"
PORT = 8080


def gateway_file(
    engines: Sequence[Engine],
    *,
    devices: Mapping[str, str],
    namespace: str = "",
    policy: str = "learned",
    journal: str = JOURNAL,
    urls: Mapping[str, str] | None = None,
    keys_file: str = "",
) -> str:
    """The file's text, which the gateway's own reader has read once. UsageError where the policy or an URL is none.

    Args:
        engines: of the plan.
        devices: kind of GPU by node.
        namespace: of the models' Services, which the gateway follows; empty: it asks fixed addresses.
        policy: of all pools.
        journal: where it writes what `plan watch` reads.
        urls: of the engines by name, where they are fixed; None: those of the compose file.
        keys_file: of the gateway's keys; empty: it has none.
    """
    try:
        known_as(policy)
    except UsageError as error:
        raise UsageError(error.what, where="--policy", hint=error.hint) from None
    port_of = ports(engines)
    pools: list[dict[str, Any]] = []
    for model in sorted({engine.instance.model for engine in engines}):
        own = sorted((engine for engine in engines if engine.instance.model == model), key=lambda it: it.name)
        pool: dict[str, Any] = {"name": dns_label(model), "models": [model], "policy": policy, "ask_usage": True}
        kinds = sorted({devices[engine.instance.node] for engine in own if engine.instance.node in devices})
        about: dict[str, Any] = {"device": kinds[0]} if len(kinds) == 1 else {}
        if namespace:
            pool["discovery"] = [
                {"kind": "kubernetes", "service": dns_label(model), "namespace": namespace, "models": [model], **about}
            ]
        else:
            pool["replicas"] = [
                {
                    "name": engine.name,
                    "url": urls[engine.name] if urls is not None else f"http://127.0.0.1:{port_of[engine.name]}",
                    "models": [model],
                    **about,
                }
                for engine in own
            ]
        pools.append(pool)
    body: dict[str, Any] = {
        "listen": {"host": "0.0.0.0" if namespace else "127.0.0.1", "port": PORT},
        "pools": pools,
        "journal": {"path": journal, "prefix_blocks": True},
    }
    if keys_file:
        body["keys_file"] = keys_file
    text = documents([body])
    parse_config(text, where="the gateway's configuration for this plan")
    return text
