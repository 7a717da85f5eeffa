"""Sets of packages on a real Debian: apt's own transactions, from a signed repository with Ubuntu's names."""

import fcntl
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.linux.debian import Debian, Keyring, make_repository
from winhost.connect.agent import Agent
from winhost.connect.wire_errors import Drifted, RemoteError
from winhost.core.conditions import consents_of
from winhost.core.order import steps_for
from winhost.core.steps import Change, DesiredResource
from winhost.core.undo import find_undo
from winhost.model.facts import Facts
from winhost.resources.registry import RULES, host_answers

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]  # they take turns, and one is fetched

REPOSITORY = "/srv/ubuntu"
V580, V595 = "580.173.02-0ubuntu0.24.04.1", "595.71.05-0ubuntu0.24.04.1"
UTILS, HEADLESS, OLD_HEADLESS = (
    {"packages": name}
    for name in ("nvidia-utils-580-server", "nvidia-headless-no-dkms-580-server-open", "nvidia-headless-no-dkms-590")
)
FIRMWARE, DOCKER, RIVAL, SLOW, FRAIL = (
    {"packages": name} for name in ("nvidia-firmware=2.0", "docker.io", "wh-rival", "wh-slow", "wh-frail wh-zeal")
)
CONTROLS = [
    {"Package": "nvidia-utils-580-server", "Version": V580, "Depends": "libnvidia-compute-580-server"},
    {"Package": "libnvidia-compute-580-server", "Version": V580},
    {
        "Package": "nvidia-headless-no-dkms-580-server-open",
        "Version": V580,
        "Depends": f"libnvidia-compute-580-server (= {V580}), nvidia-firmware",
        "Recommends": "wh-slow",
    },
    {"Package": "nvidia-firmware", "Version": "1.0"},
    {"Package": "nvidia-firmware", "Version": "2.0"},
    # Transitional, as the one that moved hosts from 590 to 595.
    {"Package": "nvidia-headless-no-dkms-590", "Version": V595, "Depends": "nvidia-headless-no-dkms-595"},
    {"Package": "nvidia-headless-no-dkms-595", "Version": V595},
    {"Package": "docker.io", "Version": "28.2.2-0ubuntu1~24.04.1", "Depends": "containerd, runc (>= 1.1)"},
    {"Package": "containerd", "Version": "1.7.28-0ubuntu1~24.04.1", "Depends": "runc"},
    {"Package": "runc", "Version": "1.3.3-0ubuntu1~24.04.2"},
    {"Package": "docker-compose-v2", "Version": "2.40.3", "Depends": "docker.io"},
    {"Package": "wh-theirs", "Version": "1.0"},
    {"Package": "wh-rival", "Version": "1.0", "Conflicts": "wh-theirs", "Depends": "runc"},
    {"Package": "wh-slow", "Version": "1.0"},
    {"Package": "wh-frail", "Version": "1.0"},
    {"Package": "wh-bad", "Version": "1.0", "Depends": "runc"},
    {"Package": "wh-zeal", "Version": "1.0", "Depends": "wh-frail"},
]
SCRIPTS = {
    "wh-frail": "#!/bin/sh\nif [ ! -e /var/fallen ]; then touch /var/fallen; kill -9 $PPID; fi\n",
    "wh-bad": "#!/bin/sh\nexit 1\n",
}
DONE: dict[str, Any] = {"installed": True, "to_add": [], "to_change": [], "to_change_foreign": [], "to_remove": []}


@pytest.fixture(scope="module")
def sourced(debian: Debian, asked: Agent, tmp_path_factory: pytest.TempPathFactory) -> Agent:
    keyring = Keyring(tmp_path_factory.mktemp("gpg") / "home")
    make_repository(debian.root / REPOSITORY.lstrip("/"), keyring, CONTROLS, SCRIPTS)
    where = {"uri": f"file:{REPOSITORY}", "suite": "/", "components": []}
    key = {"key": keyring.public, "key_sha256": keyring.sha256}
    asked.set("AptSource", {"name": "winhost-docker"}, {"present": True, **where, **key}, {}, {})
    debian.run("apt-get", "-q", "-y", "install", "wh-theirs", "nvidia-firmware=1.0")
    return asked


def installed(debian: Debian) -> str:
    """Every package with its version, what is held, and what came by itself."""
    listed = debian.run("dpkg-query", "--show", "--showformat=${db:Status-Abbrev}${Package} ${Version}\n")
    return listed + debian.run("apt-mark", "showauto") + debian.run("apt-mark", "showhold")


@pytest.fixture
def agent(sourced: Agent, debian: Debian) -> Iterator[Agent]:
    """The agent. At the end, its undo leaves all packages as they were."""
    before = installed(debian)
    yield sourced
    assert installed(debian) == before
    assert list((debian.root / "var/lib/winhost/sets").glob("*")) == []


