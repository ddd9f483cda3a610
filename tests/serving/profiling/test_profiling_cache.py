"""Profiles are made once for what goes into them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.errors import UsageError
from headway.serving.allocation import engine_profile
from headway.serving.allocation.types import Shape
from headway.serving.profiling.cache import cached_profile, default_folder
from headway.serving.workflows.calls import Call

MODEL = "llama-3.2-1b"
CALLS = [Call("w", f"r{run}", "0", MODEL, 5.0 * run, 5.0 * run + 1, 100 + run, 5) for run in range(8)]
SHAPES = [Shape(1, 5), Shape(1, 10)]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows with each profile that is really made, of few calls."""
    monkeypatch.setattr(engine_profile, "CALLS", 40)
    real, names = engine_profile.engine_profile, []

    def counting(model_name: str, *rest: object, **more: object) -> object:
        names.append(model_name)
        return real(model_name, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(engine_profile, "engine_profile", counting)
    return names


def test_the_same_is_made_once_and_comes_back_equal(tmp_path: Path, made: list[str]) -> None:
    first = cached_profile(tmp_path / "deep" / "er", MODEL, "a100", CALLS, SHAPES, 10)
    assert cached_profile(tmp_path / "deep" / "er", MODEL, "a100", CALLS, SHAPES, 10) == first
    assert made == [MODEL]


def test_whatever_differs_is_made_anew(tmp_path: Path, made: list[str]) -> None:
    cached_profile(tmp_path, MODEL, "a100", CALLS, SHAPES, 10)
    cached_profile(tmp_path, MODEL, "h100", CALLS, SHAPES, 10)
    cached_profile(tmp_path, MODEL, "a100", CALLS[1:], SHAPES, 10)
    cached_profile(tmp_path, MODEL, "a100", CALLS, SHAPES[:1], 10)
    cached_profile(tmp_path, MODEL, "a100", CALLS, SHAPES, 20)
    cached_profile(tmp_path, MODEL, "a100", CALLS, SHAPES, 10, seed=1)
    cached_profile(tmp_path, MODEL, "a100", CALLS, SHAPES, 10, engine_model="llama-3-8b")
    assert len(made) == 7


def test_other_models_calls_do_not_matter(tmp_path: Path, made: list[str]) -> None:
    cached_profile(tmp_path, MODEL, "a100", CALLS, SHAPES, 10)
    cached_profile(tmp_path, MODEL, "a100", [*CALLS, Call("w", "r0", "1", "other", 0.0, 1.0, 9, 9)], SHAPES, 10)
    assert len(made) == 1


def test_a_broken_file_is_replaced(tmp_path: Path, made: list[str]) -> None:
    first = cached_profile(tmp_path, MODEL, "a100", CALLS, SHAPES, 10)
    (file,) = tmp_path.iterdir()
    file.write_text("{")
    assert cached_profile(tmp_path, MODEL, "a100", CALLS, SHAPES, 10) == first
    assert cached_profile(tmp_path, MODEL, "a100", CALLS, SHAPES, 10) == first
    assert len(made) == 2


def test_without_a_folder_nothing_is_kept(made: list[str]) -> None:
    cached_profile(None, MODEL, "a100", CALLS, SHAPES, 10)
    cached_profile(None, MODEL, "a100", CALLS, SHAPES, 10)
    assert len(made) == 2


def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path, made: list[str]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file/x"):
        cached_profile(tmp_path / "file" / "x", MODEL, "a100", CALLS, SHAPES, 10)


def test_the_default_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_folder() == Path("/somewhere/headway/profiles")
