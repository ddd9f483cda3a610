"""The workflows that studies and commands know by name. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from headway.errors import UsageError
from headway.serving.workflows.programs.beam_search import BeamSearch
from headway.serving.workflows.programs.debate import Debate
from headway.serving.workflows.programs.form import Context, Program
from headway.serving.workflows.programs.rag import Rag
from headway.serving.workflows.programs.react import React


class Named(Protocol):
    """A workflow that says which models it calls: names in `engine.hardware.MODELS`."""

    @property
    def models(self) -> tuple[str, ...]:
        """Each once, in the order in which a run comes to them."""
        ...

    def __call__(self, context: Context) -> Program:
        """One run."""
        ...


NAMED: Mapping[str, Named] = {
    "beam-search": BeamSearch(),
    "rag": Rag(),
    "debate": Debate(),
    "react": React(),
}


def named(name: str) -> Named:
    """One of `NAMED`. UsageError where there is none."""
    if name not in NAMED:
        raise UsageError(f"unknown workflow {name!r}", hint=f"known: {', '.join(NAMED)}")
    return NAMED[name]
