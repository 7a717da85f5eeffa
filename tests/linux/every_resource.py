"""A plan with every Linux resource type that can be set, for a real Debian."""

import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.linux.debian import Debian, Keyring, make_repository
from tests.linux.debian_disk import SERIAL, UUID
from tests.linux.hub import line_of
from tests.linux.registry import Registry
from tests.linux.standins import put_dockerd, put_gpu, put_program
from tests.linux.test_agent import CTK
from tests.linux.test_cluster import listed, thing
from tests.linux.test_debian_stack import ENGINE, PROGRAM
from tests.linux.test_debian_stack import made as serving_stack
from winhost.cluster.node import CONFIG, UNIT_FILE, NodeRequest, config_file, unit_file
from winhost.cluster.node import PROGRAM as K3S_PROGRAM
from winhost.cluster.node import TOKEN as K3S_TOKEN
from winhost.cluster.node import UNIT as K3S_UNIT
from winhost.cluster.render_request import ClusterRequest
from winhost.lab.physics.ssh_keys import public_line
from winhost.model.workload import Workload

Entry = Mapping[str, Any]

REPOSITORY, SOURCE, INCOMING = "/srv/repository", "winhost-docker", "/srv/incoming"
ARCHIVE = f"{INCOMING}/image.tar"
CONTROLS = [
    {"Package": "wh-lib", "Version": "1.0"},
    {"Package": "wh-tool", "Version": "1.0", "Depends": "wh-lib (= 1.0)"},
]
STORAGE = """\
[storage]
driver = "vfs"
runroot = "/run/containers/storage"
graphroot = "/var/lib/containers/storage"
"""
# What is only waited for is so once its file is there.
AWAITED = {"ShownGpus": "/opt/stand-in/gpu-is-shown", "ServingReady": "/opt/stand-in/engine-answers"}
LATE_ENGINE = ENGINE.replace(
    '"model": asked["model"]', f'"model": os.stat("{AWAITED["ServingReady"]}") and asked["model"]'
)
INITRAMFS = "#!/bin/sh\ncat /etc/modprobe.d/winhost-* > /boot/initrd.img-test 2>/dev/null || true\n"
WEIGHTS = bytes(range(256)) * (1 << 15)


K3S = (Path(__file__).parent / "k3s_standin.py").read_bytes()
_RELEASE = {"sha256": hashlib.sha256(K3S).hexdigest(), "bytes": len(K3S)}
NODE = NodeRequest("debian", "v1.35.5+k3s1", (), ClusterRequest(Workload(()), "", {}))
K3S_FILES = {CONFIG: config_file(NODE), UNIT_FILE: unit_file(NODE)}
OBJECTS = listed(thing("DaemonSet", "nvidia-device-plugin", "kube-system"))


def _hello() -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        archive.writestr("hello.py", "print('hello')\n")
    return raw.getvalue()


_WHEEL, _HELLO = "hello-1.0-py3-none-any.whl", _hello()


@dataclass
class Furnished:
    """A Debian with the programs and files that the resources need."""

    debian: Debian
    source: Entry
    image: Registry = field(default_factory=Registry)

    @property
    def size(self) -> str:
        """Return the size of the disk in bytes."""
        return self.debian.run("blockdev", "--getsize64", self.debian.devices[0]).strip()

    def stack(self, resource: str) -> Sequence[Entry]:
        return [each for each in list[Any](serving_stack().entries) if each["resource"] == resource]


def furnish(debian: Debian, keyring: Keyring) -> Furnished:
    """Install stand-ins for programs of GPUs, which no test machine has, and serve packages, an image and a model."""
    root = debian.root
    make_repository(root / REPOSITORY.lstrip("/"), keyring, CONTROLS, {})
    put_program(root, "nvidia-ctk", CTK)
    put_program(root, "update-initramfs", INITRAMFS)
    put_gpu(debian, shown_once=AWAITED["ShownGpus"])
    put_dockerd(root)
    program = root / PROGRAM.lstrip("/")
    program.parent.mkdir(parents=True)
    assert LATE_ENGINE != ENGINE
    program.write_text(LATE_ENGINE)
    program.chmod(0o755)
    (root / "etc/containers").mkdir()
    (root / "etc/containers/storage.conf").write_text(STORAGE)
    where = {"uri": f"file:{REPOSITORY}", "suite": "/", "components": []}
    made = Furnished(debian, {"present": True, **where, "key": keyring.public, "key_sha256": keyring.sha256})
    (root / INCOMING.lstrip("/")).mkdir()
    (root / INCOMING.lstrip("/") / "model.safetensors").write_bytes(WEIGHTS)
    (root / INCOMING.lstrip("/") / "k3s").write_bytes(K3S)
    (root / INCOMING.lstrip("/") / _WHEEL).write_bytes(_HELLO)
    (root / ARCHIVE.lstrip("/")).write_bytes(archive_of(made.image))
    debian.run("update-initramfs", "-u")
    debian.run("systemctl", "start", "docker.service")
    debian.run("apt-get", "--quiet", "update")
    return made


