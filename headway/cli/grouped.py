"""Options that several commands have in common: the fields of a dataclass, said once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import wraps
from typing import Any, get_type_hints


def grouped(group: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator of commands: in the place of a parameter of the type `group` the command has options, its fields.

    Args:
        group: a dataclass whose fields are annotated as a command's parameters are, each with a default.
    """

    def of(command: Callable[..., None]) -> Callable[..., None]:
        kinds = get_type_hints(command, include_extras=True)
        parameters: list[inspect.Parameter] = []
        for each in inspect.signature(command).parameters.values():
            if kinds[each.name] is group:
                parameters += _parameters(group)
            else:
                parameters.append(each.replace(annotation=kinds[each.name], kind=inspect.Parameter.KEYWORD_ONLY))
        (place,) = (name for name, kind in kinds.items() if kind is group)

        @wraps(command)
        def called(**given: Any) -> None:
            own = {each.name: given.pop(each.name) for each in fields(group)}
            command(**given, **{place: group(**own)})

        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in parameters}
        return called

    return of


def _parameters(group: type[Any]) -> list[inspect.Parameter]:
    kinds = get_type_hints(group, include_extras=True)
    found = []
    for each in fields(group):
        assert each.default is not MISSING, f"{each.name} would not be an option"
        kind, keyword = kinds[each.name], inspect.Parameter.KEYWORD_ONLY
        found.append(inspect.Parameter(each.name, keyword, default=each.default, annotation=kind))
    return found
