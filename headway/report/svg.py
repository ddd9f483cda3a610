"""A small SVG writer: elements, escaped text, linear scales and round ticks. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape

CHARACTER = 0.6  # mean width of a character of a sans-serif font, in font sizes


class Svg:
    """One picture. Attributes are written as given, `_` becomes `-`; None leaves an attribute out.

    Args:
        width: width of the view box, px.
        height: its height, px.
        label: what the picture shows, for readers that cannot see it.
        style: CSS that the picture carries itself; empty where the page has it.
    """

    def __init__(self, width: float, height: float, *, label: str, style: str = "") -> None:
        self.width, self.height = width, height
        self._label, self._style = label, style
        self._parts: list[str] = []

    def add(self, tag: str, text: str | None = None, /, **attributes: str | float | None) -> None:
        """Append one element; `text` is its escaped content."""
        body = self._open(tag, attributes)
        self._parts.append(f"{body}/>" if text is None else f"{body}>{escape(text, quote=False)}</{tag}>")

    @contextmanager
    def inside(self, tag: str, /, **attributes: str | float | None) -> Iterator[None]:
        """What is added within goes inside this element."""
        self._parts.append(self._open(tag, attributes) + ">")
        yield
        self._parts.append(f"</{tag}>")

    def line(self, x1: float, y1: float, x2: float, y2: float, **attributes: str | float | None) -> None:
        """A straight line."""
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, **attributes)

    def text(self, x: float, y: float, content: str, **attributes: str | float | None) -> None:
        """Text with its anchor at (x, y)."""
        self.add("text", content, x=x, y=y, **attributes)

    def render(self) -> str:
        """The picture as text, without an XML declaration, fit for a page or a file."""
        style = f"<style>{self._style}</style>" if self._style else ""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_number(self.width)} {_number(self.height)}" '
            f'width="{_number(self.width)}" height="{_number(self.height)}" role="img" '
            f'aria-label="{escape(self._label)}">{style}{"".join(self._parts)}</svg>'
        )

    @staticmethod
    def _open(tag: str, attributes: dict[str, str | float | None]) -> str:
        written = [f"<{tag}"]
        for name, value in attributes.items():
            if value is not None:
                content = escape(value) if isinstance(value, str) else _number(value)
                written.append(f'{name.rstrip("_").replace("_", "-")}="{content}"')
        return " ".join(written)


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def text_width(content: str, size: float) -> float:
    """About how wide a text is, px."""
    return len(content) * size * CHARACTER


def shorten(content: str, size: float, room: float) -> str:
    """The text, cut with an ellipsis to fit `room` px; empty where not even three characters fit."""
    if text_width(content, size) <= room:
        return content
    fitting = int(room / (size * CHARACTER)) - 1
    return content[:fitting].rstrip() + "…" if fitting >= 3 else ""


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps [low, high] to [start, end] linearly."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Position of a value, px."""
        width = self.high - self.low
        return self.start + (value - self.low) / width * (self.end - self.start) if width else self.start


def ticks(low: float, high: float, *, about: int = 6) -> list[float]:
    """Round values within [low, high], about so many: steps are 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    raw = (high - low) / max(1, about)
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]
