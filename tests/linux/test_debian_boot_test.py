"""The unit that tests the endpoint after a start of the machine: installed, enabled, and run by the boot of a real
Debian.
"""

import time
from typing import Any

import pytest

from tests.linux.debian import Debian
from tests.linux.serving_debian import ENGINE, GATEWAY, LINE, MODEL, NAME, SOCKET, Serving, furnished
from tests.linux.test_debian_gateway import KEY, METRICS_LINE
from tests.linux.test_debian_serve import ENGINE_PROGRAM
from tests.processes import PATIENCE_S, wait_for
from winhost.connect.agent import Agent
from winhost.core.undo import find_undo
from winhost.resources.registry import RULES
from winhost.serving.gateway_entries import BOOT_TEST, gateway_entries

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]  # they take turns, and one is fetched

UNIT_FILE = f"/usr/local/lib/systemd/system/{BOOT_TEST}"
RESULT = "/run/winhost-boot-test/result.json"
SETTINGS: dict[str, Any] = {
    "listen": {"address": "127.0.0.1", "port": 8443},
    "models": [{"name": MODEL, "engine": {"socket": SOCKET}, "served_as": "tiny"}],
    "limits": {"hold": 2, "drain": 20},
}
# An engine that takes as long to start as /srv/go is not there; systemd waits for none.
START = """\
ExecStart=/bin/sh -c 'until [ -e /srv/go ]; do sleep 0.2; done; exec /usr/bin/python3 /srv/engine.py'
[Install]
WantedBy=multi-user.target
"""


@pytest.fixture(scope="module")
def serve(debian: Debian, asked: Agent, tmp_path_factory: pytest.TempPathFactory) -> Serving:
    (debian.root / "srv/engine.py").write_text(ENGINE_PROGRAM)
    (debian.root / "srv/mode").write_text("good")
    return furnished(debian, asked, tmp_path_factory.mktemp("serve"), KEY, "0.33.0", START)


def of_the_boot_test() -> list[Any]:
    """Return the plan's entries for the boot test alone, in the order of a run."""
    with_it = gateway_entries(SETTINGS, [LINE, METRICS_LINE], None, boot_test=True)
    return with_it[len(gateway_entries(SETTINGS, [LINE, METRICS_LINE], None)) :]


def found_of(serve: Serving) -> Any:
    said = serve("status", NAME, "--json")
    return said.result["boot_test"]


def test_it_is_run_by_a_start_of_the_machine_holds_up_no_boot_and_goes_again(debian: Debian, serve: Serving) -> None:
    agent = debian.agent()
    changed = []
    for each in of_the_boot_test():
        desired = each["desired"]
        changed.append((each, agent.set(each["resource"], each["key"], desired, {}, {})))
    agent.close()
    debian.run("systemctl", "enable", ENGINE, GATEWAY)
    assert found_of(serve) is None, "a plan starts nothing of it"
    verified = debian.run("sh", "-c", f"systemd-analyze verify --man=no {UNIT_FILE} 2>&1 || true")
    assert "winhost-boot-test" not in verified

    debian.stop()
    debian.start()
    wait_for(debian._answers)
    until = time.monotonic() + PATIENCE_S
    # The machine is up while the engine still starts: what waits for that (WSL, `systemctl is-system-running`) goes on.
    while (state := debian.run("sh", "-c", "systemctl is-system-running || true").strip()) == "starting":
        assert time.monotonic() < until, debian.run("systemctl", "list-jobs")
        time.sleep(0.5)
    assert state in ("running", "degraded")
    assert found_of(serve) is None

    (debian.root / "srv/go").touch()
    while (found := found_of(serve)) is None:
        assert time.monotonic() < until, debian.run("systemctl", "status", "--no-pager", BOOT_TEST)
        time.sleep(1)
    assert (found["ready"], found["why"]) == (True, "")
    shown = " ".join(serve("status", NAME).out.split())
    assert "The machine tested its endpoint: each model answered" in shown
    assert debian.run("systemctl", "show", "--property=Result", "--value", BOOT_TEST).strip() == "success"

    debian.run("systemctl", "restart", GATEWAY)
    assert found_of(serve) == found, "of this start of the machine, whatever became of the gateway since"

    agent = debian.agent()
    for each, answer in reversed(changed):
        before = {name: answer.before[name] for name in each["desired"]}
        undo = find_undo(RULES[each["resource"]], before, answer.after, answer.after)
        assert isinstance(undo, dict), undo
        agent.set(each["resource"], each["key"], undo, {}, {})
    agent.close()
    assert found_of(serve) is None
    assert not (debian.root / UNIT_FILE.lstrip("/")).exists()
    assert BOOT_TEST not in debian.run("systemctl", "list-unit-files", "--no-pager", "--no-legend")
    assert debian.run("sh", "-c", f"ls -d {RESULT} 2>&1 || true").endswith("No such file or directory\n")
