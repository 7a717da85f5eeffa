"""A secret that a step needs goes to the host with that step, and stands nowhere else."""

import json
from pathlib import Path

import pytest

from tests.errors import raises
from winhost.bundle import linux_bundle, linux_host
from winhost.connect.agent import Agent
from winhost.connect.patience import Patience
from winhost.core.steps import Step
from winhost.engine.host_session import HostSession

CANARY = "canary:of-a-registry"
IMAGE = {"engine": "docker", "image": "docker.io/a/b@sha256:" + "0" * 64}
STEP = Step("1", "ContainerImage", IMAGE, "desired", {"present": False}, {"present": True}, "An image", "For the test.")


class Wire:
    host = "gpu-01"

    def __init__(self) -> None:
        self.asked: list[dict[str, object]] = []

    def open(self) -> Agent:
        return Agent(self, 60)

    def invoke(self, request: str, within: float) -> str:
        (call,) = json.loads(request)["calls"]
        self.asked.append({**call["how"], "waits": within})
        state = {"present": True}
        return json.dumps({"answers": [{"ok": True, "before": state, "after": state, "restart": [], "warnings": []}]})

    def close(self) -> None:
        pass


def step(reference: str | None) -> Step:
    return Step(**{**STEP.__dict__, "desired": {"present": True, "credentials": reference}})


def session(wire: Wire) -> HostSession:
    return HostSession(wire, Patience(0, 0, 0), lambda event: None)


def test_it_is_read_at_the_step_and_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY", CANARY)
    wire = Wire()
    for reference in ("env:REGISTRY", None):
        session(wire).set(step(reference), frozenset())
    assert [asked.get("secret") for asked in wire.asked] == [CANARY, None]


def test_what_cannot_be_read_is_refused_before_the_host_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REGISTRY", raising=False)
    wire = Wire()
    with raises("SecretUnreadable"):
        session(wire).set(step("env:REGISTRY"), frozenset())
    assert wire.asked == []


def test_a_pull_gets_the_time_that_it_takes() -> None:
    wire = Wire()
    session(wire).set(STEP, frozenset())
    assert (wire.asked[0]["within"], wire.asked[0]["waits"]) == (4 * 3600, 4 * 3600 + 60)


def test_by_hand_it_is_read_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REGISTRY", CANARY)
    (tmp_path / "secret").write_text(f"{CANARY}\n")
    # As an editor of Windows saves it, which winhost itself reads as well.
    (tmp_path / "marked").write_text(f"{CANARY}\r\n", "utf-8-sig")
    for reference in ("env:REGISTRY", f"file:{tmp_path}/secret", f"file:{tmp_path}/marked"):
        assert linux_host.resolve_secret(reference) == CANARY
    (tmp_path / "latin").write_text("gehört niemandem", "latin-1")
    unreadable = ("env:NOT_THERE", f"file:{tmp_path}/nothing", f"file:{tmp_path}/latin", "cmd:pass show registry")
    for reference in unreadable:
        with pytest.raises(linux_bundle.BundleRefusal) as caught:
            linux_host.resolve_secret(reference)
        assert (caught.value.result.code, caught.value.result.document["error"]["kind"]) == (2, "SecretUnreadable")
