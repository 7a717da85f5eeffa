"""Caches that a driver writes while a part of the probe runs."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from winhost.agent import linux_probe
from winhost.agent.linux_trials import PARTS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the probe of Linux")


def as_the_driver(say: Any, _: Any) -> None:
    """CUDA keeps compiled kernels in CUDA_CACHE_PATH, or in ~/.nv without it."""
    folder = Path(os.environ.get("CUDA_CACHE_PATH") or Path.home() / ".nv/ComputeCache")
    (folder / "kernels").mkdir(parents=True)
    say("cache", str(folder))


def test_no_cache_of_the_driver_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CUDA_CACHE_PATH", raising=False)
    monkeypatch.setitem(PARTS, "cache", (as_the_driver, 300))
    answer = linux_probe.probe({"parts": ["cache"]}, lambda: None)
    assert answer["outcomes"][0]["outcome"] == "done", answer
    assert not Path(answer["cache"]).exists()
    assert [*tmp_path.iterdir()] == []
