"""`winhost probe` of a machine of its own, with a stand-in for NVIDIA's libraries: through a real sshd and sudo, and in
a container of a real Podman.
"""

import json
import platform
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Line
from tests.linux.debian import INSIDE, Debian
from tests.linux.every_resource import STORAGE
from tests.linux.test_probe import CC, NAMES, STANDIN, built
from winhost.engine.probe import PARTS

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(2400),
    STANDIN,
]  # they take turns, and one is fetched

HOST, USER, CANARY = "llm-01", "serving", "canary-5d20"
IMAGE = "localhost/probed:1"
PLACE = f"usr/lib/{platform.machine()}-linux-gnu"
# What Python needs in an image of its own: no network brings one.
TAKE = (
    "cd / && tar -cf srv/image.tar lib lib64 usr/lib64 usr/bin/python3* usr/lib/python3.* usr/lib/*-linux-gnu/ld-*"
    + ("".join(f" usr/lib/*-linux-gnu/lib{name}.so*" for name in ("c", "m", "z", "expat", "ffi")))
)
# What systemd-nspawn gives no container within it: a keyring, and cgroups of version 1.
WITHIN = '[containers]\nkeyring = false\ncgroups = "disabled"\n'
CDI = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "all", "containerEdits": {"env": ["STANDIN_GPUS=2"]}}],
    "containerEdits": {
        "mounts": [
            {"hostPath": f"/{PLACE}/{name}", "containerPath": f"/{PLACE}/{name}", "options": ["ro", "bind"]}
            for name in NAMES
        ]
    },
}


@pytest.fixture(scope="module")
def own(debian: Debian, tmp_path_factory: pytest.TempPathFactory) -> Debian:
    """A Debian whose user needs a password for sudo. The libraries are in the folders of NVIDIA's packages."""
    assert CC
    (debian.root / "etc/hosts").write_text(f"127.0.0.1 localhost {debian.run('hostname').strip()}\n")
    debian.run("useradd", "--create-home", "--shell", "/bin/bash", USER)
    debian.run("sh", "-c", 'printf "%s:%s" "$1" "$2" | chpasswd', "sh", USER, CANARY)
    keys = debian.root / f"home/{USER}/.ssh/authorized_keys"
    keys.parent.mkdir()
    keys.write_text(debian.key.with_suffix(".pub").read_text())
    debian.run("chown", "-R", f"{USER}:{USER}", f"/home/{USER}/.ssh")
    rule = debian.root / "etc/sudoers.d/serving"
    rule.write_text(f"{USER} ALL=(ALL) ALL\n")
    rule.chmod(0o440)
    for library in built(tmp_path_factory.mktemp("standin") / "whole").iterdir():
        shutil.copy(library, debian.root / PLACE)
    return debian


@pytest.fixture
def probing(own: Debian, line: Line, monkeypatch: pytest.MonkeyPatch) -> Line:
    key = (own.root / "etc/ssh/ssh_host_ed25519_key.pub").read_text().strip()
    ssh = {"user": USER, "key": f"file:{own.key}", "host_key": key, "sudo_password": "env:SUDO_OF_SERVING"}
    fleet = {"schema": "winhost.fleet/1", "hosts": {HOST: {"kind": "linux", "address": INSIDE, "ssh": ssh}}}
    (line.folder / "fleet.yaml").write_text(json.dumps(fleet))
    monkeypatch.setenv("SUDO_OF_SERVING", CANARY)
    return line


def outcomes(answer: Any) -> dict[str, str]:
    return {each["part"]: each["outcome"] for each in answer["outcomes"]}


def test_every_part_is_tried_as_root_and_kept_as_facts_that_verdicts_rest_on(probing: Line, own: Debian) -> None:
    said = probing("probe", HOST, "--also", "nccl,pin-limit,checkpoint", "-o", "facts", "--json")
    assert said.code == 0, said.err
    measured = said.result["measured"]
    assert (measured["path"], measured["target"]) == ("linux", HOST)
    tried = {*PARTS, "nccl", "pin-limit", "checkpoint"}
    assert outcomes(measured["found"]) == dict.fromkeys(tried, "done"), measured["found"]["outcomes"]
    assert measured["found"]["kernel"] == own.run("uname", "-r").strip()
    assert "COMMAND=/usr/bin/python3" in own.run("journalctl", "--quiet", "--no-pager", "_COMM=sudo")
    kept = Path("facts/llm-01.json").read_text("utf-8")
    assert json.loads(kept)["measured"] == [measured]
    assert CANARY not in kept + said.out + said.err


def test_without_a_driver_each_part_says_so(probing: Line, own: Debian) -> None:
    away = [own.root / PLACE / name for name in NAMES]
    for library in away:
        library.rename(library.with_suffix(".away"))
    try:
        found = probing("probe", HOST, "--json").result["measured"]["found"]
    finally:
        for library in away:
            library.with_suffix(".away").rename(library)
    assert {part for part, outcome in outcomes(found).items() if outcome == "done"} == {"shm"}
    assert "libcuda.so.1" in str(found["outcomes"])


def test_a_container_of_podman_sees_what_its_cdi_specification_gives_it(probing: Line, own: Debian) -> None:
    (own.root / "etc/containers").mkdir()
    (own.root / "etc/containers/storage.conf").write_text(STORAGE)
    (own.root / "etc/containers/containers.conf").write_text(WITHIN)
    (own.root / "etc/cdi").mkdir()
    own.run("apt-get", "--quiet", "update")
    own.run("apt-get", "--quiet", "--yes", "--no-install-recommends", "install", "podman")
    own.run("sh", "-c", TAKE)
    own.run("podman", "import", "--quiet", "/srv/image.tar", IMAGE)
    asked = ("probe", HOST, "--also", "container", "--image", IMAGE, "--json")
    without = probing(*asked).result["measured"]["found"]
    assert outcomes(without)["container"] == "failed"
    assert "nvidia.com/gpu=all" in str(without["outcomes"][-1])
    (own.root / "etc/cdi/nvidia.json").write_text(json.dumps(CDI))
    found = probing(*asked).result["measured"]["found"]
    assert outcomes(found)["container"] == "done", found["outcomes"][-1]
    assert (found["container"]["image"], found["container"]["runtime"]) == (IMAGE, "podman")
    assert outcomes(found["container"]["answer"]) == {"driver": "done", "nccl": "done", "video": "done"}
    assert own.run("podman", "ps", "--all", "--quiet") == ""
    absent = probing(*asked[:-2], "localhost/nobody:1", "--json").result["measured"]["found"]
    assert outcomes(absent)["container"] == "failed"
