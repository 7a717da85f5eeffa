"""Containers in the distro: package sources and their keys, a CDI specification of the GPUs, and Docker's settings."""

from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files

from winhost.core.dataclass import dataclass
from winhost.paths.wsl2 import Containers


@dataclass(frozen=True)
class Repository:
    """A package source and the key that signs it. fingerprint: of that key; published_by: where its owner states it."""

    name: str
    title: str
    uri: str
    suite: str
    components: tuple[str, ...]
    key_file: str
    fingerprint: str
    published_by: str

    @property
    def key(self) -> str:
        """The armoured public key."""
        return files(__package__).joinpath("keys", self.key_file).read_text(encoding="ascii")

    @property
    def key_sha256(self) -> str:
        return sha256(self.key.encode("ascii")).hexdigest()


TOOLKIT = Repository(
    name="winhost-nvidia-container-toolkit",
    title="NVIDIA's packages for containers",
    uri="https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH)",
    suite="/",
    components=(),
    key_file="nvidia-container-toolkit.asc",
    fingerprint="C95B321B61E88C1809C4F759DDCAE044F796ECB0",
    published_by="NVIDIA/nvidia-docker, gpgkey",
)


def docker(codename: str) -> Repository:
    """Docker Engine for an Ubuntu by its code name (`noble`)."""
    return Repository(
        name="winhost-docker",
        title="Docker's packages",
        uri="https://download.docker.com/linux/ubuntu",
        suite=codename,
        components=("stable",),
        key_file="docker.asc",
        fingerprint="9DC858229FC7DD38854AE2D88D81803C0EBFCD88",
        published_by="docker/docs, engine/install",
    )


def packages(containers: Containers) -> tuple[Mapping[str, str], ...]:
    """Name, pinned version and title of each package to install."""
    return (
        {"name": "docker-ce", "version": containers.docker, "title": "Docker Engine"},
        {"name": "nvidia-container-toolkit", "version": containers.toolkit, "title": "NVIDIA Container Toolkit"},
    )


CDI_SERVICE_FILE = "/etc/systemd/system/winhost-cdi.service"
CDI_PATH_FILE = "/etc/systemd/system/winhost-cdi.path"


# The driver store that WSL mounts changes with the driver of Windows, which a running distro never sees: /usr/lib/wsl
# sends no change events (systemd.path), so each boot, and each new nvidia-ctk, writes the specification again.
# nvidia-cdi-refresh, from nvidia-container-toolkit 1.20 on, writes the same file; the same device in two files would be
# a conflict. It goes first.
CDI_SERVICE = """\
# Written by winhost.
[Unit]
Description=CDI specification of the GPUs that Windows lends
ConditionPathExists=/dev/dxg
ConditionPathExists=/usr/bin/nvidia-ctk
After=nvidia-cdi-refresh.service
Before=docker.service containerd.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/nvidia-ctk cdi generate --mode=wsl --format=yaml --output=/run/cdi/nvidia.yaml

[Install]
WantedBy=multi-user.target
"""

CDI_PATH = """\
# Written by winhost.
[Unit]
Description=A new nvidia-ctk writes another CDI specification

[Path]
PathChanged=/usr/bin/nvidia-ctk
Unit=winhost-cdi.service

[Install]
WantedBy=multi-user.target
"""


# `docker run --gpus` and `--runtime nvidia` use this runtime.
DOCKER_FILE = "/etc/docker/daemon.json"
DOCKER_SETTINGS = """\
{
  "runtimes": {
    "nvidia": {
      "path": "nvidia-container-runtime",
      "runtimeArgs": []
    }
  }
}
"""

FILES: tuple[Mapping[str, str], ...] = (
    {
        "path": CDI_SERVICE_FILE,
        "text": CDI_SERVICE,
        "title": "The unit that writes the CDI specification",
        "why": "A Windows driver update moves the files that containers get; the specification is rebuilt at start.",
    },
    {
        "path": CDI_PATH_FILE,
        "text": CDI_PATH,
        "title": "The unit that watches nvidia-ctk",
        "why": "A new nvidia-ctk may find more of these files; the specification is rebuilt then, too.",
    },
    {
        "path": DOCKER_FILE,
        "text": DOCKER_SETTINGS,
        "title": "Docker's settings",
        "why": "With NVIDIA's runtime Docker gives GPUs to the containers that ask for them.",
    },
)
UNITS: tuple[Mapping[str, str], ...] = (
    {"name": "docker.service"},
    {"name": "winhost-cdi.service"},
    {"name": "winhost-cdi.path"},
)
