"""The workflows that studies and commands know by name. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from headway.errors import UsageError
from headway.serving.workflows.programs.beam_search import BeamSearch
from headway.serving.workflows.programs.debate import Debate
from headway.serving.workflows.programs.form import Workflow
from headway.serving.workflows.programs.rag import Rag
from headway.serving.workflows.programs.react import React

NAMED: Mapping[str, Workflow] = {
    "beam-search": BeamSearch(),
    "rag": Rag(),
    "debate": Debate(),
    "react": React(),
}


def named(name: str) -> Workflow:
    """One of `NAMED`. UsageError where there is none."""
    if name not in NAMED:
        raise UsageError(f"unknown workflow {name!r}", hint=f"known: {', '.join(NAMED)}")
    return NAMED[name]
