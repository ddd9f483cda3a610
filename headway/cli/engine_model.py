"""What the engine model is asked of the models that a command line names: whether it knows them, and their contexts."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Annotated

import typer

from headway.errors import UsageError
from headway.serving.engine import hardware
from headway.serving.workflows.calls import Call

EngineModels = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=MODEL", help="What the engine model knows a model as, where that differs."),
]


def engine_models(texts: Sequence[str], models: Sequence[str]) -> dict[str, str]:
    """What the engine model knows models as, of `--engine-model NAME=MODEL`, where not by their own names.

    Args:
        texts: as they are given.
        models: all that are asked for.

    Raises:
        UsageError: a text names none of `models`, or one a second time; or one of these is not known.
    """
    known = {}
    for text in texts:
        name, equals, known_as = text.rpartition("=")
        if not equals or name not in models:
            raise UsageError(f"{text!r} names none of {', '.join(models)}", where="--engine-model", hint="NAME=MODEL")
        if name in known:
            raise UsageError(f"{name} is there twice", where="--engine-model")
        hardware.known(hardware.MODELS, known_as, "model")
        known[name] = known_as
    for name in models:
        if known.get(name, name) not in hardware.MODELS:
            raise UsageError(
                f"the engine model does not know {name!r}",
                hint=f"say what it is like: --engine-model {name}=MODEL, where MODEL is {_like(name)}",
            )
    return known


def check_context(calls: Sequence[Call], model: str, known_as: str) -> None:
    """UsageError where a call does not fit into the model's context; a model that is not known has any.

    Args:
        calls: recorded, of any model.
        model: whose calls are looked at.
        known_as: its name in the engine model's table.
    """
    if known_as in hardware.MODELS:
        context_tokens = max(hardware.MODELS[known_as].contexts_tokens)
        check_longest(calls, model, context_tokens, f"the context of {known_as} is {context_tokens}")


def check_longest(calls: Sequence[Call], model: str, most_tokens: int, because: str) -> None:
    """UsageError where a call has more tokens than so many, prompt and answer together.

    Args:
        calls: recorded, of any model.
        model: whose calls are looked at.
        most_tokens: that are taken.
        because: why no more are, in words.
    """
    mine = [call for call in calls if call.model == model]
    longest = max(mine, key=lambda call: call.input_tokens + call.output_tokens, default=None)
    if longest is None or longest.input_tokens + longest.output_tokens <= most_tokens:
        return
    raise UsageError(
        f"a call to {model} has {longest.input_tokens + longest.output_tokens} tokens with its answer (call "
        f"{longest.id} of run {longest.run} of {longest.workflow}), and {because}",
        where="--calls",
        hint="leave such runs out",
    )


def _like(name: str) -> str:
    """Models that the engine model knows, those first whose names are like it."""
    plain = name.rpartition("/")[2].lower().removeprefix("meta-").replace("-instruct", "")
    close = difflib.get_close_matches(plain, hardware.MODELS, n=3)
    return ", ".join([*close, *(known for known in hardware.MODELS if known not in close)])
