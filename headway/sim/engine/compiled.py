"""How the engine's inner loops are compiled: once per machine where that can be kept, else once per process."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from numba import njit

_Asked = ParamSpec("_Asked")
_Given = TypeVar("_Given")


def compiled(function: Callable[_Asked, _Given]) -> Callable[_Asked, _Given]:
    """A function as machine code, at its first call.

    numba keeps the code beside the module, or in the user's cache folder. Where neither can be written (another
    user's checkout, no home) it refuses to decorate; then the code is kept in memory only, with the same results.
    """
    try:
        return cast(Callable[_Asked, _Given], njit(cache=True)(function))
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        return cast(Callable[_Asked, _Given], njit(function))
