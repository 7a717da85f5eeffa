"""WSL of a simulated Windows: what wsl.exe answers, who sees what, what lives how long."""

import json
from hashlib import sha256
from typing import Any

import pytest

from winhost.lab.contract.agent_answers import AgentAnswers
from winhost.lab.hostfile import expand, find
from winhost.lab.physics.lab_section import LabSection
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.wsl_distros import Distros, distro_folder

IMAGE = "9b2f7730dc68227dd04a9f3e5eab86ad85caf556b8606ad94f1f29ff5c4fd3f5"
STAGED = f"C:\\ProgramData\\winhost\\files\\{IMAGE}-ubuntu-24.04.4-wsl-amd64.wsl"
OWNED = {"account": "winhost", "distro": "Ubuntu-24.04"}
FRESH = {"account": "winhost", "distro": "fresh"}
CONFIG = "C:\\Users\\winhost\\.wslconfig"


def served(**wsl: Any) -> Machine:
    """A host that serves from WSL2 already."""
    facts, lab = expand(find("win11-wsl-served"))
    return Machine(facts, LabSection.model_validate(lab.model_dump() | {"wsl": wsl}))


def wsl(machine: Machine, *arguments: str, account: str = "winhost") -> tuple[int, str, str]:
    return machine.distros.wsl(account, arguments, b"")


def inside(machine: Machine, distro: str, *command: str) -> tuple[int, str, str]:
    return wsl(machine, "-d", distro, "-u", "root", "--cd", "/", "-e", *command)


def names(machine: Machine, *, running: bool = False, account: str = "winhost") -> list[str]:
    code, output, _ = wsl(machine, "--list", "--quiet", "--running" if running else "--all", account=account)
    assert code == 0
    return output.split()


def ask(machine: Machine, *calls: dict[str, Any]) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = json.loads(AgentAnswers(machine).invoke(json.dumps({"calls": calls})))["answers"]
    return answers


def put(machine: Machine, resource: str, key: dict[str, str], desired: dict[str, Any]) -> dict[str, Any]:
    (answer,) = ask(machine, {"resource": resource, "verb": "set", "key": key, "desired": desired})
    return answer


def mode(machine: Machine) -> str:
    return inside(machine, "Ubuntu-24.04", "wslinfo", "--networking-mode")[1].strip()


# ---- what it says


def test_what_linux_says_comes_through_as_it_is_and_the_rest_in_utf16_where_it_knows_nothing_else() -> None:
    machine = served(always_utf16=True)
    assert inside(machine, "Ubuntu-24.04", "wslinfo", "--networking-mode")[1] == "nat\n"
    assert wsl(machine, "--list", "--quiet", "--all")[1] == "Ubuntu-24.04\nDebian\n".encode("utf-16-le").decode()


def test_an_error_is_minus_one_with_its_code() -> None:
    code, output, _ = wsl(served(), "--terminate", "nobody")
    assert code == -1
    assert output.endswith("\nError code: Wsl/Service/WSL_E_DISTRO_NOT_FOUND\n")


def test_a_program_that_is_not_there_is_an_error_of_linux() -> None:
    code, output, errors = inside(served(), "Ubuntu-24.04", "/bin/nothing")
    assert (code, output, "execvpe(/bin/nothing)" in errors) == (1, "", True)


def test_a_distro_belongs_to_whoever_imported_it() -> None:
    machine = served()
    assert names(machine, account="Administrator") == []
    assert wsl(machine, "--unregister", "Ubuntu-24.04", account="Administrator")[0] == -1
    assert names(machine) == ["Ubuntu-24.04", "Debian"]


# ---- how long things live


def test_a_distro_that_nobody_holds_ends() -> None:
    machine = served()
    machine.files.write(CONFIG, b"")
    wsl(machine, "--shutdown")
    assert inside(machine, "Debian", "/bin/true")[0] == 0
    assert names(machine, running=True) == []


def test_without_an_idle_timeout_it_goes_on() -> None:
    machine = served()
    inside(machine, "Debian", "/bin/true")
    assert names(machine, running=True) == ["Ubuntu-24.04", "Debian"]


def test_the_task_that_holds_it_is_enough_and_starts_it_with_windows() -> None:
    machine = served()
    machine.files.write(CONFIG, b"")
    assert machine.run_shutdown() == (0, "")
    machine.wait_until_ready()
    assert names(machine, running=True) == ["Ubuntu-24.04"]


def test_shutdown_ends_all_distros_of_one_account_and_nobody_elses() -> None:
    machine = served()
    other = machine.distros.session("alice")
    machine.distros.wsl("alice", ["--import", "hers", "C:\\hers", STAGED, "--version", "2"], b"")
    other.distros["hers"].running = True
    wsl(machine, "--shutdown")
    assert names(machine, running=True) == []
    assert other.running


def test_a_vm_reads_its_file_only_when_it_is_made() -> None:
    machine = served()
    machine.files.write(CONFIG, b"[wsl2]\nnetworkingMode=none\n[general]\ninstanceIdleTimeout=-1\n")
    assert mode(machine) == "nat"
    assert (
        ask(machine, {"resource": "WslVm", "verb": "get", "key": {"account": "winhost"}})[0]["state"]["config"] is None
    )
    wsl(machine, "--shutdown")
    assert mode(machine) == "none"


# ---- networks


