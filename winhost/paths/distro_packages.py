"""Packages for containers in the distro: where they come from, with the keys that sign them."""

from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files

from winhost.core.dataclass import dataclass
from winhost.paths.wsl2_settings import Containers


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
