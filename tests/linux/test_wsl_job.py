"""What the plan wants of a distro, done in a real Debian: by the scripts of Windows, through their task and wsl.exe.

Twice: by the real scripts in a PowerShell, where there is one, and by the lab, whose changes this test brings to the
Debian with the calls of wsl.exe, and of the script inside, that the scripts of Windows make.
"""

import shlex
import subprocess
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

import pytest

from tests.linux.debian import INSIDE, OUTSIDE, PREFIX
from tests.linux.distro import ACCOUNT, CONF, IMAGE, NAME, STAGED, Distro
from tests.linux.wsl import FAILED, SYSTEM, Wsl
from tests.powershell.test_accounts import answer, put
from tests.powershell.twins import Scripts, contract, hosts, machine, scripts
from tests.processes import started, wait_for
from winhost.connect.ssh import SshConnector
from winhost.core.undo import Keep, find_undo
from winhost.engine.plan_wsl2 import Wsl2Decisions
from winhost.engine.planning import expand
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_files import FOLDER
from winhost.lab.physics.wsl_distros import Distros
from winhost.model.errors import UsageError
from winhost.model.fleet import LinuxHost
from winhost.model.secrets import SecretRef
from winhost.model.shipped import shipped
from winhost.paths.playbook import read_playbook
from winhost.paths.wsl2 import Wsl2Settings
from winhost.resources.host import HostFacts
from winhost.resources.linux.linux_scripts import session_text
from winhost.resources.registry import LINUX_STATES, RULES, WINDOWS
from winhost.resources.windows.windows_scripts import distro_script

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]  # they take turns, and one is fetched

HOST = "win11-wsl-served"
OWNED = {"account": ACCOUNT, "distro": NAME}
REAL, IMITATED = "the scripts", "the lab"
Ended = tuple[int, str, str]
Run = Callable[[Sequence[str], bytes], Ended]


class Task:
    """The script of the task for jobs, in a PowerShell of its own, with the stand-in for wsl.exe."""

    def __init__(self, engine: Scripts, program: Path, folder: Path) -> None:
        (text,) = engine.run('"$script:WinhostJobScript"')
        (folder / "answers").mkdir(parents=True)
        (folder / "job.ps1").write_text(text.replace("C:\\Program Files\\WSL\\wsl.exe", str(program)), encoding="ascii")
        self._engine, self._folder = engine, folder
        self._jobs = 0

    def run(self, arguments: Sequence[str], content: bytes) -> Ended:
        self._jobs += 1
        given = self._folder / "input"
        given.write_bytes(content)
        put(self._folder, self._jobs, arguments=list(arguments), input=str(given), seconds=300)
        self._engine.run(f"& '{self._folder / 'job.ps1'}'")
        ended = answer(self._folder, self._jobs)
        assert not ended["timed_out"], ended
        return as_on_windows(ended["code"]), ended["output"], ended["errors"]


def as_on_windows(code: int) -> int:
    return -1 if code == FAILED else code


def without_a_task(wsl: Wsl) -> Run:
    def run(arguments: Sequence[str], content: bytes) -> Ended:
        done = wsl.run(ACCOUNT, *arguments, content=content)
        return as_on_windows(done.returncode), done.stdout.decode(), done.stderr.decode()

    return run


