"""What containers need inside the distro: CDI, which names the GPUs to them, Docker, and where packages come from."""

from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files

CDI_SERVICE_FILE = "/etc/systemd/system/winhost-cdi.service"
CDI_PATH_FILE = "/etc/systemd/system/winhost-cdi.path"


# The driver store that WSL mounts changes with the driver of Windows, which a running distro never sees: /usr/lib/wsl
# is no file system that tells of changes (systemd.path), so each boot, and each new nvidia-ctk, writes the spec anew.
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


@dataclass(frozen=True)
class Repository:
    """A source of packages, with the key that signs it. fingerprint: of that key, and who tells it."""

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


# Docker runs a container with this runtime where it is told `--gpus`, or `--runtime nvidia`.
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
