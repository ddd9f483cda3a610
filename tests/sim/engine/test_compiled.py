"""The compiled loops where the machine keeps no compiled code, and verbs that do without them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from numba.core import caching

from headway.sim.engine.compiled import compiled


def double(number: int) -> int:
    return 2 * number


def test_code_that_cannot_be_kept_is_compiled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching.FunctionCache._impl_class, "_locator_classes", [])
    assert compiled(double)(21) == 42


def test_another_refusal_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr("headway.sim.engine.compiled.njit", refuse)
    with pytest.raises(RuntimeError, match="something else"):
        compiled(double)


def test_loading_congestion_controls_loads_no_simulator() -> None:
    program = "import sys, headway.cli.interleave; print([m for m in ('headway.sim', 'numba') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
