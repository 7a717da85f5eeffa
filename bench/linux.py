"""A Linux that is already right: a plan applied once more, against ansible-core's own modules over the same SSH."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from bench.measure import Case, NotHere
from tests.linux.debian import INSIDE, Debian, NoDebian
from tests.linux.standins import put_gpu
from winhost.model.shipped import shipped

HOST = "bench-01"
BASE = Path(".pytest_cache/d/debian/base")  # the Debian of `make real`
ANSIBLE = "ansible-core==2.19.14"
_FOR_WINDOWS = (f"pypsrp=={version('pypsrp')}",)  # the same library for both
UNIT = "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n\n[Install]\nWantedBy=multi-user.target\n"
FOLDER = "/etc/systemd/system"
GROUPS = [f"bench-group-{number}" for number in range(8)]
USERS = [f"bench-user-{number}" for number in range(6)]
UNITS = [f"bench-{number}.service" for number in range(8)]
HELD = ["iproute2", "nftables", "sudo", "xfsprogs"]


@contextmanager
def looked_at(folder: Path) -> Iterator[Case]:
    """Whole programs, as an admin or a timer starts them."""
    if not (BASE / "complete").exists():
        raise NotHere('no Debian has been made yet; make it once: make real PARTS="debian"')
    ansible = installed_ansible(folder / "ansible") / "ansible-playbook"
    (folder / "debian").mkdir()
    try:
        machine = Debian(BASE, folder / "debian")
    except NoDebian as why:
        raise NotHere(str(why)) from why
    with closing(machine):
        winhost = _made_right(machine, folder)
        play = _play(machine, ansible, folder)
        assert "nothing to do, 0 changes" in (told := _run(winhost)), told
        assert "changed=0" in (told := _run(play)), told
        yield Case(
            what=f"winhost apply: {len(WANTED)} resources of a Linux",
            against="ansible-playbook of ansible-core, pipelined",
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
    """The command that converges it, once all is as it shall be."""
    put_gpu(machine)  # without one the path has nothing to plan for
    book = yaml.safe_load((shipped("playbooks") / "linux.yaml").read_text(encoding="utf-8"))
    book = {**book, "settings": {**book["settings"], "engine": "none"}, "resources": WANTED}
    (folder / "linux.yaml").write_text(yaml.safe_dump(book))
    key = (machine.root / "etc/ssh/ssh_host_ed25519_key.pub").read_text().strip()
    ssh = {"user": "root", "key": f"file:{machine.key}", "host_key": key}
    hosts = {HOST: {"kind": "linux", "address": INSIDE, "ssh": ssh}}
    (folder / "fleet.yaml").write_text(yaml.safe_dump({"schema": "winhost.fleet/1", "hosts": hosts}))
    start = "from winhost.__main__ import main; main()"
    winhost = [
        "env",
        f"WINHOST_STATE={folder}/state",
        f"WINHOST_FLEET={folder}/fleet.yaml",
        sys.executable,
        "-c",
        start,
    ]
    plan = str(folder / "plan.json")
    asked = ["--path", "linux", "--playbook", str(folder / "linux.yaml"), "--allow-unverified"]
    _run([*winhost, "plan", HOST, *asked, "-o", plan])
    apply = [*winhost, "apply", plan, "--yes"]
    told = _run(apply)
    assert f"applied, {len(WANTED)} changes" in told, told
    return apply


def installed_ansible(place: Path) -> Path:
    """The folder of its programs, installed beside winhost, which needs nothing of it. Raises NotHere."""
    for command in (
        [sys.executable, "-m", "venv", str(place)],
        [str(place / "bin/pip"), "install", "--quiet", "--disable-pip-version-check", ANSIBLE, *_FOR_WINDOWS],
    ):
        if (done := subprocess.run(command, capture_output=True, text=True, timeout=600)).returncode:
            raise NotHere(f"{ANSIBLE} cannot be installed: {done.stderr.strip()[-200:]}")
    return place / "bin"


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
