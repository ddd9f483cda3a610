"""Text on the terminal, whatever the names in it are."""

from __future__ import annotations

import sys
import textwrap
import unicodedata
from shutil import get_terminal_size

from rich.text import Text

_UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode's categories of characters that steer a terminal, or turn the direction of what follows, or end a line."""


def shown(text: str) -> str:
    r"""With characters that would steer the terminal written as `\x1b`, `\u202e`: names come from files."""
    return "".join(
        char.encode("unicode_escape").decode("ascii") if unicodedata.category(char) in _UNSEEN else char
        for char in text
    )


def cell(text: str) -> Text:
    """The same for a table, where square brackets in a name are no markup."""
    return Text(shown(text))


def print_line(text: str, *, indent: str = "") -> None:
    """A sentence. On a terminal it goes on below its own beginning, two columns further in; else it is one line."""
    line = indent + shown(text)
    if not sys.stdout.isatty():
        print(line)
        return
    wrapped = textwrap.wrap(
        line,
        max(20, get_terminal_size().columns),
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    print("\n".join(wrapped))
