"""A Linux that is already right: looked at whole over SSH, against ansible-core's own modules over the same SSH."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from bench.measure import Case, NotHere
from tests.linux.debian import INSIDE, Debian, NoDebian
from winhost.core.answers import Record
from winhost.engine.detect import read_facts
from winhost.engine.planning import make_plan
from winhost.lab.hostfile import expand
from winhost.model.documents import write_document
from winhost.model.facts import Facts
from winhost.model.plan import PlanRequest
from winhost.model.shipped import shipped
from winhost.paths.path_request import parse_request
from winhost.paths.playbook import read_playbook
from winhost.resources.host import HostFacts

HOST = "bench-01"
BASE = Path(".pytest_cache/d/debian/base")  # the Debian of `make real`
ANSIBLE = "ansible-core==2.19.14"
UNIT = "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n\n[Install]\nWantedBy=multi-user.target\n"
FOLDER = "/etc/systemd/system"
GROUPS = [f"bench-group-{number}" for number in range(8)]
USERS = [f"bench-user-{number}" for number in range(6)]
UNITS = [f"bench-{number}.service" for number in range(8)]
HELD = ["iproute2", "nftables", "sudo", "xfsprogs"]


@contextmanager
def looked_at(folder: Path) -> Iterator[Case]:
    """Whole programs, as an admin or a timer starts them."""
    ansible = _ansible(folder / "ansible")
    (folder / "debian").mkdir()
    try:
        machine = Debian(BASE, folder / "debian")
    except NoDebian as why:
        raise NotHere(str(why)) from why
    with closing(machine):
        winhost = _made_right(machine, folder)
        play = _play(machine, ansible, folder)
        _run(winhost)
        told = _run(play)
        assert "changed=0" in told, told
        yield Case(
            what=f"winhost verify: {len(WANTED)} resources of a Linux",
            against="ansible-playbook, with its own modules and pipelining",
            work=lambda: _run(winhost),
            yardstick=lambda: _run(play),
            aim=0.1,
        )


def _wanted(resource: str, key: Mapping[str, str], **desired: Any) -> Mapping[str, Any]:
    return {"resource": resource, "title": " ".join(key.values()), "key": key, "desired": desired, "why": "To measure."}


WANTED: Sequence[Mapping[str, Any]] = [
    *(_wanted("LinuxGroup", {"group": name}, there=True, system=True) for name in GROUPS),
    *(
        _wanted("LinuxUser", {"user": name}, there=True, system=True, home="/srv", shell="/usr/sbin/nologin")
        for name in USERS
    ),
    *(
        _wanted("LinuxFile", {"path": f"{FOLDER}/{name}"}, text=UNIT, mode="0644", owner="root:root", link=None)
        for name in UNITS
    ),
    *(_wanted("SystemdUnit", {"unit": name}, enabled="enabled", active=True) for name in UNITS[:4]),
    *(_wanted("DebianPackage", {"package": name}, held=True) for name in HELD),
]
TASKS: Sequence[Mapping[str, Any]] = [
    *({"ansible.builtin.group": {"name": name, "system": True}} for name in GROUPS),
    *(
        {
            "ansible.builtin.user": {
                "name": name,
                "system": True,
                "home": "/srv",
                "shell": "/usr/sbin/nologin",
                "create_home": False,
            }
        }
        for name in USERS
    ),
    *(
        {
            "ansible.builtin.copy": {
                "dest": f"{FOLDER}/{name}",
                "content": UNIT,
                "mode": "0644",
                "owner": "root",
                "group": "root",
            }
        }
        for name in UNITS
    ),
    *({"ansible.builtin.systemd_service": {"name": name, "enabled": True, "state": "started"}} for name in UNITS[:4]),
    *({"ansible.builtin.dpkg_selections": {"name": name, "selection": "hold"}} for name in HELD),
]


def _made_right(machine: Debian, folder: Path) -> list[str]:
    """The command that looks at it, once all is as it shall be."""
    ours = read_playbook(shipped("playbooks") / "linux.yaml").model_dump(by_alias=True, mode="json")
    book = {**ours, "settings": {**ours["settings"], "engine": "none"}, "resources": WANTED}
    request = parse_request(PlanRequest("linux", book))
    with closing(machine.agent()) as agent:
        plan = make_plan(HostFacts(_with_gpus(read_facts(agent, request.playbook.named))), request)
        while steps := plan.stages[0].steps:
            for step in steps:
                agent.set(step.resource, step.key, step.desired, {}, {"accept": ["network"], "within": 60})
            plan = make_plan(HostFacts(_with_gpus(read_facts(agent, request.playbook.named))), request)
    (folder / "plan.json").write_text(write_document(plan), encoding="utf-8")
    key = (machine.root / "etc/ssh/ssh_host_ed25519_key.pub").read_text().strip()
    ssh = {"user": "root", "key": f"file:{machine.key}", "host_key": key}
    hosts = {HOST: {"kind": "linux", "address": INSIDE, "ssh": ssh}}
    (folder / "fleet.yaml").write_text(yaml.safe_dump({"schema": "winhost.fleet/1", "hosts": hosts}))
    start = "from winhost.__main__ import main; main()"
    return [sys.executable, "-c", start, "verify", str(folder / "plan.json"), "--fleet", str(folder / "fleet.yaml")]


def _with_gpus(facts: Facts) -> Facts:
    """With the GPUs and system of another: the path plans nothing for a container without."""
    other, _ = expand(shipped("examples") / "linux" / "ubuntu-2xh100.json")
    known = ("LinuxGpu", "LinuxGpuDriver", "ContainerEngine")
    (own,), (system,) = (_records(each, "LinuxSystem") for each in (facts, other))
    known_as = {"LinuxSystem": (replace(system, state={**system.state, "machine_id": own.state["machine_id"]}),)}
    gpus = {name: other.answer(name) for name in known}
    return replace(facts, host=HOST, resources={**facts.resources, **gpus, **known_as})


def _records(facts: Facts, resource: str) -> tuple[Record, ...]:
    answer = facts.answer(resource)
    assert isinstance(answer, tuple)
    return answer


def _ansible(place: Path) -> Path:
    """Installed beside winhost, which needs nothing of it."""
    for command in (
        [sys.executable, "-m", "venv", str(place)],
        [str(place / "bin/pip"), "install", "--quiet", "--disable-pip-version-check", ANSIBLE],
    ):
        if (done := subprocess.run(command, capture_output=True, text=True, timeout=600)).returncode:
            raise NotHere(f"{ANSIBLE} cannot be installed: {done.stderr.strip()[-200:]}")
    return place / "bin/ansible-playbook"


def _play(machine: Debian, program: Path, folder: Path) -> list[str]:
    known = folder / "known_hosts"
    known.write_text(f"{INSIDE} {(machine.root / 'etc/ssh/ssh_host_ed25519_key.pub').read_text()}")
    (folder / "play.yaml").write_text(
        yaml.safe_dump([{"hosts": "all", "gather_facts": False, "remote_user": "root", "tasks": TASKS}])
    )
    ssh = f"-o UserKnownHostsFile={known} -o ControlMaster=auto -o ControlPersist=60s -o ControlPath={folder}/%C"
    variables = f"ansible_pipelining=true ansible_python_interpreter=/usr/bin/python3 ansible_ssh_common_args='{ssh}'"
    (folder / "inventory").write_text(f"{INSIDE} {variables}\n")
    return [str(program), "-i", str(folder / "inventory"), "--private-key", str(machine.key), str(folder / "play.yaml")]


def _run(command: Sequence[str]) -> str:
    environment = {**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_LOCALHOST_WARNING": "0"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
