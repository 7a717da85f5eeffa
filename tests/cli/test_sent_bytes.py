"""The bytes that commands send to a Windows host, as bodies of HTTP."""

from pathlib import Path
from typing import Any

import pytest
from requests.adapters import HTTPAdapter

from tests.cli.conftest import Line
from winhost.lab.hostfile import find
from winhost.lab.running_lab import Lab

KB = 1000
DETECT, APPLY = 290 * KB, 400 * KB


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the requests of this process."""
    sizes: list[int] = []
    send = HTTPAdapter.send

    def counted(adapter: HTTPAdapter, request: Any, *args: Any, **kwargs: Any) -> Any:
        sizes.append(len(request.body or b""))
        return send(adapter, request, *args, **kwargs)

    monkeypatch.setattr(HTTPAdapter, "send", counted)
    return sizes


def test_a_detect_and_an_apply_send_no_more_than_they_may(
    line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: list[int]
) -> None:
    with Lab([find("server2025-role-installed")], tmp_path / "lab", scale=0.001) as lab:
        monkeypatch.chdir(lab.fleet_file.parent)
        assert line("detect", "*").code == 0
        assert 100 * KB < sum(sent) <= DETECT
        assert line("plan", "*", "--path", "dda", "--vm", "llm-01", "-o", "plan.json").code == 0
        sent.clear()
        assert line("apply", "plan.json", "--yes", "--accept", "vm-stop,force-dismount,headless,restart").code == 0
        assert 100 * KB < sum(sent) <= APPLY
