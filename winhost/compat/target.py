"""The target: the Linux that would serve with one variant on a host. Capability rules judge it."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeAlias, TypeVar

from packaging.version import InvalidVersion, Version

from winhost.core.answers import NOT_READ, MissingFact, RemoteFault, Unknown
from winhost.findings.condition import Reader
from winhost.hardware.gpus import NvLink, find_model
from winhost.hardware.host_gpus import (
    catalogue_entry,
    gpu_memory,
    gpu_name,
    is_compute_gpu,
    may_drive_display,
    runs_cuda,
)
from winhost.knowledge.versions import subjects_with_lines
from winhost.model.facts import Instance
from winhost.model.measured import Measurement
from winhost.model.path import PATHS_OF_LINUX, AvailableMemory, path_of
from winhost.model.units import Bytes
from winhost.resources.host import Gpu, HostFacts, property_reader
from winhost.resources.linux.read_only import LinuxGpu, LinuxGpuDriver, LinuxSystem
from winhost.resources.registry import RESOURCE_TYPES
from winhost.resources.windows.distros import Wsl
from winhost.resources.windows.pci_device import DISPLAY, PciDevice
from winhost.resources.windows.read_only import OsFamily
from winhost.sizing.memories import WINDOWS, wsl_default_ram

# The kernel in each release of the WSL package, the newest first. Source: microsoft/WSL, packages.config of its tags.
_KERNELS = (
    (Version("2.9.1"), Version("6.18.35.2")),
    (Version("2.8.5"), Version("6.18.26.1")),
    (Version("2.8.0"), Version("6.6.114.1")),
    (Version("2.7.9"), Version("6.18.33.2")),
    (Version("2.7.8"), Version("6.18.33.1")),
    (Version("2.7.4"), Version("6.18.26.1")),
    (Version("2.7.0"), Version("6.6.114.1")),
    (Version("2.5.9"), Version("6.6.87.2")),
)
_WINDOWS_DRIVER = re.compile(r"(\d)\.(\d{2})(\d{2})$")
FIRST_WITH_CONTAINERS = Version("2.9")  # an older WSL is replaced before there is a container
_SHARED_WITH_WINDOWS = ("wsl2", "wslc")
_NOT_STATED = Unknown(RemoteFault("NotStated", message="nobody states it"))

_RELEASE = re.compile(r"\d+(\.\d+)*")  # of a kernel, as `6.8.0-87-generic`
VersionReader: TypeAlias = Callable[[], Version | None]
Versions: TypeAlias = tuple[tuple[str, str | None], ...]
"""The versions of a host as text, by name; None: could not be read."""

T = TypeVar("T")


def name_gpus(gpus: Iterable[Gpu]) -> str:
    """Return the names of GPUs with their counts: `2x NVIDIA L20, NVIDIA L4`."""
    return _count_names(tuple(map(gpu_name, gpus)))


@lru_cache(maxsize=1024)
def _count_names(names: tuple[str, ...]) -> str:
    counted = Counter(names)
    return ", ".join(f"{count}x {name}" if count > 1 else name for name, count in sorted(counted.items()))


class Target:
    """The Linux that would serve with `variant` (`dda`, `wsl2/bridged`). stated: versions by name that the user states
    in addition to those of the facts.

    Reading a version that neither the facts nor the user provide raises MissingFact; versions are never guessed.
    """

    def __init__(self, facts: HostFacts, variant: str, stated: Mapping[str, Version] | None = None) -> None:
        self.facts = facts if stated is None else facts.updated(facts.document, stated)
        self._variant, self._path = variant, path_of(variant)
        self.scopes = self._path, variant

    def for_variant(self, variant: str) -> "Target":
        """Return the target of another variant on the same host. Answers that hold for both are computed once."""
        return Target(self.facts, variant)

    def __getitem__(self, name: str) -> Any:
        """Answer a question in a sentence."""
        if name in QUESTIONS:
            return QUESTIONS[name](self)
        return self.facts.the(RESOURCE_TYPES[name].state)

    @property
    def stated(self) -> Mapping[str, Version]:
        return self.facts.stated

    @property
    def variant(self) -> str:
        self.facts.add_inputs(self._path, self._variant)
        return self._variant

    @property
    def path(self) -> str:
        self.facts.add_inputs(self._path)
        return self._path

    @property
    def all_gpus(self) -> tuple[Gpu, ...]:
        """All GPUs that could serve."""
        return self.facts.cached(_all_gpus, _all_gpus, self.facts)

    @property
    def memory(self) -> Bytes:
        """The memory of the machine."""
        return self.facts.the(LinuxSystem).memory if self.facts.is_linux else self.facts.memory.total

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that CUDA runs on."""
        return self.facts.cached(_gpus, _gpus, self.facts)

    @property
    def measurement(self) -> Measurement | None:
        """The newest measurement on this path, unless the driver has changed since."""
        found = self.latest_measurement
        return found if found and self._has_driver_of(found) else None

    @property
    def latest_measurement(self) -> Measurement | None:
        """The newest measurement on this path, whatever the driver is now."""
        return max(
            (each for each in self.facts.measured if each.path == self.path), key=lambda each: each.at, default=None
        )

    def _has_driver_of(self, measurement: Measurement) -> bool:
        """Tell whether the driver may still be that of the measurement. Only the numbers that both have are compared:
        `580` matches `580.159.04`.
        """
        try:
            now, then = self.driver.release, Version(measurement.found.driver or "").release
        except (MissingFact, InvalidVersion):
            return True
        return all(one == other for one, other in zip(now, then, strict=False))

    @property
    def vllm(self) -> Version:
        return self._version("vllm")

    @property
    def cuda(self) -> Version:
        return self._version("cuda")

    @property
    def toolkit(self) -> Version:
        """nvidia-container-toolkit."""
        return self._version("toolkit")

    @property
    def wsl(self) -> Version:
        return self._version("wsl", lambda: wsl_version(self.facts))

    @property
    def kernel(self) -> Version:
        """Linux."""
        return self._version("kernel", self._choose_reader(self._kernel_of_wsl, self._kernel_of_linux))

    @property
    def driver(self) -> Version:
        """NVIDIA's, as `591.59`: the oldest of all GPUs. WSL uses the Windows driver."""
        return self._version("driver", self._choose_reader(self._driver_of_windows, self._driver_of_linux))

    @property
    def versions(self) -> Versions:
        """The versions against which evidence is checked, as far as they are known."""
        return self.facts.cached((Target._versions, self._path), Target._versions, self)

    def _versions(self) -> Versions:
        found: list[tuple[str, str | None]] = []
        for name in subjects_with_lines():
            if name not in _VERSION_READERS or (name == "wsl" and self.path not in _SHARED_WITH_WINDOWS):
                continue
            try:
                version = _VERSION_READERS[name](self)
            except MissingFact as missing:
                if missing.missing is not _NOT_STATED:
                    found.append((name, None))
                continue
            if version is not None and not (name == "wsl" and self.path == "wslc" and version < FIRST_WITH_CONTAINERS):
                found.append((name, str(version)))
        return tuple(found)

    def _windows(self, name: str) -> Version | None:
        """Return the build of a client (`windows`) or of a server; None for the other kind."""
        os = None if self.facts.is_linux else self.facts.os
        is_server = os is not None and os.family in (OsFamily.SERVER, OsFamily.AZURE_LOCAL)
        return _parse_version(str(os.build)) if os is not None and is_server == (name == "server") else None

    def _ubuntu(self) -> Version | None:
        system = self.facts.the(LinuxSystem) if self.path in PATHS_OF_LINUX else None
        if system is None or system.id != "ubuntu" or system.wsl:
            return None
        found = _RELEASE.match(system.version or "")
        return Version(found[0]) if found else None

    def _choose_reader(self, of_windows: VersionReader, of_linux: VersionReader) -> VersionReader | None:
        """Choose the reader that applies to the path; None for a Linux that is still to be installed."""
        if self.path in PATHS_OF_LINUX:
            return of_linux
        return of_windows if self.path in _SHARED_WITH_WINDOWS else None

    def _kernel_of_linux(self) -> Version | None:
        found = _RELEASE.match(self.facts.the(LinuxSystem).kernel)
        return Version(found[0]) if found else None

    def _driver_of_linux(self) -> Version | None:
        found = _RELEASE.match(self.facts.the(LinuxGpuDriver).loaded or "")
        return Version(found[0]) if found else None

    def _version(self, name: str, read: VersionReader | None = None) -> Version:
        found = self.facts.version(name) or (read() if read else None)
        if found is None:
            raise MissingFact(f"the version of {name}", _NOT_STATED)
        return found

    def _kernel_of_wsl(self) -> Version | None:
        wsl = self.wsl
        return next((kernel for first, kernel in _KERNELS if wsl >= first), None)

    def _driver_of_windows(self) -> Version | None:
        versions = [driver_branch(gpu.pci.state.driver_version) for gpu in self.gpus]
        known = [version for version in versions if version]
        return min(known) if known else None


