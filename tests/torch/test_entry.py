"""The entry point that runs in every torch program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from headway.torch import entry


def test_registered_without_an_import() -> None:
    code = (
        "import sys, torch; from torch.distributed import Backend;"
        "print(Backend.HEADWAY, Backend.backend_capability['headway'], Backend.default_device_backend_map['cpu'],"
        "sorted(name for name in sys.modules if name.startswith('headway')))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    # Nothing but the entry itself is loaded, and gloo stays the default.
    assert out.split("\n")[0] == "headway ['cpu'] gloo ['headway', 'headway.torch', 'headway.torch.entry']"


def test_it_never_raises(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("another torch")

    monkeypatch.setattr(dist.Backend, "register_backend", broken)
    entry.register()
    assert "another torch" in caplog.text
    monkeypatch.setattr(dist, "is_available", lambda: False)
    caplog.clear()
    entry.register()
    assert not caplog.text


@pytest.mark.ranks
def test_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('headway')\n"
        "tensor = torch.ones(3) * (dist.get_rank() + 1)\n"
        "dist.all_reduce(tensor)\n"
        "assert tensor.tolist() == [3.0] * 3, tensor\n"
        "dist.destroy_process_group()\n"
        f"open({str(tmp_path)!r} + '/done' + str(dist.is_initialized()), 'a').write('x')\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "doneFalse").read_text() == "xx"
