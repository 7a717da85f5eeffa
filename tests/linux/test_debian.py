"""The resources on a real Debian, through a real sshd: systemd, apt, and the files that winhost writes there."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.linux.debian import INSIDE, Debian, Keyring, make_repository
from tests.linux.unpacked import unpack_linux
from tests.processes import PATIENCE_S, started, wait_for
from winhost.connect.agent import Agent
from winhost.connect.wire_errors import RemoteError, SessionDropped
from winhost.core.answers import Unavailable
from winhost.core.order import steps_for
from winhost.core.steps import DesiredResource
from winhost.core.undo import Keep, find_undo
from winhost.model.facts import Facts
from winhost.model.plan import Plan, PlanRequest, Stage
from winhost.paths import distro_containers
from winhost.resources.registry import LINUX_STATES, RULES, host_answers

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]  # they take turns, and one is fetched

WAITS = {"unavailable": "DebianPackage"}
SOURCE = {"name": "winhost-nvidia-container-toolkit"}
REPOSITORY = "/srv/repository"
TOOL, LIB, USER, CLASH, SLOW, LATE, PART, FRAIL, BROKEN = (
    {"package": f"wh-{name}"} for name in ("tool", "lib", "user", "clash", "slow", "late", "part", "frail", "broken")
)
CONTROLS = [
    {"Package": "wh-lib", "Version": "1.0"},
    {"Package": "wh-lib", "Version": "1.1"},
    {"Package": "wh-tool", "Version": "1.0", "Depends": "wh-lib (= 1.0), libc6 (>= 2)"},
    {"Package": "wh-tool", "Version": "1.1", "Depends": "wh-lib (= 1.1)"},
    {"Package": "wh-user", "Version": "1.0", "Depends": "wh-tool (>= 1.0)"},
    {"Package": "wh-clash", "Version": "1.0", "Conflicts": "wh-lib"},
    {"Package": "wh-slow", "Version": "1.0"},
    {"Package": "wh-late", "Version": "1.0", "Depends": "wh-part (= 1.0)"},
    {"Package": "wh-part", "Version": "1.0"},
    {"Package": "wh-frail", "Version": "1.0"},
    {"Package": "wh-broken", "Version": "1.0", "Depends": "nobody-has-this"},
    {"Package": "docker-ce", "Version": "5.0", "Depends": "docker-ce-cli"},
    {"Package": "docker-ce-cli", "Version": "5.0"},
]
SCRIPTS = {
    "wh-slow": "#!/bin/sh\ntouch /var/begun\nwhile [ ! -e /var/go ]; do sleep 0.1; done\n",
    "wh-late": "#!/bin/sh\ntouch /var/late\nsleep 2\n",
    # As a machine that goes down in the middle of it, the first time.
    "wh-frail": "#!/bin/sh\nif [ ! -e /var/down ]; then touch /var/down; kill -9 $PPID; fi\n",
}


@pytest.fixture(scope="module")
def agent(debian: Debian) -> Iterator[Agent]:
    asked = debian.agent()
    yield asked
    asked.close()


@pytest.fixture(scope="module")
def keyring(debian: Debian, tmp_path_factory: pytest.TempPathFactory) -> Keyring:
    made = Keyring(tmp_path_factory.mktemp("gpg") / "home")
    make_repository(debian.root / REPOSITORY.lstrip("/"), made, CONTROLS, SCRIPTS)
    return made


def source(keyring: Keyring) -> dict[str, Any]:
    where = {"uri": f"file:{REPOSITORY}", "suite": "/", "components": []}
    return {"present": True, **where, "key": keyring.public, "key_sha256": keyring.sha256}


@pytest.fixture
def sourced(agent: Agent, keyring: Keyring) -> Agent:
    agent.set("AptSource", SOURCE, source(keyring), {}, {})
    return agent


def change(agent: Agent, resource: str, key: dict[str, str], desired: dict[str, Any]) -> Any:
    return agent.set(resource, key, desired, {}, {})


def refused(agent: Agent, resource: str, key: dict[str, str], desired: dict[str, Any]) -> str:
    with pytest.raises(RemoteError) as caught:
        change(agent, resource, key, desired)
    return caught.value.fault.code


def undone(resource: str, answer: Any, desired: dict[str, Any], now: Any = None) -> Any:
    before = {name: answer.before[name] for name in desired}
    return find_undo(RULES[resource], before, answer.after, now or answer.after)


# ---- the way in


def test_a_debian_with_systemd_answers_at_its_static_address(agent: Agent) -> None:
    state = agent.get("LinuxSystem", {}) or {}
    assert (state["id"], state["systemd"], state["wsl"]) == ("debian", True, False)
    assert (agent.get("SystemdUnit", {"unit": "systemd-networkd.service"}) or {})["active"] is True


def test_only_a_key_leads_in_and_only_at_that_address(debian: Debian) -> None:
    import paramiko

    with paramiko.Transport((INSIDE, 22)) as transport:
        transport.start_client(timeout=PATIENCE_S)
        with pytest.raises(paramiko.BadAuthenticationType) as caught:
            transport.auth_none("root")
    assert caught.value.allowed_types == ["publickey"]
    assert list(listening(debian)) == [INSIDE]


def listening(debian: Debian) -> Iterator[str]:
    """Return the addresses at which sshd listens, as the kernel reports them."""
    for line in debian.run("ss", "--listening", "--tcp", "--numeric", "--no-header").splitlines():
        address, _, port = line.split()[3].rpartition(":")
        if port == "22":
            yield address


def test_every_resource_is_read_and_fits_its_state(agent: Agent) -> None:
    answers = agent.read([state.resource_type.name for state in LINUX_STATES])
    for state in LINUX_STATES:
        answer = answers[state.resource_type.name]
        if answer == Unavailable("DebianPackage"):
            assert state.resource_type.name in ("CdiSpec", "ContainerImage")
            continue
        if state.resource_type.name in ("EngineUnit", "PackedModel", "ServingReady", "ClusterNode", "ClusterObjects"):
            assert isinstance(answer, Unavailable)  # nothing serves there
            continue
        assert isinstance(answer, tuple), answer
        if not answer:
            # None is plugged in, and none is known before a plan names it.
            elsewhere = state.resource_type.name in ("DataDisk", "LinuxFolder")
            made = state.resource_type.absent is not None or elsewhere
            assert made or not state.resource_type.sets, "there is none, and none can be made"
            continue
        assert {frozenset(record.state) for record in answer} == {frozenset(state.__annotations__)}


# ---- units


def unit(agent: Agent, name: str) -> Any:
    return agent.get("SystemdUnit", {"unit": name})


def test_a_unit_that_winhost_writes_is_enabled_started_and_taken_back(agent: Agent) -> None:
    for path, text in (
        (distro_containers.CDI_SERVICE_FILE, distro_containers.CDI_SERVICE),
        (distro_containers.CDI_PATH_FILE, distro_containers.CDI_PATH),
    ):
        change(agent, "LinuxFile", {"path": path}, {"text": text})
    desired = {"enabled": "enabled", "active": True}
    answer = change(agent, "SystemdUnit", {"unit": "winhost-cdi.path"}, desired)
    assert answer.after == {"loaded": True, "enabled": "enabled", "active": True, "failed": False}
    undo = undone("SystemdUnit", answer, desired)
    assert change(agent, "SystemdUnit", {"unit": "winhost-cdi.path"}, undo).after == answer.before


def test_without_gpus_of_windows_the_cdi_service_does_nothing_and_does_not_fail(agent: Agent) -> None:
    change(agent, "LinuxFile", {"path": distro_containers.CDI_SERVICE_FILE}, {"text": distro_containers.CDI_SERVICE})
    answer = change(agent, "SystemdUnit", {"unit": "winhost-cdi.service"}, {"active": True})
    assert (answer.after["active"], answer.after["failed"]) == (False, False)


def test_a_unit_that_fails_says_so_and_runs_once_its_file_is_mended(agent: Agent, debian: Debian) -> None:
    file, key = {"path": "/etc/systemd/system/winhost-test.service"}, {"unit": "winhost-test.service"}
    text = "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/{}\n"
    change(agent, "LinuxFile", file, {"text": text.format("false")})
    assert refused(agent, "SystemdUnit", key, {"active": True}) == "Winhost.ProgramFailed"
    assert unit(agent, key["unit"])["failed"] is True
    change(agent, "LinuxFile", file, {"text": text.format("true")})
    assert debian.run("systemctl", "show", "--property=NeedDaemonReload", key["unit"]) == "NeedDaemonReload=no\n"
    assert change(agent, "SystemdUnit", key, {"active": True}).after["active"] is True


def test_why_a_unit_failed_is_told_by_its_journal_without_secrets(agent: Agent, debian: Debian) -> None:
    file, key = {"path": "/etc/systemd/system/winhost-says.service"}, {"unit": "winhost-says.service"}
    says = "echo the model is missing; echo HF_TOKEN=hf_canary; echo from https://me:canary@host/x; exit 3"
    change(agent, "LinuxFile", file, {"text": f"[Service]\nType=oneshot\nExecStart=/bin/sh -c '{says}'\n"})
    # Journald is slower than systemd here: it goes on some time after the unit has failed.
    debian.run("systemctl", "kill", "--signal=STOP", "systemd-journald.service")
    late = f"until systemctl is-failed {key['unit']}; do sleep 0.1; done; sleep 1; pkill -CONT systemd-journal"
    with started(debian.inside("sh", "-c", late)), pytest.raises(RemoteError) as caught:
        change(agent, "SystemdUnit", key, {"active": True})
    assert "the model is missing; HF_TOKEN=***; from https://me:***host/x" in caught.value.fault.message
    assert "canary" not in caught.value.fault.message
    change(agent, "LinuxFile", file, {"text": None})


def test_a_drop_in_takes_effect_and_goes_without_a_trace(agent: Agent, debian: Debian) -> None:
    file, unit_ = {"path": "/etc/systemd/system/systemd-networkd.service.d/winhost.conf"}, "systemd-networkd.service"
    answer = change(agent, "LinuxFile", file, {"text": "[Service]\nRestartSec=7\n"})
    assert debian.run("systemctl", "show", "--property=RestartUSec", unit_) == "RestartUSec=7s\n"
    change(agent, "LinuxFile", file, undone("LinuxFile", answer, {"text": ""}))
    assert debian.run("systemctl", "show", "--property=DropInPaths", unit_) == "DropInPaths=\n"


def test_a_unit_that_was_static_is_so_again_after_it_was_masked(agent: Agent) -> None:
    key = {"unit": "systemd-tmpfiles-clean.service"}
    answer = change(agent, "SystemdUnit", key, {"enabled": "masked"})
    assert (answer.before["enabled"], answer.after["enabled"]) == ("static", "masked")
    undo = undone("SystemdUnit", answer, {"enabled": "masked"})
    assert change(agent, "SystemdUnit", key, undo).after == answer.before


def test_a_unit_that_is_not_there_is_told_and_cannot_be_started(agent: Agent) -> None:
    assert unit(agent, "docker.service") == {"loaded": False, "enabled": WAITS, "active": WAITS, "failed": False}
    assert refused(agent, "SystemdUnit", {"unit": "docker.service"}, {"active": True}) == "Winhost.ProgramFailed"
    assert refused(agent, "SystemdUnit", {"unit": "--force"}, {"active": True}) == "Winhost.BadRequest"


# ---- sources


def gone(debian: Debian) -> bool:
    name = SOURCE["name"]
    files = (f"etc/apt/sources.list.d/{name}.sources", f"etc/apt/keyrings/{name}.asc")
    return not any((debian.root / file).exists() for file in files)


@pytest.fixture
def no_source(agent: Agent, debian: Debian) -> Agent:
    change(agent, "AptSource", SOURCE, {"present": False})
    assert gone(debian)
    return agent


def test_a_source_comes_with_its_key_and_goes_with_it(no_source: Agent, debian: Debian, keyring: Keyring) -> None:
    desired = source(keyring)
    answer = change(no_source, "AptSource", SOURCE, desired)
    assert answer.after == desired
    undo = undone("AptSource", answer, desired)
    assert undo == {"present": False}
    assert change(no_source, "AptSource", SOURCE, undo).after == answer.before
    assert gone(debian)


def test_a_key_of_another_digest_is_refused(no_source: Agent, debian: Debian, keyring: Keyring) -> None:
    desired = {**source(keyring), "key_sha256": "0" * 64}
    assert refused(no_source, "AptSource", SOURCE, desired) == "Winhost.BadRequest"
    assert gone(debian)


def test_a_source_that_another_key_signs_is_taken_back(
    no_source: Agent, debian: Debian, keyring: Keyring, tmp_path: Any
) -> None:
    other = Keyring(tmp_path / "gpg")
    desired = {**source(keyring), "key": other.public, "key_sha256": other.sha256}
    assert refused(no_source, "AptSource", SOURCE, desired) == "Winhost.ProgramFailed"
    assert gone(debian)


HOSTILE = {
    "a second field": {"uri": "https://example.com/\nTrusted: yes"},
    "a suite with a line": {"suite": "./\nTrusted: yes"},
    "a component with a line": {"components": ["main\nTrusted: yes"]},
    "a program as a method": {"uri": "copy:/etc"},
    "a key with another text": {"key": "Trusted: yes"},
}


@pytest.mark.parametrize("change_", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_would_be_another_source_is_refused(
    no_source: Agent, debian: Debian, keyring: Keyring, change_: dict[str, Any]
) -> None:
    assert refused(no_source, "AptSource", SOURCE, {**source(keyring), **change_}) == "Winhost.BadRequest"
    assert gone(debian)


def test_a_source_that_somebody_changed_is_left_alone(no_source: Agent, debian: Debian, keyring: Keyring) -> None:
    change(no_source, "AptSource", SOURCE, source(keyring))
    file = debian.root / f"etc/apt/sources.list.d/{SOURCE['name']}.sources"
    text = file.read_text()
    file.write_text(text + "Architectures: amd64\n")
    assert refused(no_source, "AptSource", SOURCE, {"present": False}) == "Winhost.WrongState"
    file.write_text(text)


# ---- packages


def version(agent: Agent, key: dict[str, str]) -> Any:
    return (agent.get("DebianPackage", key) or {})["version"]


@pytest.fixture
def tool(sourced: Agent) -> Iterator[Agent]:
    """wh-tool 1.0, though there is a newer one."""
    change(sourced, "DebianPackage", TOOL, {"version": "1.0", "held": True})
    yield sourced
    change(sourced, "DebianPackage", TOOL, {"version": None, "held": False})


def test_exactly_this_version_comes_with_what_it_needs_exactly(tool: Agent) -> None:
    assert tool.get("DebianPackage", TOOL) == {"version": "1.0", "held": True, "needed_by": []}
    assert tool.get("DebianPackage", LIB) == {"version": "1.0", "held": False, "needed_by": ["wh-tool"]}


def test_what_we_installed_goes_with_what_came_for_it(sourced: Agent) -> None:
    desired = {"version": "1.0", "held": True}
    answer = change(sourced, "DebianPackage", TOOL, desired)
    undo = undone("DebianPackage", answer, desired)
    assert change(sourced, "DebianPackage", TOOL, undo).after == answer.before
    assert version(sourced, LIB) is None


def test_another_version_comes_up_and_down_but_not_past_a_hold(tool: Agent) -> None:
    assert refused(tool, "DebianPackage", TOOL, {"version": "1.1"}) == "Winhost.WrongState"
    assert change(tool, "DebianPackage", TOOL, {"version": "1.1", "held": False}).after["version"] == "1.1"
    assert version(tool, LIB) == "1.1"
    assert change(tool, "DebianPackage", TOOL, {"version": "1.0"}).after["version"] == "1.0"


def test_what_others_need_since_is_kept(tool: Agent) -> None:
    before = {"version": None, "held": False}
    after = tool.get("DebianPackage", TOOL)
    change(tool, "DebianPackage", USER, {"version": "1.0"})
    now = tool.get("DebianPackage", TOOL)
    assert isinstance(find_undo(RULES["DebianPackage"], before, after, now), Keep)  # type: ignore[arg-type]
    assert refused(tool, "DebianPackage", TOOL, {"version": None, "held": False}) == "Winhost.InUse"
    change(tool, "DebianPackage", USER, {"version": None})
    assert version(tool, TOOL) == "1.0"


def test_what_would_remove_others_is_not_installed(tool: Agent) -> None:
    change(tool, "DebianPackage", TOOL, {"held": False})
    assert refused(tool, "DebianPackage", CLASH, {"version": "1.0"}) == "Winhost.WouldRemove"
    assert (version(tool, CLASH), version(tool, LIB)) == (None, "1.0")


def test_what_we_did_not_install_stays(agent: Agent) -> None:
    assert refused(agent, "DebianPackage", {"package": "dbus"}, {"version": None}) == "Winhost.NotOurs"
    assert version(agent, {"package": "dbus"}) is not None


def test_a_version_that_nobody_has_is_said(sourced: Agent) -> None:
    assert refused(sourced, "DebianPackage", TOOL, {"version": "9.9"}) == "Winhost.NoSuchVersion"
    assert refused(sourced, "DebianPackage", TOOL, {"version": "1.0 wh-clash"}) == "Winhost.BadRequest"


def test_an_installation_outlives_its_controller_and_is_settled_by_looking(sourced: Agent, debian: Debian) -> None:
    lost = debian.agent()

    def leave() -> None:
        wait_for((debian.root / "var/begun").exists)
        lost.close()

    leaving = threading.Thread(target=leave)
    leaving.start()
    with pytest.raises(SessionDropped):
        change(lost, "DebianPackage", SLOW, {"version": "1.0"})
    leaving.join(PATIENCE_S)
    assert version(sourced, SLOW) is None  # unpacked, not yet configured
    (debian.root / "var/go").touch()
    state = sourced.get("DebianPackage", SLOW, settled=True) or {}
    assert state["version"] == "1.0"


def test_an_installation_whose_agent_was_killed_goes_with_what_came_for_it(sourced: Agent, debian: Debian) -> None:
    lost = debian.agent()

    def kill() -> None:
        wait_for((debian.root / "var/late").exists)
        debian.kill_agent()

    killing = threading.Thread(target=kill)
    killing.start()
    with pytest.raises(SessionDropped):
        change(lost, "DebianPackage", LATE, {"version": "1.0"})
    killing.join(PATIENCE_S)
    again = debian.agent()
    change(again, "DebianPackage", LATE, {"version": "1.0", "held": True})
    assert (version(again, LATE), version(again, PART)) == ("1.0", "1.0")
    assert change(again, "DebianPackage", LATE, {"version": None, "held": False}).after["version"] is None
    assert version(again, PART) is None
    again.close()


def test_an_installation_that_was_broken_off_is_finished_first(sourced: Agent) -> None:
    assert refused(sourced, "DebianPackage", FRAIL, {"version": "1.0"}) == "Winhost.ProgramFailed"
    assert version(sourced, FRAIL) is None
    answer = change(sourced, "DebianPackage", TOOL, {"version": "1.1"})
    assert answer.warnings == ("An interrupted installation was finished first.",)
    assert (version(sourced, FRAIL), version(sourced, TOOL)) == ("1.0", "1.1")
    for key in (TOOL, FRAIL):
        assert change(sourced, "DebianPackage", key, {"version": None}).after["version"] is None


def test_what_cannot_be_installed_leaves_nothing_of_ours(sourced: Agent, debian: Debian) -> None:
    assert refused(sourced, "DebianPackage", BROKEN, {"version": "1.0"}) == "Winhost.ProgramFailed"
    assert not (debian.root / "var/lib/winhost/packages/wh-broken.json").exists()


# ---- by hand


def stages(keyring: Keyring) -> tuple[tuple[DesiredResource, ...], ...]:
    """Return the resources that could be planned at first, and those that could be planned later."""
    units = {
        distro_containers.CDI_SERVICE_FILE: distro_containers.CDI_SERVICE,
        distro_containers.CDI_PATH_FILE: distro_containers.CDI_PATH,
    }
    first = (
        desired("AptSource", {"name": "winhost-docker"}, source(keyring)),
        *(desired("LinuxFile", {"path": path}, {"text": text, "mode": "0644"}) for path, text in units.items()),
        desired("DebianPackage", {"package": "docker-ce"}, {"version": "5.0", "held": True}),
    )
    unit = desired("SystemdUnit", {"unit": "winhost-cdi.path"}, {"enabled": "enabled", "active": True})
    return first, (*first, unit)


def desired(resource: str, key: dict[str, str], desired: dict[str, Any]) -> DesiredResource:
    return DesiredResource(resource, key, desired, f"{resource} {key}", "For the test.")


def states(agent: Agent) -> Any:
    return agent.read([state.resource_type.name for state in LINUX_STATES])


def plan_of(agent: Agent, debian: Debian, goals: tuple[DesiredResource, ...]) -> Plan:
    facts = Facts("here", "recorded", "2026-11-21T00:00:00+00:00", "0", states(agent))
    stage = Stage(1, goals, steps_for(goals, host_answers(facts), prefix="1."))
    key = (debian.root / "etc/ssh/ssh_host_ed25519_key.pub").read_text()
    return Plan("here", "none", "recorded", facts.read_at, "0", PlanRequest("wsl2", {}), (stage,), (), key)


def by_hand(debian: Debian, number: int, *words: str) -> Any:
    return json.loads(debian.run("python3", "-I", f"/root/by-hand-{number}/run.py", *words, "--json"))


def test_bundles_by_hand_end_as_over_ssh_and_go_back(no_source: Agent, debian: Debian, keyring: Keyring) -> None:
    for path in (distro_containers.CDI_SERVICE_FILE, distro_containers.CDI_PATH_FILE):
        change(no_source, "LinuxFile", {"path": path}, {"text": None})
    found, both = states(no_source), stages(keyring)
    for number, goals in enumerate(both):
        unpack_linux(plan_of(no_source, debian, goals), debian.root / f"root/by-hand-{number}")
        assert by_hand(debian, number, "apply")["outcome"] == "applied"
        assert by_hand(debian, number, "verify")["holds"] is True
    made = states(no_source)
    for number in (1, 0):
        done = by_hand(debian, number, "rollback")
        assert (done["outcome"], done["kept"]) == ("rolled back", [])
    assert states(no_source) == found
    undo = []
    for goals in both:
        for step in plan_of(no_source, debian, goals).steps:
            undo.append(
                (
                    step.resource,
                    dict(step.key),
                    step.desired,
                    no_source.set(step.resource, step.key, step.desired, {}, {}),
                )
            )
    assert states(no_source) == made
    for resource, key, desired, answer in reversed(undo):
        now = no_source.get(resource, key)
        change(no_source, resource, key, undone(resource, answer, dict(desired), now))
    assert states(no_source) == found