@lru_cache(maxsize=256)
def _parse_version(version: str) -> Version:
    return Version(version)


def wsl_version(facts: HostFacts) -> Version | None:
    """Return the installed WSL; None where it records no version. A version stated in the workload counts as
    installed.
    """
    version = facts.the(Wsl).version
    return _parse_version(version) if version else None


def is_in_guest(target: Target) -> bool:
    """Tell whether the GPUs were assigned to a VM, or will be. Raises MissingFact."""
    return target.path == "dda" or target.facts.the(LinuxSystem).virtualization != "none"


QUESTIONS: Mapping[str, Callable[[Target], Any]] = {
    **{name: attrgetter(name) for name in ("vllm", "cuda", "toolkit", "wsl", "kernel", "driver", "path", "variant")},
    "count": lambda target: len(target.gpus),  # of the GPUs that CUDA runs on
    "gpus": lambda target: name_gpus(target.gpus),
    "devices": lambda target: len(target.all_gpus),  # of all GPUs
    "all_gpus": lambda target: name_gpus(target.all_gpus) or "no GPU",
    "others": lambda target: name_gpus(gpu for gpu in target.all_gpus if gpu not in target.gpus),
    "guest": is_in_guest,
}

# The versions of a host that evidence may not cover. Versions that a plan chooses, such as that of the Ubuntu that it
# installs, are not among them.
_VERSION_READERS: Mapping[str, Callable[[Target], Version | None]] = {
    "windows": lambda target: target._windows("windows"),
    "server": lambda target: target._windows("server"),
    "ubuntu": Target._ubuntu,
    **{name: attrgetter(name) for name in ("wsl", "vllm", "driver", "toolkit")},
}