class Host:
    """A simulated Windows with the stand-in for wsl.exe. `route`: who answers for it."""

    def __init__(self, way: str, wsl: Wsl, run: Run, ask: Callable[[Machine, dict[str, Any]], dict[str, Any]]) -> None:
        self.route, self.wsl = way, wsl
        self.machine = machine(HOST)
        # What its host file tells of distros; here they are real ones.
        self.machine.distros.sessions.clear()
        self.machine.files.remove_folder(f"{FOLDER}\\distros")
        self.found: dict[str, Mapping[str, Any]] = {}
        self._run, self._ask = run, ask
        self._holding = ExitStack()

    @property
    def debian(self) -> Distro:
        return self.wsl.images[STAGED]

    def get(self, resource: str) -> dict[str, Any]:
        found = self._ask(self.machine, {"verb": "get", "resource": resource, "key": OWNED})
        assert found["ok"], found
        return dict(found["state"])

    def set(self, resource: str, desired: Mapping[str, Any]) -> dict[str, Any]:
        """Set a resource. Return the state after it, which is the desired one."""
        found = self._ask(self.machine, {"verb": "set", "resource": resource, "key": OWNED, "desired": desired})
        assert found["ok"], found
        if self.route == IMITATED:
            self._follow(resource, desired, found["after"])
        self.found.setdefault(resource, found["before"])
        assert {name: found["after"][name] for name in desired} == dict(desired)
        return dict(found["after"])

    def _follow(self, resource: str, desired: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Repeat the lab's changes of its distro in the Debian."""
        if resource == "WslDistro" and desired["installed"]:
            self._call("--import", NAME, f"{FOLDER}\\distros\\{ACCOUNT}\\{NAME}", STAGED, "--version", "2")
        elif resource == "WslDistro":
            self._call("--export", NAME, f"{FOLDER}\\exports\\{ACCOUNT}\\{NAME}-1.tar")
            self._call("--unregister", NAME)
            return
        elif resource == "WslConf":
            encoded = {name: text and b64encode(text.encode()).decode() for name, text in desired.items()}
            self._inside("conf", *(f"{name} {'-' if text is None else f':{text}'}" for name, text in encoded.items()))
            self._call("--terminate", NAME)
        elif after["port"] is None:
            self._inside("close")
            return
        else:
            networks = [f"from {network}" for network in after["allowed"] or ()]
            keys = [f"key {line}" for line in after["authorized"]]
            self._inside("open", f"port {after['port']}", f"listen {after['listen']}", "active yes", *networks, *keys)
            return
        self.hold()

    def _inside(self, verb: str, *lines: str) -> None:
        begin = ("-d", NAME, "-u", "root", "--cd", "/", "-e")
        if lines:
            self._call(
                *begin, "/usr/bin/tee", "/var/lib/winhost.wanted", content="".join(f"{line}\n" for line in lines)
            )
        self._call(*begin, "/bin/sh", "-s", verb, content=distro_script())

    def _call(self, *arguments: str, content: str = "") -> None:
        code, output, errors = self._run(arguments, content.encode())
        assert code == 0, (arguments, output, errors)

    def undo(self, resource: str) -> None:
        now, before = self.get(resource), self.found[resource]
        undo = find_undo(RULES[resource], {name: before[name] for name in WINDOWS[resource].sets}, now, now)
        assert not isinstance(undo, Keep)
        self.set(resource, undo)

    # ---- what the lab would do by itself

    def stand_in(self, patch: pytest.MonkeyPatch) -> None:
        def wsl(lab: Distros, account: str, arguments: Sequence[str], content: bytes) -> Ended:
            ended = self._run(arguments, content)
            if arguments[0] == "--import" and ended[0] == 0:
                self.machine.files.write(f"{arguments[2]}\\ext4.vhdx", b"")
            return ended

        def keep_alive(lab: Distros, account: str, distro: str | None) -> int | None:
            self.hold()
            return None

        if self.route == REAL:
            patch.setattr(Distros, "wsl", wsl)
            patch.setattr(Distros, "keep_alive", keep_alive)

    def hold(self) -> None:
        """Run the task that keeps the distro alive, as Windows does."""
        task = self.machine.accounts.task("keep-alive", ACCOUNT)
        assert task is not None
        words = [str(self.wsl.program(ACCOUNT)), *shlex.split(task.arguments)]
        self._holding.enter_context(started(words, stdin=subprocess.DEVNULL))
        assert self.wsl.run(ACCOUNT, *words[1:-3], "/bin/true").returncode == 0

    def close(self) -> None:
        self.wsl.run(ACCOUNT, "--shutdown")
        self._holding.close()


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[Scripts, Scripts]]:
    """Two PowerShells: one for the agent, and one for the task that it starts and waits for."""
    with ExitStack() as both:
        try:
            yield both.enter_context(scripts()), both.enter_context(scripts())
        except UsageError as error:
            pytest.skip(f"the scripts did not run in a real PowerShell: {error.what}. {error.hint}")


