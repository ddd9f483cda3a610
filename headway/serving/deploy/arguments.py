"""Arguments for all vLLM servers of a plan, as a user gives them. Pure.

What a plan decides may not be said again: vLLM takes the last of two, and the GPU would be shared in another way than
planned. vLLM takes `_` for `-`, and the beginning of a name for the name, as Python's argparse does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from headway.errors import UsageError

_OWN = {
    "model": "--weights says what is loaded",
    "served-model-name": "the plan names its models",
    "host": "health is asked at the pod's own address",
    "port": "the Services, the gateway and the health checks know it",
    "tensor-parallel-size": "the plan says on how many GPUs a server is",
    "pipeline-parallel-size": "the plan says on how many GPUs a server is",
    "gpu-memory-utilization": "it follows from the server's part of the GPU",
    "kv-cache-memory-bytes": "it follows from the server's part of the GPU",
    "num-gpu-blocks-override": "the cache's size follows from the server's part of the GPU",
}
_OWN_BEGINNINGS = {"data-parallel": "the plan says how many servers there are"}
_SHORT = {"tp": "tensor-parallel-size", "pp": "pipeline-parallel-size"}
_SHORT_BEGINNING = "dp"  # -dp, -dpn, -dpr and more are all of data parallelism


def check_arguments(arguments: Sequence[str], *, where: str = "--arg") -> None:
    """UsageError where one is no option of vLLM's command line, or an option that the plan decides."""
    takes_value = False
    for argument in arguments:
        if not re.match(r"--?[A-Za-z]", argument):
            if not takes_value:
                raise UsageError(
                    f"{argument!r} is no option, nor does it follow one",
                    where=where,
                    hint="write --arg=--max-model-len=8192",
                )
            continue
        takes_value = "=" not in argument
        reason = _decided(argument)
        if reason:
            raise UsageError(f"{argument} is not for you to say: {reason}", where=where)


def _decided(argument: str) -> str:
    """Why an option is the plan's business; empty: it is not."""
    option = re.split(r"[=.]", argument, maxsplit=1)[0]
    name = option.lstrip("-").replace("_", "-")
    if not option.startswith("--"):
        if name.startswith(_SHORT_BEGINNING):
            return _OWN_BEGINNINGS["data-parallel"]
        return _OWN.get(_SHORT.get(name, ""), "")
    for own, reason in _OWN.items():
        if own.startswith(name):
            return reason
    return next((reason for own, reason in _OWN_BEGINNINGS.items() if name.startswith(own)), "")
