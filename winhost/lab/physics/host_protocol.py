"""What the parts of a simulated host, such as its network, may ask of the host that they belong to."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from winhost.core.answers import Json, Key, Record
from winhost.lab.physics.lab_clock import LabClock
from winhost.lab.physics.lab_section import LabSection
from winhost.lab.physics.pci_function import Device
from winhost.lab.physics.windows_errors import CmdletError
from winhost.lab.physics.windows_files import Files

P = TypeVar("P")


class HostPart(Protocol):
    """A piece of a host with a state and cmdlets of its own."""

    def records(self) -> Mapping[str, Callable[[], Iterable[Record]]]:
        """For each resource that the part knows: a call that lists all its instances."""

    def restarted(self) -> bool:
        """The host came up again: whether Windows has changes to finish."""


class WslRunner(Protocol):
    """The part that runs wsl.exe, as the parts below it see it."""

    def stop_everything(self) -> None:
        """Every VM of WSL ends."""

    def keep_alive(self, account: str, distro: str | None) -> int | None:
        """Keep a distro alive; the exit code where that ended at once."""

    def wsl(self, account: str, arguments: Sequence[str], content: bytes) -> tuple[int, str, str]:
        """wsl.exe as this account: its exit code, its output and its errors."""


class WindowsHost(Protocol):
    """A host, as its parts see it. The mappings and lists are there for parts to add to."""

    lab: LabSection
    clock: LabClock
    files: Files
    devices: list[Device]
    tasks: dict[str, Mapping[str, str]]
    session: dict[str, Callable[[], Json]]
    refusals: dict[str, Callable[[], CmdletError | None]]
    known_as: dict[str, Callable[[Key], Key]]
    listed_as: dict[str, Callable[[Record], Record]]
    awaits: dict[str, Callable[[], str | None]]
    registry_keys: list[Callable[[], Iterable[tuple[str, Mapping[str, Json]]]]]
    registry_writers: dict[str, Callable[[str, Json], None]]
    cim_classes: dict[str, Callable[[], Iterable[Any]]]
    programs: dict[str, Callable[[Sequence[str]], tuple[int, str]]]
    changes: dict[str, Callable[[Key, Mapping[str, Json]], None]]

    @property
    def name(self) -> str:
        """Its computer name."""

    @property
    def is_client(self) -> bool:
        """Whether it is a client Windows."""

    @property
    def manages_vms(self) -> bool:
        """Whether Hyper-V and its PowerShell module are there."""

    @property
    def distros(self) -> WslRunner:
        """Its WSL."""

    def part(self, kind: type[P]) -> P:
        """The one part of this kind."""

    def instances(self, resource: str) -> tuple[Record, ...]:
        """All instances of a resource, whoever may see them."""

    def changing(self, cmdlet: str) -> AbstractContextManager[None]:
        """The host for one cmdlet that changes something. Raises CmdletError, HostDown."""

    def fail(self, name: str, cmdlet: str, **words: object) -> CmdletError:
        """The error `name` of the catalogue, in the language of this host."""

    def record(self) -> Mapping[str, str]:
        """What winhost keeps in the registry, by name."""

    def await_restart(self, reason: str) -> None:
        """Something takes effect with the next restart only."""