def target_reader(question: str) -> Reader:
    """Return the reader of a question about a target."""
    if answer := QUESTIONS.get(question):
        return lambda target, _: (answer(target),)
    read = property_reader(question)
    return lambda target, _: read(target.facts)


def gpu_reader(question: str) -> Reader:
    """Return the reader of a question about a GPU: a property of the catalogue (None where the GPU is not listed), or
    `PciDevice.…` on this host.
    """
    if question == "shows":
        return lambda gpu: (may_drive_display(gpu),)
    if question == "peers":
        return peers
    if question == "capability":
        return lambda gpu: (capability(gpu),)
    resource, _, name = question.rpartition(".")
    if resource:
        return lambda gpu: (getattr(gpu.pci.state, name),)
    return lambda gpu: (getattr(catalogue_entry(gpu), name, None),)


def _all_gpus(facts: HostFacts) -> tuple[Gpu, ...]:
    """Return the host's GPUs. Those of a Linux are in the order of their addresses, without what only Windows
    reports.
    """
    return (
        tuple(map(_gpu_of_linux, facts.all(LinuxGpu))) if facts.is_linux else tuple(filter(is_compute_gpu, facts.gpus))
    )


def _gpus(facts: HostFacts) -> tuple[Gpu, ...]:
    return tuple(filter(runs_cuda, facts.cached(_all_gpus, _all_gpus, facts)))