@pytest.mark.parametrize(
    ("switch", "got"), [("Default Switch", "bridged"), ("default switch", "none"), ("nowhere", "none"), ("", "none")]
)
def test_a_bridge_without_its_switch_is_no_network_at_all(switch: str, got: str) -> None:
    machine = served()
    machine.files.write(CONFIG, f"[wsl2]\nnetworkingMode=bridged\nvmSwitch={switch}\n".encode())
    wsl(machine, "--shutdown")
    assert mode(machine) == got


@pytest.mark.parametrize(("lab", "got"), [({}, "mirrored"), ({"no_mirrored": True}, "nat")])
def test_mirrored_may_fall_back(lab: dict[str, Any], got: str) -> None:
    machine = served(**lab)
    machine.files.write(CONFIG, b"[wsl2]\nnetworkingMode=mirrored\n")
    wsl(machine, "--shutdown")
    assert mode(machine) == got


# ---- import and export, as winhost asks for them


def test_a_folder_with_something_in_it_is_not_ours() -> None:
    machine = served()
    machine.files.write(f"{distro_folder('winhost', 'fresh')}\\thesis.docx", b"")
    answer = put(machine, "WslDistro", FRESH, {"installed": True, "image": IMAGE})
    assert answer["error"]["code"] == "Winhost.NotOurs"
    assert machine.files.read(f"{distro_folder('winhost', 'fresh')}\\thesis.docx") is not None


def test_each_export_gets_a_name_of_its_own() -> None:
    machine = served()
    for _ in range(2):
        put(machine, "WslDistro", OWNED, {"installed": False, "image": None, "running": False})
        put(machine, "WslDistro", OWNED, {"installed": True, "image": IMAGE})
    exports = sorted(machine.files.list_below("C:\\ProgramData\\winhost\\exports"))
    assert [path.rpartition("\\")[2] for path in exports] == ["Ubuntu-24.04-1.tar", "Ubuntu-24.04-2.tar"]


def test_a_distro_that_is_gone_leaves_nothing_but_its_export() -> None:
    machine = served()
    put(machine, "WslDistro", OWNED, {"installed": False, "image": None, "running": False})
    assert list(machine.files.list_below("C:\\ProgramData\\winhost\\distros")) == []


def test_a_distro_that_somebody_made_in_place_of_ours_is_theirs() -> None:
    machine = served()
    wsl(machine, "--unregister", "Ubuntu-24.04")
    wsl(machine, "--import", "Ubuntu-24.04", "D:\\mine", STAGED, "--version", "2")
    (answer,) = ask(machine, {"resource": "WslDistro", "verb": "get", "key": OWNED})
    assert (answer["state"]["image"], answer["state"]["others"]) == (None, 2)
    assert put(machine, "WslDistro", OWNED, {"installed": False})["error"]["code"] == "Winhost.NotOurs"


def test_what_is_no_wsl_is_waited_for() -> None:
    machine = served()
    machine.software.wsl = None
    assert {
        answer.get("unavailable") for answer in ask(machine, *({"resource": n, "verb": "get"} for n in _RESOURCES))
    } == {"Wsl"}


def test_each_step_of_a_plan_finds_what_the_plan_saw() -> None:
    """What one resource does must not look like drift of the next: a plan is made before its first step."""
    machine = served()
    put(machine, "WslDistro", OWNED, {"installed": False, "image": None, "running": False})
    put(machine, "WslDistro", OWNED, {"installed": True, "image": IMAGE, "running": True})
    owner, config = {"account": "winhost"}, "[wsl2]\nmemory=8GB\n[general]\ninstanceIdleTimeout=-1\n"
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBQmLs1Q0m2Y8gRZ0nT9vJwqK4cE7hX5uPdFbVt6SyaA"
    steps: list[tuple[str, dict[str, str], dict[str, Any]]] = [
        ("WslConfig", owner, {"text": config}),
        ("WslVm", owner, {"config": sha256(config.encode()).hexdigest()}),
        ("WslDistro", FRESH, {"installed": True, "image": IMAGE, "running": True}),
        ("WslConf", FRESH, {"conf": "[boot]\nsystemd=true\n", "network": "[Match]\nName=eth0\n"}),
        ("WslAccess", FRESH, {"port": 22, "listen": "192.0.2.7", "authorized": [key], "active": True}),
    ]
    seen = [ask(machine, {"resource": resource, "verb": "get", "key": key})[0]["state"] for resource, key, _ in steps]
    for (resource, where, desired), state in zip(steps, seen, strict=True):
        expect = {name: state[name] for name in desired}
        call = {
            "resource": resource,
            "verb": "set",
            "key": where,
            "desired": desired,
            "expect": expect,
            "how": {"accept": ["vm-stop"]},
        }
        (answer,) = ask(machine, call)
        assert (resource, answer["ok"], {name: answer["after"][name] for name in desired}) == (resource, True, desired)
    for resource, where, desired in steps:
        (answer,) = ask(machine, {"resource": resource, "verb": "get", "key": where})
        assert {name: answer["state"][name] for name in desired} == desired


_RESOURCES = ("WslDistro", "WslVm", "WslConf", "WslAccess")


def test_a_part_is_made_of_what_was_read() -> None:
    """A twin of a twin is the same."""
    first = served()
    second = Machine(first.facts(), first.lab)
    assert isinstance(second.distros, Distros)
    assert second.snapshot() == first.snapshot()
