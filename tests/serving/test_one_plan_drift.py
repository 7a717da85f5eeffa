"""One plan to an endpoint and a Linux that others change: between plan and apply, and between apply and verify."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hub.stand_in_hub import StandInHub
from tests.serving.one_plan import CONSENTS, hub, inside, join, windows
from winhost.connect.wire_errors import Drifted
from winhost.core.answers import Json
from winhost.engine.planning import check_plan
from winhost.engine.verify import verify_plan
from winhost.lab.linux.containers import ContainerStore
from winhost.lab.linux.linux_machine import Linux
from winhost.lab.linux.serving import SERVING_FILE, ServedEngines
from winhost.resources.host import HostFacts

__all__ = ["hub"]

ENGINE, GATEWAY = "winhost-engine-chat.service", "winhost-gateway.service"
PATHS = pytest.mark.parametrize("path", ["wsl2", "dda"])
Change = Callable[[Linux], object]


def write(path: str, text: str = "{}\n", mode: str = "0644") -> Change:
    theirs: dict[str, Json] = {"text": text, "link": None, "mode": mode, "owner": "root:root"}
    return lambda linux: linux.write_file(path, theirs)


def engine(**state: Json) -> Change:
    return lambda linux: linux.part(ServedEngines).update_unit(ENGINE, **state)


def lose_model(linux: Linux) -> None:
    linux.disk.remove("/srv/winhost/models")
    linux.disk.remove("/var/lib/winhost/models")


def lose_image(linux: Linux) -> None:
    linux.part(ContainerStore).images.clear()


def key_of_others(linux: Linux) -> None:
    (path,) = (path for path in linux.texts() if path.endswith("/keys"))
    write(path, f"bob sha256:{'ab' * 32}\n", "0600")(linux)


# ---- between plan and apply

THEIRS = '{"format": 1, "engines": [], "gateway": {"listen": "127.0.0.1:9", "tls": false}}'
NO_CDI = '{"features": {"cdi": false}}'
BEFORE: dict[str, tuple[Change, str]] = {
    "somebody else serves there": (write(SERVING_FILE, THEIRS), "What is served: text"),
    "another gateway came": (write(f"/usr/local/lib/systemd/system/{GATEWAY}"), f"The gateway: {GATEWAY}: text"),
    "Docker's settings changed": (write("/etc/docker/daemon.json", NO_CDI), "Docker"),
}


@pytest.mark.costly
@PATHS
@pytest.mark.parametrize("case", BEFORE.values(), ids=BEFORE)
def test_a_linux_that_changed_since_the_plan_is_refused_untouched(
    tmp_path: Path, hub: StandInHub, path: str, case: tuple[Change, str]
) -> None:
    change, title = case
    here = windows(tmp_path, path)
    assert here.apply(here.plan(), CONSENTS).holds  # the Linux is there, and nothing serves in it
    join(here, tmp_path, hub)
    plan = here.plan()
    change(inside(here))
    found, runs, files = here.state(), here.store.runs(), inside(here).texts()
    with pytest.raises(Drifted) as drifted:
        here.apply(plan, CONSENTS)
    assert title in drifted.value.what
    assert (here.state(), here.store.runs(), inside(here).texts()) == (found, runs, files)


# ---- between apply and verify

READY = ("A completion of each model", "ready")
AFTER: dict[str, tuple[Change, set[tuple[str, str]]]] = {
    "the engine stopped": (engine(active=False), {("Engine of chat", "active"), READY}),
    "the engine starts otherwise": (engine(text="[Unit]\n"), {("Engine of chat", "text")}),
    "the gateway stopped": (lambda linux: linux.systemd.stop(GATEWAY), {(f"The gateway: {GATEWAY}", "active"), READY}),
    "somebody has another key": (key_of_others, {("The gateway: keys", "text")}),
    "the image is gone": (lose_image, {("vLLM", "present")}),
    "the model is gone": (
        lose_model,
        {("Files of chat", "files"), ("Files of chat", "revision"), ("Files of chat", "source")},
    ),
}


@pytest.mark.costly
@PATHS
@pytest.mark.parametrize("case", AFTER.values(), ids=AFTER)
def test_what_changed_since_is_found_by_verify_and_repaired_by_a_new_plan(
    tmp_path: Path, hub: StandInHub, path: str, case: tuple[Change, set[tuple[str, str]]]
) -> None:
    change, finds = case
    here = windows(tmp_path, path)
    join(here, tmp_path, hub)
    plan = here.plan()
    assert here.apply(plan, CONSENTS).holds
    change(inside(here))
    checked = check_plan(plan)
    checks = verify_plan(checked, HostFacts(here.facts(checked.named)))
    assert {(check.title, check.property) for check in checks if not check.holds} == finds
    join(here, tmp_path, hub)
    assert here.apply(here.plan(), CONSENTS).holds
    assert all(check.holds for check in verify_plan(checked, HostFacts(here.facts(checked.named))))