@pytest.fixture(scope="module", params=[pytest.param(REAL, marks=pytest.mark.powershell), IMITATED])
def host(request: pytest.FixtureRequest, wsl: Wsl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    if request.param == REAL:
        agent, runner = request.getfixturevalue("engines")
        task = Task(runner, wsl.program(ACCOUNT), tmp_path_factory.mktemp("task") / "jobs")
        made = Host(REAL, wsl, task.run, lambda on, call: agent.answers(on, call)[0])
    else:
        made = Host(IMITATED, wsl, without_a_task(wsl), lambda on, call: contract(on, call)[0])
    with pytest.MonkeyPatch.context() as patch:
        made.stand_in(patch)
        yield made
    made.close()


@pytest.fixture(scope="module")
def desired(wsl: Wsl) -> Mapping[str, Mapping[str, Any]]:
    """Return the desired state of each resource, bridged and with a static address."""
    playbook = read_playbook(shipped("playbooks") / "wsl2.yaml")
    bridge = {"address": f"{INSIDE}/{PREFIX}", "gateway": OUTSIDE, "dns": [OUTSIDE]}
    key = wsl.images[STAGED].key.with_suffix(".pub").read_text().strip()
    settings = {
        **playbook.settings,
        "distro": NAME,
        "bridge": bridge,
        "access": {"key": key, "allow": [str(ip_interface(f"{INSIDE}/{PREFIX}").network)]},
    }
    decisions = Wsl2Decisions(HostFacts(hosts()[HOST][0]), Wsl2Settings.model_validate(settings), "bridged")
    entries, _ = expand(playbook, decisions)
    return {each.resource: each.desired for each in entries if each.key == OWNED}


def agent_there(host: Host, access: Mapping[str, Any]) -> Any:
    key = SecretRef("file", str(host.debian.key))
    target = LinuxHost(
        name=NAME, address=INSIDE, user="root", host_key=access["host_key"], key=key, port=access["port"]
    )
    return SshConnector(target, session_text()).open()


def host_key(host: Host) -> str:
    return " ".join(host.debian.read("/etc/ssh/ssh_host_ed25519_key.pub").split()[:2])


# ---- one after the other, as a plan does it


def test_a_distro_is_imported_by_the_account_and_held_by_its_task(host: Host, desired: Mapping[str, Any]) -> None:
    after = host.set("WslDistro", desired["WslDistro"])
    assert (after["image"], after["others"]) == (IMAGE, 0)
    assert host.debian.running
    assert host.wsl.run("alice", "--list", "--quiet", "--all").stdout == b""


def test_what_it_starts_with_is_in_effect_at_once(host: Host, desired: Mapping[str, Any]) -> None:
    host.set("WslConf", desired["WslConf"])
    debian = host.debian
    assert debian.read("/etc/wsl.conf") == desired["WslConf"]["conf"]
    wait_for(lambda: "routable (configured)" in debian.run("networkctl", "status", "eth0"))
    said = debian.run("networkctl", "status", "eth0")
    assert "Network File: /etc/systemd/network/10-winhost.network" in said
    assert f"Gateway: {OUTSIDE}" in said
    assert f"DNS: {OUTSIDE}" in said
    assert debian.run("ip", "route", "get", "192.0.2.1").startswith(f"192.0.2.1 via {OUTSIDE} dev eth0 src {INSIDE} ")
    assert debian.read("/etc/resolv.conf") == desired["WslConf"]["resolver"]


def test_its_host_key_comes_back_and_with_it_the_agent_gets_in(host: Host, desired: Mapping[str, Any]) -> None:
    after = host.set("WslAccess", desired["WslAccess"])
    if host.route == REAL:
        assert (after["user"], after["address"], after["host_key"]) == ("root", INSIDE, host_key(host))
    with closing(agent_there(host, {**after, "host_key": host_key(host)})) as agent:
        answers = agent.read([state.resource_type.name for state in LINUX_STATES])
    assert answers["LinuxSystem"][0].state["id"] == "debian"
    assert sorted(name for name, told in answers.items() if not isinstance(told, tuple)) == [
        "CdiSpec",
        "ClusterNode",
        "ClusterObjects",
        "ContainerImage",
        "EngineUnit",
        "PackedModel",
        "ServingReady",
    ]  # not yet


def test_after_windows_has_started_again_it_is_as_it_was(host: Host) -> None:
    access, conf, key = host.get("WslAccess"), host.get("WslConf"), host_key(host)
    assert host.wsl.run(ACCOUNT, "--shutdown").returncode == 0
    assert not host.debian.running
    host.hold()
    wait_for(lambda: f" {INSIDE}:22 " in host.debian.run("ss", "--listening", "--tcp", "--numeric"))
    assert (host.get("WslAccess"), host.get("WslConf"), host_key(host)) == (access, conf, key)
    with closing(agent_there(host, {**access, "host_key": key})) as agent:
        assert agent.get("SystemdUnit", {"unit": "ssh.service"})["enabled"] == "enabled"


def test_taken_back_nothing_of_ours_stays_and_the_distro_is_exported_before_it_goes(host: Host) -> None:
    debian = host.debian
    host.undo("WslAccess")
    assert not debian.exists("/usr/sbin/sshd")
    host.undo("WslConf")
    assert debian.read("/etc/wsl.conf") == CONF
    assert not debian.exists("/etc/systemd/network/10-winhost.network")
    host.undo("WslDistro")
    assert host.wsl.exported.pop() == (NAME, f"{FOLDER}\\exports\\{ACCOUNT}\\{NAME}-1.tar")
    assert host.wsl.run(ACCOUNT, "--list", "--quiet", "--all").stdout == b""


# ---- what goes wrong


def asked_of(program: Path, engines: tuple[Scripts, Scripts], wsl: Wsl, folder: Path, *calls: dict[str, Any]) -> Any:
    """Return the outcomes of calls on a host with this wsl.exe."""
    agent, runner = engines
    task = Task(runner, program, folder / "jobs")
    asked = Host(REAL, wsl, task.run, lambda on, call: agent.answers(on, call)[0])
    with pytest.MonkeyPatch.context() as patch:
        asked.stand_in(patch)
        return agent.answers(asked.machine, *calls)


@pytest.mark.powershell
def test_a_task_that_runs_as_the_system_is_told_so_by_its_code(
    engines: tuple[Scripts, Scripts], wsl: Wsl, tmp_path: Path
) -> None:
    (found,) = asked_of(
        wsl.program(SYSTEM), engines, wsl, tmp_path, {"verb": "get", "resource": "WslDistro", "key": OWNED}
    )
    assert found["error"]["code"] == "Winhost.WslFailed,Wsl/Service/WSL_E_LOCAL_SYSTEM_NOT_SUPPORTED"


@pytest.mark.powershell
def test_one_that_speaks_utf16_whatever_it_is_told_is_understood(
    engines: tuple[Scripts, Scripts], wsl: Wsl, tmp_path: Path
) -> None:
    assert wsl.run(ACCOUNT, "--import", NAME, "C:\\theirs", STAGED, "--version", "2").returncode == 0
    look = {"verb": "get", "resource": "WslDistro"}
    again = {"verb": "set", "resource": "WslDistro", "key": OWNED, "desired": {"installed": True, "image": IMAGE}}
    found, taken = asked_of(wsl.program(ACCOUNT, old=True), engines, wsl, tmp_path, look, again)
    assert [(each["key"]["distro"], each["state"]["others"]) for each in found["instances"]] == [(NAME, 1)]
    assert taken["error"]["code"] == "Winhost.NotOurs"
    wsl.run(ACCOUNT, "--unregister", NAME)
