"""The test of an endpoint after a start of the machine: its program before a real gateway, and its unit in a plan."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.running import gateway, settings_for
from tests.linux.agent_definitions import definitions
from winhost.gateway import boot_test
from winhost.gateway.api_keys import new_key
from winhost.serving.gateway_entries import gateway_entries


def outcome(
    tmp_path: Path, settings: dict[str, Any], within: int, monkeypatch: pytest.MonkeyPatch
) -> dict[str, object]:
    monkeypatch.setattr(boot_test, "_WITHIN_S", within)
    (tmp_path / "boot.json").write_text(json.dumps(settings))
    assert boot_test.main([str(tmp_path / "boot.json"), str(tmp_path / "result.json")]) == 0
    found: dict[str, object] = json.loads((tmp_path / "result.json").read_text())
    assert isinstance(found.pop("seconds"), int)
    assert str(found.pop("at")).endswith("+00:00")
    return found


@pytest.mark.costly
def test_it_says_whether_each_model_answers_and_why_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = settings_for(tmp_path, listen={"address": "127.0.0.1", "port": port})
    assert outcome(tmp_path, settings, 0, monkeypatch) == {"ready": False, "why": "no-answer"}
    with gateway(tmp_path, settings, engine_up=False) as door:
        assert outcome(tmp_path, settings, 0, monkeypatch) == {"ready": False, "why": "not-ready"}
        door.engine.start()
        assert outcome(tmp_path, settings, 300, monkeypatch) == {"ready": True, "why": ""}


def test_a_plan_enables_it_where_it_is_wanted_and_starts_nothing() -> None:
    settings = {
        "listen": {"address": "127.0.0.1", "port": 8443},
        "models": [{"name": "a", "engine": {"socket": "/run/a.sock"}}],
    }
    keys = (new_key("alice")[1],)
    plain, wanted = gateway_entries(settings, keys, None), gateway_entries(settings, keys, None, boot_test=True)
    assert wanted[: len(plain)] == plain
    file, unit = wanted[len(plain) :]
    assert unit["key"] == {"unit": "winhost-boot-test.service"}
    assert unit["desired"] == {"enabled": "enabled"}
    assert "/opt/winhost/gateway-" in file["desired"]["text"]
    for each in wanted:
        if each["resource"] == "LinuxFile":
            definitions()["check_path"](each["key"]["path"])  # it raises for a path that it does not know