def state(agent: Agent, key: dict[str, str]) -> Any:
    return agent.get("AptPackages", key)


def install(agent: Agent, key: dict[str, str], desired: dict[str, Any] = DONE, accept: tuple[str, ...] = ()) -> Any:
    before = state(agent, key)
    expect = {name: before[name] for name in desired}
    return agent.set("AptPackages", key, desired, expect, {"accept": list(accept)})


def take_back(agent: Agent, key: dict[str, str], answer: Any, desired: dict[str, Any] = DONE) -> Any:
    before = {name: answer.before[name] for name in desired if answer.before[name] != desired[name]}
    undo = find_undo(RULES["AptPackages"], before, answer.after, state(agent, key))
    return agent.set("AptPackages", key, undo, {}, {}).after  # type: ignore[arg-type]


def refused(agent: Agent, key: dict[str, str], desired: dict[str, Any]) -> str:
    with pytest.raises(RemoteError) as caught:
        agent.set("AptPackages", key, desired, {}, {})
    return caught.value.fault.code


def test_a_plan_shows_all_that_apt_would_do(agent: Agent) -> None:
    facts = Facts("here", "recorded", "2026-11-23T00:00:00+00:00", "0", agent.read(["WslAccess", "AptPackages"]))
    goal = DesiredResource("AptPackages", DOCKER, {**DONE, "held": True}, "Docker", "For the test.")
    (step,) = steps_for((goal,), host_answers(facts))
    runc, containerd = "runc 1.3.3-0ubuntu1~24.04.2", "containerd 1.7.28-0ubuntu1~24.04.1"
    assert step.before["to_add"] == [containerd, "docker.io 28.2.2-0ubuntu1~24.04.1", runc]
    assert step.risks == ()


def test_a_set_comes_held_in_one_transaction_and_goes_with_what_it_brought(agent: Agent, debian: Debian) -> None:
    before = state(agent, DOCKER)
    desired = {**DONE, "held": True}
    answer = install(agent, DOCKER, desired)
    assert answer.after == {**before, **desired}
    assert debian.run("apt-mark", "showhold") == "docker.io\n"
    assert debian.run("apt-mark", "showauto", "runc", "containerd") == "containerd\nrunc\n"
    log = (debian.root / "var/log/apt/history.log").read_text()
    assert log.rpartition("Commandline")[2].count("Install:") == 1
    assert install(agent, DOCKER, desired).after == answer.after  # changes nothing
    assert take_back(agent, DOCKER, answer, desired) == before


def test_a_transitional_package_shows_where_it_leads(agent: Agent) -> None:
    answer = install(agent, OLD_HEADLESS)
    assert answer.before["to_add"] == [f"nvidia-headless-no-dkms-590 {V595}", f"nvidia-headless-no-dkms-595 {V595}"]
    take_back(agent, OLD_HEADLESS, answer)


def test_what_recommends_is_not_brought_and_what_is_shared_is_ours_once(agent: Agent) -> None:
    first = install(agent, UTILS)
    second = install(agent, HEADLESS)
    assert second.before["to_add"] == [f"nvidia-headless-no-dkms-580-server-open {V580}"]
    # What the first brought the second needs: rollback keeps it, and apt would take both.
    assert state(agent, UTILS)["needed_by"] == ["nvidia-headless-no-dkms-580-server-open"]
    assert refused(agent, UTILS, {"installed": False}) == "Winhost.InUse"
    take_back(agent, HEADLESS, second)
    take_back(agent, UTILS, first)


def test_what_others_installed_changes_only_with_approval_and_goes_back(agent: Agent, debian: Debian) -> None:
    debian.run("apt-mark", "auto", "nvidia-firmware")
    before = state(agent, FIRMWARE)
    assert before["to_change_foreign"] == ["nvidia-firmware 1.0 -> 2.0"]
    change = Change(FIRMWARE, {"to_change_foreign": before["to_change_foreign"]}, {"to_change_foreign": []})
    assert consents_of(RULES["AptPackages"].risks, change) == ("packages",)
    assert refused(agent, FIRMWARE, DONE) == "Winhost.ChangesForeign"
    answer = install(agent, FIRMWARE, accept=("packages",))
    assert answer.after["installed"] is True
    assert take_back(agent, FIRMWARE, answer) == before
    assert debian.run("apt-mark", "showauto", "nvidia-firmware") == "nvidia-firmware\n"
    debian.run("apt-mark", "manual", "nvidia-firmware")


