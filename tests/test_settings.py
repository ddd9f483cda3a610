"""What a user may set, and what is said about mistakes."""

from __future__ import annotations

import pytest

from headway.errors import UsageError
from headway.settings import Settings, from_environment


def test_variables_become_settings() -> None:
    found = from_environment({"HEADWAY_BITWISE": "1", "HEADWAY_CHUNK": "256KiB", "PATH": "/bin"})
    assert found == Settings(bitwise=True, chunk="256KiB")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("HEADWAY_POLICY", "fastest", "'fastest' is no policy"),
        ("HEADWAY_BITWISE", "perhaps", "neither yes nor no"),
        ("HEADWAY_INTERLEAVE", "sometimes", "'sometimes' is no way to interleave"),
    ],
)
def test_a_bad_value_names_its_variable(name: str, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=rf"^{name}: .*{says}"):
        from_environment({name: text})


@pytest.mark.parametrize(
    ("name", "meant"), [("HEADWAY_POLCY", "POLICY"), ("HEADWAY_CHUNK_SIZE", "CHUNK"), ("HEADWAY_PLANS", "PLAN")]
)
def test_a_slip_is_recognised(name: str, meant: str) -> None:
    with pytest.warns(UserWarning, match=rf"{name} is ignored \(did you mean HEADWAY_{meant}\?\)"):
        from_environment({name: "x"})


@pytest.mark.parametrize("name", ["HEADWAY_FOO", "HEADWAY_RANK", "HEADWAY_LOG"])
def test_what_is_like_nothing_gets_the_list(name: str) -> None:
    known = r"HEADWAY_BITWISE, .*HEADWAY_POLICY, HEADWAY_STREAMS"
    with pytest.warns(UserWarning, match=rf"{name} is ignored \(known: {known}\)"):
        from_environment({name: "x"})
