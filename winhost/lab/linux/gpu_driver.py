"""NVIDIA's driver on a simulated Linux of its own: the sets of Ubuntu's archive, and what a start makes of them.

Source: package pages of Ubuntu; nothing is loaded before the next start, as where nouveau runs or another version does.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from typing import Any

from winhost.core.answers import Json, Record
from winhost.lab.physics.simulated_machine import Machine

_MODULES = "linux-modules-nvidia-"
_BRANCH = "580-server"
_VERSION = "580.173.02"
FABRIC_MANAGER, FABRIC_UNIT = "nvidia-fabricmanager-580", "nvidia-fabricmanager.service"
_NEEDS = {
    "nvidia-headless-no-dkms": ("libnvidia-compute", "nvidia-compute-utils", "nvidia-kernel-common"),
    "nvidia-utils": ("libnvidia-compute",),
    FABRIC_MANAGER: ("nvidia-kernel-common",),
}
_OF_THE_DRIVER = re.compile(rf"(?P<what>[a-z-]+)-{_BRANCH}(?P<open>-open)?(?P<flavour>-[a-z0-9.-]+)?")
_NOTHING: Mapping[str, Json] = dict.fromkeys(("loaded", "kind", "installed", "signer"))


class GpuDriver:
    """broken: it does not load, as where nobody trusts who signed it; lost: GPUs that fell off the bus; multiverse:
    that archive is among the sources.
    """

    def __init__(self, machine: Machine, packages: Callable[[], Mapping[str, str]]) -> None:
        """packages: those that are installed, with their versions."""
        self._machine, self._packages = machine, packages
        given = machine.instances("LinuxGpuDriver")
        known = given[0].state if given else {}
        self._found: dict[str, Any] = {"packages": [], "libraries": [], "wsl_libcuda": False, **_NOTHING, **known}
        self.loaded: str | None = self._found["loaded"]
        self.kind: str | None = self._found["kind"]
        self.broken, self.multiverse = False, True
        self.lost: set[str] = set()

    @property
    def _system(self) -> Mapping[str, Json]:
        return self._machine.instances("LinuxSystem")[0].state

    def candidate(self, name: str) -> str | None:
        """Its version in an archive of Ubuntu; empty where this one has no such archive, and None for what is no part
        of the driver.
        """
        if name != FABRIC_MANAGER and _OF_THE_DRIVER.fullmatch(name) is None:
            return None
        offered = self._system["id"] == "ubuntu" and (name != FABRIC_MANAGER or self.multiverse)
        return f"{_VERSION}-0ubuntu0.24.04.1" if offered else ""

    def needs(self, name: str) -> Iterator[str]:
        found = _OF_THE_DRIVER.fullmatch(name)
        for each in _NEEDS.get(found["what"] if found else name, ()):
            yield f"{each}-{_BRANCH}"

    def _modules(self) -> str | None:
        return next((name for name in self._packages() if name.startswith(_MODULES)), None)

    @property
    def installed(self) -> str | None:
        """The version of the module on disk: of the package, or of what somebody put there otherwise."""
        name = self._modules()
        if name is not None:
            return self._packages()[name].partition("-")[0]
        return None if self._found["packages"] else self._found["installed"]

    def start(self) -> None:
        """Load the driver that is on disk, as a start of the machine does."""
        self.loaded = None if self.broken else self.installed
        ours = self._modules()
        kind = ("open" if "-open-" in ours else "proprietary") if ours else self._found["kind"]
        self.kind = kind if self.loaded else None

    def state(self, packages: list[str]) -> Mapping[str, Json]:
        signer = "Canonical Ltd. Kernel Module Signing" if self._modules() else self._found["signer"]
        on_disk = {"signer": signer, "libraries": self._found["libraries"]} if self.installed else {"signer": None}
        told = {"loaded": self.loaded, "kind": self.kind, "installed": self.installed, "packages": packages}
        return {**self._found, "libraries": [], **on_disk, **told}

    def gpus(self) -> Iterator[Record]:
        """Yield the GPUs, with nvidia-smi's values only where the driver runs."""
        for record in self._machine.instances("LinuxGpu"):
            yield Record({**record.state, **self._of(record)}, record.key)

    def _of(self, record: Record) -> Mapping[str, Json]:
        found, address = record.state, record.key["address"]
        if self.loaded is None:
            other = found["driver"] if found["driver"] != "nvidia" else "nouveau"
            return {"driver": other, "name": None, "uuid": None, "vram": None}
        if address in self.lost:
            return {"driver": "nvidia", "name": None, "uuid": None, "vram": None}
        digest = sha256(address.encode()).hexdigest()
        uuid = "-".join(("GPU", digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))
        vram = max((bar["size"] for bar in found["bars"]), default=None)
        named = {"name": "NVIDIA Graphics Device", "uuid": uuid, "vram": vram}
        known = {name: found[name] for name in named if found[name] is not None}
        return {"driver": "nvidia", **named, **known}