def archive_of(image: Registry) -> bytes:
    """Write an archive as `docker save` does."""
    config, layer = "config.json", "layer.tar"
    listed = [{"Config": config, "RepoTags": ["localhost/saved:1"], "Layers": [layer]}]
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, data in (
            (config, image.config),
            (layer, image.layer),
            ("manifest.json", json.dumps(listed).encode()),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return raw.getvalue()


def wanted(key: Mapping[str, str], **desired: Any) -> Callable[[Furnished], Sequence[Entry]]:
    return lambda here: [entry(key, desired)]


def entry(key: Mapping[str, str], desired: Mapping[str, Any]) -> Entry:
    return {"key": key, "desired": desired}


def _image(here: Furnished) -> Sequence[Entry]:
    digest = hashlib.sha256((here.debian.root / ARCHIVE.lstrip("/")).read_bytes()).hexdigest()
    key = {"engine": "podman", "image": f"registry.example.com/winhost/test@sha256:{'ab' * 32}"}
    return [entry(key, {"present": True, "archive": ARCHIVE, "archive_sha256": digest})]


def _files(here: Furnished) -> Sequence[Entry]:
    """Return entries of files. The first one may end SSH access."""
    sshd = entry({"path": "/etc/ssh/sshd_config.d/50-winhost-more.conf"}, {"text": "MaxAuthTries 3\n"})
    node = [entry({"path": path}, {"text": text}) for path, text in K3S_FILES.items()]
    return [sshd, *here.stack("LinuxFile"), *node]


def _venv(here: Furnished) -> Sequence[Entry]:
    wheels = [f"sha256:{hashlib.sha256(_HELLO).hexdigest()} {len(_HELLO)} {_WHEEL}"]
    desired = {"python": "3.11", "source": INCOMING, "wheels": wheels}  # of Debian 12
    return [entry({"folder": "/opt/winhost/python-0123456789abcdef"}, desired)]


# What an engine's Python would do: the header of a packed file says which file it was made of.
_PACKS = """
import hashlib, json, pathlib, sys
source, folder = map(pathlib.Path, sys.argv[1:])
made_of = hashlib.sha256((source / "model.safetensors").read_bytes()).hexdigest()
text = json.dumps({"__metadata__": {"winhost.packed": json.dumps({"sha256": made_of})}}).encode()
(folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
"""


def _packed(here: Furnished) -> Sequence[Entry]:
    source, folder = "/srv/winhost/models/test", "/srv/winhost/models/test--packed"
    sandbox = [
        "--property=ProtectSystem=strict",
        "--property=CapabilityBoundingSet=",
        f"--property=ReadWritePaths={folder}",
    ]
    command = ["systemd-run", "--quiet", "--wait", "--pipe", "--collect", *sandbox, "/usr/bin/python3", "-c", _PACKS]
    desired = {
        "source": source,
        "files": [line_of("model.safetensors", WEIGHTS)],
        "command": [*command, source, folder],
    }
    return [entry({"folder": folder}, desired)]


_PACKAGES = {"installed": True, "to_add": [], "to_change": [], "to_change_foreign": [], "to_remove": []}
_MODEL = {"source": INCOMING, "revision": None, "files": [line_of("model.safetensors", WEIGHTS)], "token": None}
_USER = {"there": True, "shell": "/bin/bash", "groups": ["models"]}

# The first of each is where runs are killed.
EVERY: Mapping[str, Callable[[Furnished], Sequence[Entry]]] = {
    "AptPackages": wanted({"packages": "podman"}, **_PACKAGES),
    "AptSource": lambda here: [entry({"name": SOURCE}, here.source)],
    "CdiSpec": wanted({}, present=True, fresh=True),
    "ClusterNode": wanted({"node": NODE.node}, ready=True),
    "ClusterObjects": wanted({"name": "winhost"}, text=OBJECTS, serves=True),
    "ContainerImage": _image,
    "DataDisk": lambda here: [
        entry({"serial": SERIAL, "size": here.size}, {"filesystem": "ext4", "label": "models", "uuid": UUID})
    ],
    "DebianPackage": wanted({"package": "wh-tool"}, version="1.0", held=True),
    "DockerSetting": wanted({"pointer": "/features/cdi"}, value=True),
    "EngineUnit": lambda here: here.stack("EngineUnit"),
    "FirewallPort": wanted({"port": "8000"}, allowed=["10.0.0.0/8"]),
    "KernelModule": wanted({"module": "nouveau"}, blacklisted=True, options="modeset=0", initramfs_due=False),
    "LinuxFile": _files,
    "LinuxFolder": lambda here: here.stack("LinuxFolder"),
    "LinuxGroup": lambda here: [entry({"group": "models"}, {"there": True}), *here.stack("LinuxGroup")],
    "LinuxUser": wanted({"user": "ada"}, **_USER),
    "ModelFiles": wanted({"folder": "/srv/winhost/models/test"}, **_MODEL),
    "Mount": wanted({"path": "/srv/data"}, uuid=UUID, filesystem="ext4", options="noatime", mounted=True),
    "PackedModel": _packed,
    "PythonVenv": _venv,
    "ReleaseFile": lambda here: [entry({"path": K3S_PROGRAM}, {**_RELEASE, "source": f"{INCOMING}/k3s"})],
    "SecretFile": wanted({"path": K3S_TOKEN}, secret="env:PATH"),
    "ServingReady": wanted({}, ready=True),
    "ShownGpus": wanted({}, count=1),
    "SshHostKey": wanted({}, prepared=True),
    "SshKey": wanted({"user": "ada", "key": public_line(b"5" * 32)}, present=True, comment="ada's"),
    "Sysctl": wanted({"name": "net.core.somaxconn"}, live="2048", at_boot="2048"),
    "SystemdUnit": lambda here: [
        *here.stack("SystemdUnit"),
        entry({"unit": K3S_UNIT}, {"enabled": "enabled", "active": True}),
    ],
}


def entries(here: Furnished) -> list[Entry]:
    """Return the entries of a playbook."""
    return [
        {"resource": resource, "title": resource, "why": "For the test.", **each}
        for resource, make in EVERY.items()
        for each in make(here)
    ]
