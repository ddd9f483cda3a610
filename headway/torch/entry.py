"""Found by torch through the `torch.backends` entry point: makes "headway" a backend without an import."""

from __future__ import annotations


def register() -> None:
    """Called once by `import torch`. Must stay cheap and must never raise: it runs in every torch program."""