def test_what_would_remove_what_others_installed_is_refused(agent: Agent) -> None:
    assert state(agent, RIVAL)["to_remove"] == ["wh-theirs 1.0"]
    assert refused(agent, RIVAL, DONE) == "Winhost.WouldRemove"


def test_what_apt_would_do_otherwise_by_now_is_drift(agent: Agent, debian: Debian) -> None:
    planned = state(agent, DOCKER)
    debian.run("apt-get", "-q", "-y", "install", "runc")
    with pytest.raises(Drifted) as caught:
        agent.set("AptPackages", DOCKER, DONE, {"to_add": planned["to_add"]}, {})
    assert set(caught.value.differences) == {"to_add"}
    debian.run("apt-get", "-q", "-y", "purge", "runc")


def test_what_we_did_not_install_stays(agent: Agent) -> None:
    assert refused(agent, {"packages": "wh-theirs"}, {"installed": False}) == "Winhost.NotOurs"


def test_a_hold_of_others_is_theirs_again(agent: Agent, debian: Debian) -> None:
    key = {"packages": "nvidia-firmware wh-theirs"}
    debian.run("apt-mark", "hold", "wh-theirs")
    answer = install(agent, key, {"held": True})
    assert debian.run("apt-mark", "showhold") == "nvidia-firmware\nwh-theirs\n"
    take_back(agent, key, answer, {"held": True})
    assert debian.run("apt-mark", "showhold") == "wh-theirs\n"
    debian.run("apt-mark", "unhold", "wh-theirs")


def test_what_no_source_has_waits_for_one_and_what_cannot_be_meant_is_refused(agent: Agent) -> None:
    assert state(agent, {"packages": "nobody-has-this"})["to_add"] == {"unavailable": "AptSource"}
    assert refused(agent, {"packages": "nobody-has-this"}, DONE) == "Winhost.NoSource"
    assert refused(agent, {"packages": "docker.io=9.9"}, DONE) == "Winhost.ProgramFailed"
    for hostile in ("--purge", "docker.io -y", "b a", "a a=1", "docker.io;reboot", "docker.io/sid", "docker.io-"):
        assert refused(agent, {"packages": hostile}, DONE) == "Winhost.BadRequest"


def test_a_transaction_that_was_broken_off_goes_on_or_back(agent: Agent, debian: Debian) -> None:
    before = state(agent, FRAIL)
    with pytest.raises(RemoteError):
        install(agent, FRAIL)
    assert state(agent, FRAIL)["installed"] is None
    answer = agent.set("AptPackages", FRAIL, DONE, {}, {})
    assert answer.after["installed"] is True
    assert agent.set("AptPackages", FRAIL, {"installed": False}, {}, {}).after == before
    (debian.root / "var/fallen").unlink()
    with pytest.raises(RemoteError):
        install(agent, FRAIL)
    assert agent.set("AptPackages", FRAIL, {"installed": False}, {}, {}).after == before


def test_what_cannot_be_configured_is_taken_back(agent: Agent) -> None:
    key = {"packages": "wh-bad"}
    before = state(agent, key)
    assert refused(agent, key, DONE) == "Winhost.ProgramFailed"
    assert state(agent, key)["installed"] is None
    assert agent.set("AptPackages", key, {"installed": False}, {}, {}).after == before


def test_other_installations_are_waited_for_and_it_says_so(agent: Agent, debian: Debian) -> None:
    heard: list[str] = []
    agent.on_wait = heard.append
    (debian.root / "run").mkdir(exist_ok=True)
    with (debian.root / "var/lib/dpkg/lock-frontend").open("r+b") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        releasing = threading.Timer(8, lambda: fcntl.lockf(lock, fcntl.LOCK_UN))
        releasing.start()
        began = time.monotonic()
        answer = install(agent, DOCKER)
        assert time.monotonic() - began > 7
    assert "waiting for another installation of packages to end, for up to 600 s" in heard
    take_back(agent, DOCKER, answer)
    with (debian.root / "var/lib/dpkg/lock-frontend").open("r+b") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        with pytest.raises(RemoteError) as caught:
            agent.set("AptPackages", DOCKER, DONE, {}, {"within": 2})
        assert caught.value.fault.code == "Winhost.PackagesBusy"


def test_the_first_boot_is_waited_for(agent: Agent, debian: Debian) -> None:
    debian.run("mkdir", "-p", "/run/cloud-init")
    debian.run("touch", "/run/cloud-init/enabled")
    with pytest.raises(RemoteError) as caught:
        agent.set("AptPackages", DOCKER, DONE, {}, {"within": 2})
    assert caught.value.fault.code == "Winhost.PackagesBusy"
    debian.run("touch", "/run/cloud-init/result.json")
    take_back(agent, DOCKER, install(agent, DOCKER))
    debian.run("rm", "-r", "/run/cloud-init")
