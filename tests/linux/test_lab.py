"""The Linux of the lab answers as the real agent does, where that can run."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from tests.engine.two_machines import TwoMachines, two_machines
from tests.linux.cases import CASES, get, put
from tests.linux.sandbox import Sandbox
from tests.rows import each_row
from winhost.connect.agent import Agent
from winhost.core.answers import Record
from winhost.lab.hostfile import expand
from winhost.lab.linux.containers import CONFIG, PROGRAM, UNIT, ContainerStore
from winhost.lab.linux.disk import RESOLVER as RESOLVER_LINK
from winhost.lab.linux.inner_python import InnerLinux, interpreter
from winhost.lab.linux.linux_machine import SSH_UNIT, SSH_UNIT_FILE, SSHD_FILE, sshd_file
from winhost.lab.linux.linuxes import LinuxHost
from winhost.lab.linux.programs import PROGRAMS
from winhost.lab.linux.serving import SimulatedServing
from winhost.lab.linux.software import CDI, LabPackage, Unit
from winhost.lab.physics.host_state import HostDown
from winhost.lab.physics.lab_section import LabClock
from winhost.lab.physics.ssh_keys import public_line
from winhost.resources.registry import LINUX, LINUX_STATES

ROOT = Path(__file__).parents[2]
FILE = {"path": "/etc/cdi/winhost.yaml"}
DAEMON = {"path": "/etc/docker/daemon.json"}
SOURCES = "/etc/apt/sources.list.d"
ARMOURED = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n-----END PGP PUBLIC KEY BLOCK-----\n"
FEATURE = {"pointer": "/features/cdi"}
RESOLVER = {"path": "/etc/resolv.conf"}
PUBLIC = public_line(b"7" * 32)
NONE = {"text": None, "link": None, "mode": None, "owner": None}

MANIFEST = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a", "namespace": "winhost"},
            "spec": {"replicas": 1}}  # fmt: skip

PLAIN_FILE = {"link": None, "mode": "0644", "owner": "root:root"}


PROTOCOL: dict[str, list[dict[str, Any]]] = {
    "half a request": [
        get("LinuxFile", {}),
        get("LinuxFile", {"path": 1}),
        get("LinuxFile", {"path": "/etc/wsl.conf", "more": ""}),
        get("Nothing"),
        {"resource": "LinuxFile", "verb": "drop"},
        {"resource": "LinuxFile", "verb": "set", "key": FILE},
        put("LinuxSystem", {}, {"id": "x"}),
        put("Nothing", {}, {}),
    ],
    "after a change that failed no other is begun": [
        put("LinuxFile", FILE, {"text": "x", "owner": "no:body"}),
        put("LinuxFile", FILE, {"text": "x"}),
        get("LinuxFile", FILE),
    ],
}


@pytest.fixture
def here(tmp_path: Path) -> TwoMachines:
    return machines(tmp_path)


def machines(tmp_path: Path) -> TwoMachines:
    made = two_machines(tmp_path)
    made.distro.systemd = False
    return made


Invoke = Callable[[str], str]


@pytest.fixture
def _as_the_lab_begins(sandbox: Sandbox) -> None:
    for path in (DAEMON["path"], FILE["path"], RESOLVER["path"]):
        sandbox.path(path).unlink(missing_ok=True)
    sandbox.path(RESOLVER["path"]).symlink_to(RESOLVER_LINK)
    sandbox.write("/etc/ssh/ssh_host_ed25519_key.pub", f"{public_line(b'8' * 32)} root@here\n")
    sandbox.run(
        "sh", "-c", "userdel winhost-serving; groupdel winhost-test; rm -rf /var/lib/winhost/made /etc/ssh/*.winhost*"
    )


@pytest.mark.costly
@pytest.mark.usefixtures("_as_the_lab_begins")
@pytest.mark.parametrize("name", [*CASES, *PROTOCOL])
def test_the_lab_answers_as_the_agent_does(here: TwoMachines, agent: Agent, name: str) -> None:
    def real(request: str) -> str:
        return agent.wire.invoke(request, 60)

    lab, calls = here.inside.invoke, CASES[name].calls if name in CASES else PROTOCOL[name]
    assert [answers(lab, call) for call in calls] == [answers(real, call) for call in calls]
    assert answers(lab, *calls) == answers(real, *calls)


@each_row("name", CASES)
def test_a_case_ends_as_it_says_and_touches_nothing_of_this_computer(tmp_path: Path, name: str) -> None:
    case, here = CASES[name], machines(tmp_path)
    for each in (call["resource"] for call in case.calls):
        answered(here.inside.invoke, get(each))  # Python may keep what it compiled of the script
    with audited() as touched:
        said = [outcome(answered(here.inside.invoke, call)) for call in case.calls]
    assert (said, touched) == (case.say, [])


def test_what_a_script_would_change_is_heard(tmp_path: Path) -> None:
    with audited() as touched:
        (tmp_path / "file").write_text("")
        (tmp_path / "folder").mkdir()
    assert [each.partition(" ")[0] for each in touched] == ["open", "os.mkdir"]


@pytest.mark.parametrize("module", ["ctypes", "builtins", "asyncio", "multiprocessing", "posix", "_io", "os.nothing"])
def test_a_script_imports_nothing_that_leads_out(here: TwoMachines, module: str) -> None:
    with interpreter(InnerLinux(here.inside.linux, 1, PROGRAMS)) as inner:
        names = inner.load("winhost.agent.linux_agent")
        imports = names["__builtins__"]["__import__"]
        with pytest.raises((ImportError, AttributeError)):
            imports(module, names, {}, ("all",), 0)
        assert imports("os") is names["os"] is not os
        assert not hasattr(imports("subprocess"), "run")
        assert names["__builtins__"]["open"] is None


WATCHED = ("os.", "shutil.", "socket.", "subprocess.", "ctypes.", "fcntl.", "tempfile.")
HARMLESS = ("os.listdir", "os.scandir", "os.putenv", "os.unsetenv")
LISTENERS: list[list[str]] = []


def listen(event: str, arguments: tuple[Any, ...]) -> None:
    if not LISTENERS:
        return
    writes = event == "open" and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))
    if writes or (event.startswith(WATCHED) and event not in HARMLESS):
        LISTENERS[-1].append(f"{event} {arguments}")


sys.addaudithook(listen)


@contextmanager
def audited() -> Iterator[list[str]]:
    """Record what the block changes, starts or connects to."""
    LISTENERS.append([])
    try:
        yield LISTENERS[-1]
    finally:
        LISTENERS.pop()


def outcome(answer: dict[str, Any]) -> str:
    if answer["ok"] or "error" not in answer:
        return "ok" if answer["ok"] else "drift" if "drift" in answer else "unavailable"
    return str(answer["error"]["code"])


def test_a_fault_of_a_simulated_program_is_told_as_the_simulators(here: TwoMachines) -> None:
    failing = {"lsblk": (None, lambda linux, words: {}["nothing"])}
    ended = InnerLinux(here.inside.linux, 1, failing).run_program("lsblk", (), None)
    assert (ended.code, "The simulator cannot do this (lsblk: KeyError('nothing'))" in ended.errors) == (70, True)


def test_a_fault_of_a_stand_in_is_told_as_the_simulators(here: TwoMachines, monkeypatch: pytest.MonkeyPatch) -> None:
    here.distro.systemd = True
    monkeypatch.setattr(SimulatedServing, "table", lambda _: {"versions": lambda: {}["nothing"]})
    (answer,) = json.loads(
        here.inside.answer("serving", json.dumps({"do": "state", "units": [], "sockets": [], "gpus": True}), 0)
    )["answers"]
    assert answer["error"]["code"] == "Lab.NotStoodIn"


def test_every_resource_that_can_be_set_has_its_cases() -> None:
    shown = {call["resource"] for case in CASES.values() for call in case.calls}
    assert {name for name, resource in LINUX.items() if resource.sets} <= shown


def answers(invoke: Invoke, *calls: dict[str, Any]) -> list[dict[str, Any]]:
    text = invoke(json.dumps({"exclusive": False, "calls": calls}))
    return [plain(answer) for answer in json.loads(text)["answers"]]


def answered(invoke: Invoke, call: dict[str, Any]) -> dict[str, Any]:
    return answers(invoke, call)[0]


def plain(answer: dict[str, Any]) -> dict[str, Any]:
    """Remove messages, and numbers and keys that differ between machines."""
    error = answer.get("error")
    states = {name: without_its_own(answer[name]) for name in ("state", "before", "after") if answer.get(name)}
    return {**answer, **states, **({"error": {**error, "message": ""}} if error else {})}


def without_its_own(state: dict[str, Any]) -> dict[str, Any]:
    numbers = {name: "a number" for name in ("uid", "gid") if state.get(name) is not None}
    return {**state, **numbers, **{name: "a key" for name in ("key", "next") if state.get(name)}}


# ---- what is told without being asked for by name


def test_the_lab_has_every_resource_with_its_key_and_its_state(here: TwoMachines) -> None:
    here.distro.systemd = True
    for package in ("nvidia-container-toolkit-base", "docker.io"):
        here.inside.linux.apt.packages[package] = LabPackage("1.17.8-1")
    inside(here, "LinuxGroup", {"group": "winhost-engines"}, {"there": True, "system": True})
    served = {"engines": [], "gateway": {"listen": "127.0.0.1:8000", "tls": False}}
    here.inside.linux.write_file("/etc/winhost/serving.json", {**PLAIN_FILE, "text": json.dumps(served)})
    here.inside.linux.disk.write(PROGRAM, "", 0o755)
    for state in LINUX_STATES:
        for record in answered(here.inside.invoke, get(state.resource_type.name))["instances"]:
            assert set(record["state"]) == set(state.__annotations__), state.resource_type.name


@pytest.mark.parametrize("listen", ["192.0.2.7", "2001:db8::7"])
def test_the_way_in_shows_as_the_files_that_it_writes(here: TwoMachines, listen: str) -> None:
    here.distro.listen, here.distro.port = listen, 2222
    shown = [here.inside.linux.read_file(path)["text"] for path in (SSHD_FILE, SSH_UNIT_FILE)]
    assert shown == [sshd_file(ip_address(listen), 2222), SSH_UNIT]


def test_an_image_is_pulled_used_and_taken_away_only_if_it_is_ours(here: TwoMachines) -> None:
    key = {"engine": "podman", "image": "docker.io/vllm/vllm-openai@sha256:" + "0" * 64}
    here.inside.linux.apt.packages["podman"] = LabPackage("4.9.3")
    store = here.inside.linux.part(ContainerStore)
    found = inside(here, "ContainerImage", key, {"present": True, "bytes": 9})["after"]
    assert (found["present"], found["bytes"], found["used_by"]) == (True, 9, [])
    assert answered(here.inside.invoke, get("ContainerImage"))["instances"] == [{"key": key, "state": found}]
    store.used_images["llm-01"] = ("podman", found["id"])
    assert inside(here, "ContainerImage", key, {"present": False})["error"]["code"] == "Winhost.InUse"
    store.used_images.clear()
    assert inside(here, "ContainerImage", key, {"present": False})["after"]["id"] is None
    store.images["podman", key["image"]] = found["id"]  # somebody else pulled it
    assert inside(here, "ContainerImage", key, {"present": False})["error"]["code"] == "Winhost.NotOurs"


def test_a_restart_of_docker_ends_containers_with_consent_only(served: TwoMachines) -> None:
    linux = served.inside.linux
    linux.apt.packages["docker.io"] = LabPackage("27.0")
    served.inside.linux.systemd.units["docker.service"] = Unit("enabled", active=True)
    linux.containers.append("llm-01")
    assert inside(served, "DockerSetting", FEATURE, {"value": True})["error"]["code"] == "Winhost.EndsContainers"
    call = {**put("DockerSetting", FEATURE, {"value": True}), "how": {"accept": ["containers"]}}
    assert answered(served.inside.invoke, call)["after"] == {"value": True}
    assert linux.containers == []
    del linux.apt.packages["docker.io"]
    linux.disk.write("/snap/bin/docker", "")
    assert inside(served, "DockerSetting", FEATURE, {"value": None})["error"]["code"] == "Winhost.OtherEngine"


def test_a_model_comes_loses_a_file_and_goes(here: TwoMachines) -> None:
    key = {"folder": "/srv/models/x"}
    files = [f"sha256:{'0' * 64} 1000000000 a", f"git-sha1:{'0' * 40} 2 b"]
    wanted = {"source": "https://x/y", "revision": "0" * 40, "files": files, "token": "env:HF_TOKEN"}
    assert inside(here, "ModelFiles", key, wanted)["after"] == wanted
    here.inside.linux.disk.remove("/srv/models/x/b")
    shown = answered(here.inside.invoke, get("ModelFiles"))["instances"]
    assert shown == [{"key": key, "state": {**wanted, "files": files[:1], "token": None}}]
    assert inside(here, "ModelFiles", key, {"files": files, "token": "env:HF_TOKEN"})["after"] == wanted
    assert inside(here, "ModelFiles", key, {"source": None})["after"]["files"] is None


def test_a_port_is_limited_once_somebody_came_back_and_that_of_sshd_never(served: TwoMachines) -> None:
    key, lab = {"port": "8000"}, served.inside
    calls = [put("FirewallPort", key, {"allowed": wanted}) for wanted in (["10.0.0.0/8", "10.1.0.0/16"], [])]
    assert answered(lab.invoke, calls[0])["error"]["code"] == "Winhost.BadRequest"
    assert answered(lab.invoke, calls[1])["error"]["code"] == "Winhost.ComeBack"
    text = lab.invoke(json.dumps({"calls": [calls[1]]}), lab.connections + 1)
    assert json.loads(text)["answers"][0]["after"] == {"allowed": [], "by": "nftables", "others": []}
    served.distro.port = 2222
    call = put("FirewallPort", {"port": "2222"}, {"allowed": []})
    assert answered(lab.invoke, call)["error"]["code"] == "Winhost.PortOfSsh"


def test_an_own_linux_keeps_what_is_asked_for_over_a_new_connection_alone() -> None:
    facts, section = expand(ROOT / "examples/linux/ubuntu-2xh100.json")
    own = LinuxHost(facts, section, LabClock(0))
    call = put("FirewallPort", {"port": "8000"}, {"allowed": []})
    first, second = own.find_sshd(), own.find_sshd()
    assert first is not None
    assert second is not None
    assert answered(first.invoke, call)["error"]["code"] == "Winhost.ComeBack"
    assert answered(second.invoke, call)["error"]["code"] == "Winhost.ComeBack", "it is older than the change"
    third = own.find_sshd()
    assert third is not None
    assert answered(third.invoke, call)["ok"] is True


def test_a_session_of_an_earlier_boot_restarts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    own = LinuxHost(*expand(ROOT / "examples/linux/ubuntu-2xh100.json"), LabClock(0))
    sshd, told = own.find_sshd(), own.answers.answer
    assert sshd is not None

    def restarted_meanwhile(*asked: Any) -> str:
        own.machine.restart()
        own.machine.wait_until_ready()
        return told(*asked)

    monkeypatch.setattr(own.answers, "answer", restarted_meanwhile)
    with pytest.raises(HostDown):
        sshd.invoke(json.dumps({"calls": [{"resource": "LinuxBoot", "verb": "restart"}]}))
    own.machine.wait_until_ready()
    assert own.machine.boot == 2


def test_an_own_linux_lets_in_by_the_keys_that_it_has() -> None:
    facts, section = expand(ROOT / "examples/linux/ubuntu-2xh100.json")
    own = LinuxHost(facts, section, LabClock(0))
    own.authorized = [f"{PUBLIC} lab"]
    sshd = own.find_sshd()
    assert sshd is not None
    assert answered(sshd.invoke, get("SshKey"))["instances"][0]["state"]["comment"] == "lab"
    answered(sshd.invoke, put("SshKey", {"user": "root", "key": PUBLIC}, {"present": False}))
    assert own.authorized == []


TOLD: dict[str, list[tuple[dict[str, str], dict[str, Any]]]] = {
    "AptSource": [
        ({"name": "winhost-docker"}, {"present": True, "uri": "https://d", "suite": "noble", "components": ["stable"],
          "key": ARMOURED, "key_sha256": sha256(ARMOURED.encode()).hexdigest()}),
    ],
    "ClusterNode": [({"node": "llm-01"}, {"ready": True})],
    "ClusterObjects": [
        ({"name": "winhost"}, {"text": json.dumps({"kind": "List", "items": [MANIFEST]}), "serves": True,
          "token": "env:HF_TOKEN"}),
    ],
    "ContainerImage": [
        ({"engine": "docker", "image": f"docker.io/a/b@sha256:{'0' * 64}"}, {"present": True, "id": "1" * 64,
          "archive": "/srv/a.tar", "archive_sha256": "2" * 64, "bytes": 7, "credentials": None, "used_by": ["llm-01"]}),
    ],
    "DebianPackage": [({"package": "docker.io"}, {"version": "28.2.2", "held": False, "needed_by": []})],
    "EngineUnit": [
        ({"unit": "winhost-engine-a.service"},
         {"text": "[Install]\nWantedBy=multi-user.target\n", "enabled": True, "active": True, "failed": False}),
    ],
    "FirewallPort": [
        ({"port": "8000"}, {"allowed": [], "by": "nftables", "others": []}),
        ({"port": "8443"}, {"allowed": ["10.0.0.0/8", "fd00::/8"], "by": "nftables", "others": []}),
    ],
    "KernelModule": [
        ({"module": "nvidia_drm"}, {"options": "modeset=1", "blacklisted": False, "at_boot": True,
          "initramfs_due": False, "loaded": True, "restart_due": False}),
    ],
    "LinuxFile": [
        ({"path": "/etc/cdi/x.yaml"}, {"text": "x\n", "link": None, "mode": "0600", "owner": "root:root"}),
        ({"path": CONFIG}, {**PLAIN_FILE, "text": "node-name: llm-01\n"}),
        ({"path": f"/etc/systemd/system/{UNIT}"}, {**PLAIN_FILE, "text": "[Install]\n"}),
    ],
    "LinuxFolder": [
        ({"path": f"/opt/winhost/gateway-{'0' * 16}/gateway"}, {"files": {"a.py": "pass\n"}, "only_root": True}),
    ],
    "LinuxGroup": [
        ({"group": "root"}, {"there": True, "system": True, "ours": False, "gid": 0, "members": ["ana", "root"]}),
        ({"group": "winhost-engines"}, {"there": True, "system": True, "ours": True, "gid": 990, "members": []}),
    ],
    "LinuxUser": [
        ({"user": "ana"}, {"there": True, "system": False, "ours": True, "uid": 1000, "home": "/home/ana",
          "shell": "/bin/bash", "groups": ["root"], "expires": "2027-01-02"}),
        ({"user": "root"}, {"there": True, "system": True, "ours": False, "uid": 0, "home": "/root",
          "shell": "/bin/bash", "groups": [], "expires": None}),
    ],
    "ModelFiles": [
        ({"folder": "/srv/models/x"}, {"source": "https://x/y", "revision": "0" * 40, "token": None,
          "files": [f"git-sha1:{'0' * 40} 2 b", f"sha256:{'0' * 64} 1000000000 c/a"]}),
    ],
    "LinuxDisk": [
        ({"disk": "sdb"}, {"size": 9, "serial": "S", "model": None, "by_id": [], "table": None, "filesystem": "xfs",
          "mounted": ["/srv/models"], "holders": [], "read_only": False}),
    ],
    "DataDisk": [
        ({"serial": "S", "size": "9"}, {"disk": "sdb", "holds": ["sdb: signature xfs"], "filesystem": "xfs",
          "label": "data", "uuid": "01234567-89ab-cdef-0123-456789abcdef"}),
    ],
    "Mount": [
        ({"path": "/srv/models"}, {"uuid": "01234567-89ab-cdef-0123-456789abcdef", "filesystem": "xfs",
          "options": "noatime", "mounted": True}),
    ],
    "PackedModel": [
        ({"folder": "/srv/winhost/models/x--packed"}, {"source": "/srv/winhost/models/x", "command": ["podman", "run"],
          "files": [f"sha256:{'0' * 64} 7 model.safetensors"]}),
    ],
    "PythonVenv": [
        ({"folder": f"/opt/winhost/python-{'0' * 16}"}, {"python": "3.12", "wheels": [f"sha256:{'0' * 64} 7 a.whl"],
          "source": "https://x"}),
    ],
    "ReleaseFile": [
        ({"path": "/usr/local/bin/k3s"}, {"source": "https://k", "sha256": "ab" * 32, "bytes": 70_000_000}),
    ],
    "SecretFile": [({"path": "/etc/rancher/k3s/join-token"}, {"secret": "env:TOKEN"})],
    "SshKey": [
        ({"user": "ana", "key": PUBLIC}, {"present": True, "options": "restrict", "comment": "a laptop"}),
        ({"user": "root", "key": PUBLIC}, {"present": True, "options": None, "comment": None}),
    ],
    "SystemdUnit": [({"unit": UNIT}, {"loaded": True, "enabled": "enabled", "active": True, "failed": False})],
    "Sysctl": [({"name": "vm.swappiness"}, {"live": "10", "at_boot": "10"})],
}  # fmt: skip


def test_a_replica_begins_as_the_facts_tell_and_a_restart_changes_none_of_it() -> None:
    facts, section = expand(ROOT / "examples/linux/ubuntu-2xh100.json")
    told = {name: tuple(Record(state, key) for key, state in each) for name, each in TOLD.items()}
    own = LinuxHost(replace(facts, resources={**facts.resources, **told}), section, LabClock(0))
    for _ in range(2):
        for name, records in TOLD.items():
            for key, state in records:
                sshd = own.find_sshd()
                assert sshd is not None
                (answer,) = json.loads(sshd.invoke(json.dumps({"calls": [get(name, key)]})))["answers"]
                assert answer.get("state") == state, (name, key, answer)
        own.machine.restart_computer()
        own.machine.wait_until_ready()


def test_a_disk_is_formatted_mounted_and_let_go() -> None:
    facts, section = expand(ROOT / "examples/linux/ubuntu-2xh100.json")
    empty = dict.fromkeys(TOLD["LinuxDisk"][0][1]) | {"size": 9, "serial": "S", "read_only": False}
    disk = Record({**empty, "by_id": [], "mounted": [], "holders": []}, {"disk": "sdb"})
    own = LinuxHost(replace(facts, resources={**facts.resources, "LinuxDisk": (disk,)}), section, LabClock(0))
    key, path = {"serial": "S", "size": "9"}, {"path": "/srv/data"}
    whole = {"filesystem": "ext4", "label": "data", "uuid": "01234567-89ab-cdef-0123-456789abcdef"}
    mount = {"uuid": whole["uuid"], "filesystem": "ext4", "options": None, "mounted": True}
    call = put("DataDisk", key, whole)
    assert answered(own.answers.invoke, put("Mount", path, mount))["error"]["code"] == "Winhost.WrongState"
    answered(own.answers.invoke, put("Mount", path, {"uuid": None}))
    assert answered(own.answers.invoke, call)["error"]["code"] == "Winhost.NotAccepted"
    accepted = {**call, "how": {"accept": ["data"]}}
    assert answered(own.answers.invoke, accepted)["after"] == {"disk": "sdb", "holds": ["sdb: signature ext4"], **whole}
    again = put("DataDisk", key, {**whole, "label": "other"})
    assert answered(own.answers.invoke, {**again, "how": {"accept": ["data"]}})["error"]["code"] == "Winhost.NotEmpty"
    assert answered(own.answers.invoke, put("Mount", path, mount))["after"] == mount
    shown = answered(own.answers.invoke, get("LinuxDisk"))["instances"][0]["state"]
    assert (shown["filesystem"], shown["mounted"]) == ("ext4", ["/srv/data"])
    own.machine.restart_computer()
    own.machine.wait_until_ready()
    assert answered(own.answers.invoke, get("Mount"))["instances"] == [{"key": path, "state": mount}]
    assert answered(own.answers.invoke, put("Mount", path, {"uuid": None}))["after"]["mounted"] is False
    assert answered(own.answers.invoke, get("LinuxDisk"))["instances"][0]["state"]["mounted"] == []


# ---- packages, units and CDI, as the real ones were seen to behave


def inside(here: TwoMachines, resource: str, key: dict[str, str], desired: dict[str, Any]) -> dict[str, Any]:
    return answered(here.inside.invoke, put(resource, key, desired))


@pytest.fixture
def served(here: TwoMachines) -> TwoMachines:
    here.distro.systemd = True
    return here


def test_a_package_takes_what_it_brought_along_and_only_ours_goes(served: TwoMachines) -> None:
    key = {"package": "docker-ce"}
    assert inside(served, "DebianPackage", key, {"version": "27.5.1"})["error"]["code"] == "Winhost.NoSuchVersion"
    served.inside.linux.disk.write(f"{SOURCES}/winhost-docker.sources", "")
    assert inside(served, "DebianPackage", key, {"version": "27.5.1"})["after"]["version"] == "27.5.1"
    containerd = {"package": "containerd.io"}
    assert inside(served, "DebianPackage", containerd, {"version": None})["error"]["code"] == "Winhost.NotOurs"
    assert served.inside.linux.systemd.state("docker.service")["active"] is True
    inside(served, "DebianPackage", key, {"version": None})
    assert served.inside.linux.apt.packages == {}
    assert served.inside.linux.systemd.state("docker.service")["enabled"] == {"unavailable": "DebianPackage"}


def test_a_set_of_packages_comes_and_goes_as_one(served: TwoMachines) -> None:
    key, linux = {"packages": "containerd.io docker-ce docker-ce-cli"}, served.inside.linux
    state = answered(served.inside.invoke, get("AptPackages", key))["state"]
    assert (state["installed"], state["to_add"]) == (False, {"unavailable": "AptSource"})
    linux.disk.write(f"{SOURCES}/winhost-docker.sources", "")
    before = answered(served.inside.invoke, get("AptPackages", key))["state"]
    assert before["to_add"] == ["containerd.io 1.0-1", "docker-ce 1.0-1", "docker-ce-cli 1.0-1"]
    assert inside(served, "AptPackages", key, {"installed": True, "held": True, "to_add": []})["after"]["held"] is True
    assert inside(served, "AptPackages", key, {"installed": False})["after"] == before
    assert linux.apt.packages == {}
    assert inside(served, "AptPackages", key, {"installed": False})["ok"] is True


def test_what_others_installed_changes_only_with_approval(served: TwoMachines) -> None:
    key, linux = {"packages": "docker.io=27.0"}, served.inside.linux
    linux.apt.packages["docker.io"] = LabPackage("26.1")
    assert inside(served, "AptPackages", key, {"installed": True})["error"]["code"] == "Winhost.ChangesForeign"
    call = {**put("AptPackages", key, {"installed": True}), "how": {"accept": ["packages"]}}
    answer = answered(served.inside.invoke, call)
    assert answer["before"]["to_change_foreign"] == ["docker.io 26.1 -> 27.0"]
    inside(served, "AptPackages", key, {"installed": False})
    assert linux.apt.packages["docker.io"].version == "26.1"
    assert (
        inside(served, "AptPackages", {"packages": "docker.io"}, {"installed": False})["error"]["code"]
        == "Winhost.NotOurs"
    )


def test_a_held_package_keeps_its_version(served: TwoMachines) -> None:
    key = {"package": "docker.io"}
    inside(served, "DebianPackage", key, {"version": "26.1", "held": True})
    assert inside(served, "DebianPackage", key, {"version": "27.0"})["error"]["code"] == "Winhost.WrongState"
    assert inside(served, "DebianPackage", key, {"version": "27.0", "held": False})["after"]["version"] == "27.0"


@pytest.mark.costly
def test_a_spec_goes_with_a_start_of_the_distro_and_fits_the_driver_of_then(served: TwoMachines) -> None:
    key, linux = {"package": "nvidia-container-toolkit"}, served.inside.linux
    linux.disk.write(f"{SOURCES}/winhost-nvidia-container-toolkit.sources", "")
    inside(served, "DebianPackage", key, {"version": "1.17.8-1"})
    assert inside(served, "CdiSpec", {}, {"present": True, "fresh": True})["after"]["devices"] == ["nvidia.com/gpu=all"]
    old = linux.driver
    gpu = next(device for device in served.machine.devices if device.get_known("driver", ""))
    gpu.enabled_state = {**gpu.enabled_state, "driver_version": "99.9"}
    fresh = answered(served.inside.invoke, get("CdiSpec", {}))["state"]["fresh"]
    assert fresh is True, "a running distro never sees another driver"
    served.distro.starts += 1
    assert answered(served.inside.invoke, get("CdiSpec", {}))["state"]["present"] is False
    assert "99.9" in linux.driver != old
    linux.write_file("/etc/systemd/system/" + CDI, {**NONE, "text": "[Install]\n"})
    inside(served, "SystemdUnit", {"unit": CDI}, {"enabled": "enabled"})
    served.distro.starts += 1
    assert answered(served.inside.invoke, get("CdiSpec", {}))["state"]["fresh"] is True