@lru_cache(maxsize=512)
def driver_branch(windows: str | None) -> Version | None:
    """Return NVIDIA's version of a driver from that of Windows, whose last five digits it is: `591.59` from
    `32.0.15.9159`.
    """
    found = _WINDOWS_DRIVER.search(windows or "")
    return Version(f"{found[1]}{found[2]}.{found[3]}") if found else None


def _gpu_of_linux(gpu: Instance[LinuxGpu]) -> Gpu:
    vendor, _, device = (gpu.state.device or "10de:").upper().partition(":")
    unknown: dict[str, Any] = dict.fromkeys(PciDevice.__annotations__, NOT_READ)
    known_state = {
        "name": _name_of(gpu.state),
        "vram": _value_or_none(gpu.state, "vram"),
        "driver": gpu.state.driver,
        "base_class": DISPLAY,
    }
    key = {"location": gpu.key["address"], "device": f"VEN_{vendor}&DEV_{device}"}
    return Gpu(Instance(key, PciDevice(**{**unknown, **known_state})))


def _name_of(gpu: LinuxGpu) -> str:
    model = find_model(gpu.device or "")
    return _value_or_none(gpu, "name") or (model.name if model else f"GPU {gpu.device}")


def _value_or_none(gpu: LinuxGpu, name: str) -> Any:
    """Return a value from nvidia-smi; None where nvidia-smi could not be run."""
    try:
        return getattr(gpu, name)
    except MissingFact:
        return None


# --- Properties of GPUs from the catalogue, and the memory of a target ----------------------------------------------


def gpus_if_several(target: Target) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA runs on if there are at least two, else none: with one GPU, links do not matter."""
    return target.gpus if len(target.gpus) > 1 else ()


def capability(gpu: Gpu) -> Version | None:
    """Return CUDA's compute capability, such as `7.5`; None where it is not known."""
    model = catalogue_entry(gpu)
    return _parse_version("{}.{}".format(*model.compute_capability)) if model and model.compute_capability else None


def peers(gpu: Gpu) -> tuple[str, ...]:
    """Return the known peer-to-peer support of a GPU, as the values of GpuModel.peers."""
    model = catalogue_entry(gpu)
    return model.peers if model else ("untold",)


def gpus_with_peers(gpus: Iterable[Gpu], *words: str) -> list[Gpu]:
    return [gpu for gpu in gpus if not {*words}.isdisjoint(peers(gpu))]


def gpus_with_nvlink(gpus: Iterable[Gpu], by: NvLink) -> list[Gpu]:
    return [gpu for gpu in gpus if (model := catalogue_entry(gpu)) and model.nvlink is by]


def available_memory(target: Target) -> AvailableMemory:
    """Return the memory that a target provides. Raises MissingFact, always for GPU partitions: facts do not contain
    their size.
    """
    if target.path == "gpu-p":
        raise MissingFact("the size of a GPU partition", NOT_READ)
    gpus, host = tuple(map(gpu_memory, target.gpus)), target.memory
    ram = _ram(target.path, host)
    shared = target.path in ("wsl2", "wslc")
    return AvailableMemory(target.variant, gpus, ram, host, shm=ram // 2, pinned=None if shared else ram)


def _ram(path: str, host: Bytes) -> Bytes:
    """Return the memory that the Linux can have: a VM everything but what Windows needs, WSL half unless .wslconfig
    says otherwise.
    """
    match path:
        case "dda":
            return max(host - WINDOWS, 0)
        case "wsl2" | "wslc":
            return wsl_default_ram(host)
        case _:
            return host
