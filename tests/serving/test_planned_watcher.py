"""A plan for WSL installs the watcher for somebody at the desktop with its own key, and rollback removes both."""

import json
from hashlib import sha256
from pathlib import Path

import click
import pytest

from tests.engine.wsl2_world import DATA, Wsl2World
from tests.hub.stand_in_hub import StandInHub
from tests.serving.one_plan import CONSENTS, MODEL, hub, join, joining, windows
from winhost.cli.errors import Faults
from winhost.engine.rollback import rollback
from winhost.model.errors import UsageError
from winhost.resources.windows.windows_scripts import watcher_script

__all__ = ["hub"]

SECRET = "key-of-the-desk-that-nobody-guesses"
DESK = {"account": "Administrator"}
FOLDER = r"C:\ProgramData\winhost\watchers\Administrator"


def wanting(**more: object) -> dict[str, object]:
    """Of a workload: one model that sleeps, and when it leaves its GPUs to the desktop."""
    yield_to = {"full_screen": True, "programs": ["game.exe"], "accounts": [DESK["account"]], **more}
    return {"models": {"chat": {**MODEL, "state": "sleeping"}}, "availability": {"yield_to": yield_to}}


@pytest.fixture
def key(tmp_path: Path) -> str:
    file = tmp_path / "desk.key"
    file.write_text(SECRET)
    file.chmod(0o600)
    return f"file:{file}"


def watcher(here: Wsl2World) -> object:
    return {record.key["account"]: record.state for record in here.machine.instances("YieldWatcher")}.get(
        "Administrator"
    )


@pytest.mark.costly
def test_it_is_installed_with_its_key_and_goes_with_rollback(tmp_path: Path, key: str, hub: StandInHub) -> None:
    here = windows(tmp_path, "wsl2")
    assert isinstance(here, Wsl2World)
    join(here, tmp_path, hub, more=wanting(), yield_key=(f"desk={key}",))
    plan = here.plan()
    assert SECRET not in repr(plan)
    assert here.apply(plan, CONSENTS).holds
    settings = {"url": "http://127.0.0.1:8443", "programs": ["game.exe"], "full_screen": True, "unlocked": False}
    assert watcher(here) == {
        "task": "ready",
        "settings": json.dumps({**settings, "gpu_memory": None}),
        "key": key,
        "digest": sha256(SECRET.encode()).hexdigest(),
    }
    files = here.machine.files
    assert files.read(f"{FOLDER}\\key") == SECRET.encode()
    assert (files.read(f"{FOLDER}\\watch.ps1") or b"").decode() == watcher_script()

    files.write(f"{FOLDER}\\key", b"another one that somebody wrote there")
    again = here.plan()
    assert [(step.resource, {*step.desired}) for step in again.steps] == [("YieldWatcher", {"digest", "key"})]
    assert here.apply(again, CONSENTS).holds
    assert files.read(f"{FOLDER}\\key") == SECRET.encode(), "a key that changed is resolved and written again"

    for run in reversed(here.store.runs()):
        assert rollback(run, CONSENTS, here.context).outcome == "rolled back"
    assert watcher(here) is None
    assert [path for path in files.list_below(DATA) if "watchers" in path] == []
    assert "watch-administrator" not in here.machine.accounts.tasks


def test_who_gets_which_key_is_said_before_anything_is_asked(tmp_path: Path, key: str, hub: StandInHub) -> None:
    def faults(*keys: str, more: dict[str, object] | None = None) -> str:
        stack = joining(tmp_path, hub, more=more or wanting(), yield_key=keys)
        found = Faults()
        stack.check_with("wsl2", found)
        try:
            found.refuse()
        except (UsageError, click.UsageError) as error:
            return str(error)
        return ""

    assert "no yield key is named" in faults()
    assert faults(f"desk={key}") == ""
    assert "none of several" in faults(f"desk={key}", f"other={key}")
    assert faults(f"administrator={key}", f"other={key}") == ""


def test_an_address_that_winhost_cannot_know_is_asked_for(tmp_path: Path, key: str, hub: StandInHub) -> None:
    here = windows(tmp_path, "wsl2")
    tls = {"certificate": "/etc/ssl/llm.pem", "certificate_key": "/etc/ssl/llm.key"}
    with pytest.raises(click.UsageError, match="url: https://NAME:8443"):
        join(here, tmp_path, hub, more=wanting(), yield_key=(f"desk={key}",), **tls)
    join(here, tmp_path, hub, more=wanting(url="https://llm.example.org:8443"), yield_key=(f"desk={key}",), **tls)


def test_a_host_without_such_a_desktop_gets_none(tmp_path: Path, key: str, hub: StandInHub) -> None:
    here = windows(tmp_path, "dda")
    with pytest.raises(click.UsageError, match="path dda has none"):
        join(here, tmp_path, hub, more=wanting(), yield_key=(f"desk={key}",))
