"""Docker's settings for a stack, on a real Debian with systemd."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.linux.debian import Debian
from tests.linux.standins import put_docker
from winhost.connect.agent import Agent
from winhost.connect.wire_errors import RemoteError
from winhost.core.undo import find_undo
from winhost.paths.linux import UNATTENDED, UNATTENDED_FILE, choose_driver
from winhost.resources.registry import RULES

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]  # they take turns, and one is fetched

DAEMON = "etc/docker/daemon.json"
THEIRS = '{\n    "debug": true\n}'
LEFT_ALONE = ["linux-(generic|headers|image|modules|virtual)", "libnvidia-", "nvidia-"]
SET = "linux-modules-nvidia-580-server-open-generic nvidia-headless-no-dkms-580-server-open nvidia-utils-580-server"
CDI = {"pointer": "/features/cdi"}


@pytest.fixture(scope="module")
def agent(asked: Agent) -> Agent:
    return asked


def change(agent: Agent, resource: str, key: dict[str, str], desired: dict[str, Any], *accept: str) -> Any:
    return agent.set(resource, key, desired, {}, {"accept": list(accept)})


def refused(agent: Agent, resource: str, key: dict[str, str], desired: dict[str, Any], *accept: str) -> str:
    with pytest.raises(RemoteError) as caught:
        change(agent, resource, key, desired, *accept)
    return caught.value.fault.code


def taken_back(agent: Agent, resource: str, key: dict[str, str], answer: Any, desired: dict[str, Any]) -> Any:
    """Return the state after the rollback."""
    before = {name: answer.before[name] for name in desired}
    undo = find_undo(RULES[resource], before, answer.after, answer.after)
    assert isinstance(undo, dict), undo
    return change(agent, resource, key, undo, "data", "containers").after


# ---- Docker


@pytest.fixture
def docker(debian: Debian, agent: Agent) -> Iterator[Agent]:
    put_docker(debian.root)
    (debian.root / "etc/docker").mkdir(exist_ok=True)
    (debian.root / DAEMON).write_text(THEIRS)
    (debian.root / "run/docker.containers").unlink(missing_ok=True)
    debian.run("systemctl", "daemon-reload")
    debian.run("systemctl", "restart", "docker.service")
    yield agent
    debian.run("systemctl", "stop", "docker.service")


def settings_in_use(debian: Debian) -> Any:
    return json.loads(debian.run("cat", "/run/docker.settings"))


def test_a_running_docker_takes_a_setting_and_gives_back_the_very_file(docker: Agent, debian: Debian) -> None:
    answer = change(docker, "DockerSetting", CDI, {"value": True})
    assert settings_in_use(debian) == {"debug": True, "features": {"cdi": True}}
    assert taken_back(docker, "DockerSetting", CDI, answer, {"value": True}) == {"value": None}
    assert (debian.root / DAEMON).read_text() == THEIRS
    assert settings_in_use(debian) == {"debug": True}


def test_what_docker_refuses_is_put_back_and_docker_runs_on(docker: Agent, debian: Debian) -> None:
    assert refused(docker, "DockerSetting", {"pointer": "/nobody-knows"}, {"value": 1}) == "Winhost.BadRequest"
    only_at_start = {"pointer": "/default-runtime"}, {"value": "nobody"}
    assert refused(docker, "DockerSetting", *only_at_start) == "Winhost.ProgramFailed"
    assert (debian.root / DAEMON).read_text() == THEIRS
    assert debian.run("systemctl", "is-active", "docker.service") == "active\n"
    assert settings_in_use(debian) == {"debug": True}


def test_containers_end_only_with_consent(docker: Agent, debian: Debian) -> None:
    debian.run("sh", "-c", "echo llm-01 > /run/docker.containers")
    assert refused(docker, "DockerSetting", CDI, {"value": True}) == "Winhost.EndsContainers"
    assert (debian.root / DAEMON).read_text() == THEIRS
    assert change(docker, "DockerSetting", CDI, {"value": True}, "containers").after == {"value": True}


def test_docker_of_a_snap_has_settings_of_its_own(debian: Debian, agent: Agent) -> None:
    (debian.root / "usr/bin/dockerd").unlink(missing_ok=True)
    snap = debian.root / "snap/bin"
    snap.mkdir(parents=True)
    (snap / "docker").symlink_to("/usr/bin/snap")
    assert refused(agent, "DockerSetting", CDI, {"value": False}) == "Winhost.OtherEngine"
    (snap / "docker").unlink()


# ---- the driver


def test_unattended_upgrades_leave_kernel_and_driver_alone(agent: Agent, debian: Debian) -> None:
    found = debian.root / "etc/apt/apt.conf.d/50unattended-upgrades"
    found.write_text('Unattended-Upgrade::Package-Blacklist {\n    "theirs";\n};\n')
    desired = {"text": UNATTENDED, "mode": "0644", "owner": "root:root"}
    answer = change(agent, "LinuxFile", {"path": UNATTENDED_FILE}, desired)
    told = debian.run("apt-config", "dump", "Unattended-Upgrade::Package-Blacklist")
    listed = [line.split('"')[1] for line in told.splitlines()]
    assert [each for each in listed if each] == ["theirs", *LEFT_ALONE]
    assert all(re.match("|".join(LEFT_ALONE), each) for each in choose_driver(["10de:26b9"], [SET]).packages.split(" "))
    taken_back(agent, "LinuxFile", {"path": UNATTENDED_FILE}, answer, desired)
    assert "linux-" not in debian.run("apt-config", "dump", "Unattended-Upgrade::Package-Blacklist")
