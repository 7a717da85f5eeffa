"""The engine that runs containers on a Linux of its own: the one that is there, or Docker of the distribution."""

from collections.abc import Mapping
from functools import cached_property

from winhost.core.answers import Json, MissingFact, Unavailable
from winhost.model.reason import Refusal
from winhost.paths.linux_settings import Engine
from winhost.resources.host import HostFacts
from winhost.resources.linux.packages import AptPackages
from winhost.resources.linux.read_only import ContainerEngine, LinuxSystem

DOCKER, PODMAN, NONE = "docker", "podman", "none"
FIRST_WITH_CDI = 25  # Docker; it then has to be turned on, until it is by itself
PACKAGES = {DOCKER: "docker.io", PODMAN: "podman"}
_RUNTIME: Json = {"path": "nvidia-container-runtime", "runtimeArgs": []}


class ChosenEngine:
    """Pure functions of the facts and the setting `engine`. Docker of a snap is left alone: it reads other settings."""

    def __init__(self, facts: HostFacts, asked: Engine) -> None:
        self._facts, self._asked = facts, asked

    @cached_property
    def name(self) -> str:
        """Raises MissingFact, and Refusal (linux.docker-snap)."""
        if self._asked == DOCKER and self._of_snap:
            sentence = "Docker was installed as a snap here, which reads settings of its own."
            raise Refusal(
                "linux.docker-snap", sentence, "Remove it (snap remove docker), or plan with --set engine=none."
            )
        if self._asked != "auto":
            return self._asked
        found = [each for each in (DOCKER, PODMAN) if each in self._there]
        return found[0] if found else NONE if self._of_snap else DOCKER

    @cached_property
    def _engines(self) -> Mapping[str, ContainerEngine]:
        return {each.key["engine"]: each.state for each in self._facts.all(ContainerEngine)}

    @property
    def _there(self) -> Mapping[str, ContainerEngine]:
        return {name: engine for name, engine in self._engines.items() if not engine.snap}

    @property
    def _of_snap(self) -> bool:
        return any(name == DOCKER and engine.snap for name, engine in self._engines.items())

    @property
    def packages(self) -> tuple[Mapping[str, str], ...]:
        """The distribution's packages, where the engine is not installed yet. Raises as `name`, and Refusal
        (linux.no-engine).
        """
        if self.name == NONE:
            return ()
        packages = PACKAGES[self.name]
        state = self._facts.of(AptPackages, {"packages": packages})
        if (self.name in self._there and (state is None or state.installed is not None)) or state is None:
            return ()
        _refuse_unavailable(packages, state)
        return ({"packages": packages, "title": f"{self.name.capitalize()}, which runs containers"},)

    @property
    def units(self) -> tuple[Mapping[str, str], ...]:
        return ({"name": "docker.service"},) if self.name == DOCKER else ()

    @property
    def settings(self) -> tuple[Mapping[str, Json], ...]:
        """Docker's settings; Podman needs none, because it knows CDI."""
        if self.name != DOCKER:
            return ()
        if DOCKER in self._there and major(self._there[DOCKER].version) < FIRST_WITH_CDI:
            why = "This Docker has no CDI yet: --gpus and --runtime nvidia give containers the GPUs."
            return (
                {"pointer": "/runtimes/nvidia", "value": _RUNTIME, "title": "NVIDIA's runtime for Docker", "why": why},
            )
        why = "Docker then gives containers the devices that a CDI specification names: --device nvidia.com/gpu=all."
        return ({"pointer": "/features/cdi", "value": True, "title": "GPUs for Docker by CDI", "why": why},)


def major(version: str) -> int:
    """28 of `28.2.2`; the newest there can be where it does not begin with a number."""
    first = version.partition(".")[0]
    return int(first) if first.isdecimal() else 1_000_000


def _refuse_unavailable(packages: str, state: AptPackages) -> None:
    if state.installed is not False:
        return
    try:
        _ = state.to_add
    except MissingFact as missing:
        if not isinstance(missing.missing, Unavailable):
            raise
        sentence = f"No package source of this Linux has {packages}."
        remedy = "Add one (on Ubuntu: universe), install an engine yourself, or plan with --set engine=none."
        raise Refusal("linux.no-engine", sentence, remedy) from None


# Python and the minor version of glibc: https://packages.ubuntu.com, https://packages.debian.org
_OF: dict[tuple[str, str], tuple[str, int]] = {
    ("ubuntu", "22.04"): ("3.10", 35),
    ("ubuntu", "24.04"): ("3.12", 39),
    ("debian", "12"): ("3.11", 36),
    ("debian", "13"): ("3.13", 41),
}
_OLDEST = 28  # of glibc, where only the Python is said: what wheels of today are made for


def python_of(facts: HostFacts, stated: str | None) -> tuple[str, int, str] | None:
    """Version, glibc and machine; None where nobody knows the Python. stated: by the user, for a Linux to come."""
    try:
        system = facts.the(LinuxSystem)
        known, machine = _OF.get((system.id, system.version or "")), system.architecture
    except MissingFact:
        known, machine = None, "x86_64"
    if stated is not None and (known is None or known[0] != stated):
        return stated, _OLDEST, machine
    return (*known, machine) if known else None
