"""YAML as people write it: without anchors, and texts of several lines as such. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import yaml


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        """Each part is written where it stands."""
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def documents(bodies: Sequence[object], *, sort_keys: bool = False) -> str:
    """One file with a document for each."""
    return yaml.dump_all(bodies, Dumper=_Dumper, sort_keys=sort_keys, width=120)
