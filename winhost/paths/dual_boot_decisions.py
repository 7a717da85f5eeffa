"""The decisions of Ubuntu beside Windows: where it goes, what Windows gives for it, and what is proven first."""

from collections.abc import Mapping
from functools import cached_property
from hashlib import sha256

from winhost.core.answers import Json, MissingFact, Unavailable
from winhost.core.dataclass import dataclass
from winhost.model.facts import Instance
from winhost.model.reason import Refusal
from winhost.model.units import Bytes, MiB, about, parse_size
from winhost.paths.disks import (
    EFI_SIZE,
    LEAST_FOR_LINUX,
    STAGING_SIZE,
    Gap,
    can_give,
    chosen_disk,
    gaps,
    largest_gap,
    on_disk,
    windows_partition,
)
from winhost.paths.dual_boot_settings import DualBootSettings
from winhost.paths.linux_decisions import ContainersInside, LinuxDecisions, ListOf
from winhost.paths.new_ubuntu import UbuntuDecisions
from winhost.resources.host import HostFacts
from winhost.resources.windows.bit_locker import BitLocker
from winhost.resources.windows.own_partition import LINUX_PARTITION, OWN_EFI, STAGING, OwnPartition
from winhost.resources.windows.partition import EFI, Partition, starts_windows
from winhost.resources.windows.read_only import Disk

LOADER = "\\EFI\\boot\\bootx64.efi"
RESTARTS = 1  # of Windows, which comes up once with the boot order that the installation leaves
_LABEL_OF_FAT = "WINHOST"
LINUX_RUNS = "linux"
_WITH, _WITHOUT = "the disk of Windows", "a disk without Windows"

Item = Mapping[str, Json]


@dataclass(frozen=True)
class Places:
    """The new partitions, in bytes: Ubuntu's at offset, the installer's behind it, and in front an EFI system partition
    where the disk is not that of Windows. shrink_to: the size that Windows gets; None where it stays.
    """

    disk: str
    offset: Bytes
    linux: Bytes
    staging: Bytes
    shrink_to: Bytes | None = None
    efi: Bytes = 0


class DualBootDecisions(ContainersInside):
    """The decisions that the playbook of this path may refer to."""

    def __init__(self, facts: HostFacts, settings: DualBootSettings) -> None:
        self._facts = facts
        self._settings = settings

    @cached_property
    def protected(self) -> tuple[Instance[BitLocker], ...]:
        """Volumes that are encrypted and ask the TPM, or somebody, for a key."""
        volumes = self._facts.all(BitLocker)
        return tuple(each for each in volumes if each.state.conversion == "fully-encrypted" and each.state.protectors)

    @property
    def escrows(self) -> tuple[Item, ...]:
        """Raises Refusal where nobody says how it is proven that the keys are kept."""
        keys = self._settings.keys
        if self.protected and keys is None:
            names = ", ".join(each.key["volume"] for each in self.protected)
            raise Refusal(
                "disk.unproven-key",
                f"BitLocker protects {names}, and nothing says how it is proven that the recovery keys are kept",
                "Add --set keys.by=active-directory or keys.by=entra; or keys.by=typed with "
                "--set keys.last_group=env:NAME, the last six digits of the recovery key.",
            )
        last = keys.last_group if keys else None
        proof: Item = {"proof": keys and keys.by, "last_group": last}
        return tuple({**_drive(each.key["volume"]), **proof} for each in self.protected)

    @property
    def suspended(self) -> tuple[Item, ...]:
        """The volume of Windows alone: no other is opened by the TPM. Not again once Ubuntu is installed."""
        if self._ubuntu is not None and self._ubuntu.is_installed:
            return ()
        system = [each for each in self.protected if each.state.volume_type == "operating-system"]
        return tuple({**_drive(each.key["volume"]), "restarts": RESTARTS} for each in system)

    @cached_property
    def places(self) -> Places:
        """The partitions as they are if they were made already; else on a disk of their own, in free space, or at the
        end of Windows. Raises Refusal.
        """
        made, efi = self._made(LINUX_PARTITION), self._made(OWN_EFI)
        if made is not None and made.disk and made.offset and made.size:
            staged, its_own = self._made(STAGING), efi is not None and efi.disk == made.disk
            if staged is None and self._staging:
                self._refuse_taken(made.disk, made.offset + made.size)
            sizes = (staged and staged.size) or self._staging, efi.size if efi and efi.size and its_own else 0
            return Places(made.disk, made.offset, made.size, sizes[0], efi=sizes[1])
        other = chosen_disk(self._facts, self._settings.disk)
        if other is not None:
            return self._on_its_own(other, efi)
        gap = largest_gap(self._facts)
        if gap is not None and gap.size >= self._needed(gap.size):
            return Places(gap.disk, gap.offset, self._linux(gap.size), self._staging)
        return self._behind_windows()

    def _on_its_own(self, disk: Disk, efi: OwnPartition | None) -> Places:
        """efi: its EFI system partition, where an earlier run made that, or noted that it would."""
        at = efi.offset + EFI_SIZE if efi is not None and efi.disk == disk.guid and efi.offset else None
        found = [gap for gap in gaps(self._facts, disk) if at is None or gap.offset <= at < gap.offset + gap.size]
        gap = max(found, key=lambda each: each.size, default=Gap(str(disk.guid), 0, 0))
        begin = gap.offset + EFI_SIZE if at is None else at
        room = max(0, gap.offset + gap.size - begin - self._staging)
        linux = room if self._settings.linux == "auto" else parse_size(self._settings.linux)
        if not LEAST_FOR_LINUX <= linux <= room:
            raise Refusal(
                "disk.too-large",
                f"{disk.model} has {about(room)} for Ubuntu, and {about(max(linux, LEAST_FOR_LINUX))} are wanted",
                "Plan a smaller partition with --set linux=SIZE, or go beside Windows with --set disk=windows.",
            )
        return Places(gap.disk, begin, linux, self._staging, efi=EFI_SIZE)

    def _refuse_taken(self, guid: str, end: Bytes) -> None:
        """Raises Refusal where the installer's partition would not fit behind that of Ubuntu, which ends there."""
        disks = [each.state for each in self._facts.all(Disk) if each.state.guid == guid]
        free = [gap for disk in disks for gap in gaps(self._facts, disk)]
        if not any(gap.offset <= end and end + self._staging <= gap.offset + gap.size for gap in free):
            raise Refusal(
                "disk.too-large",
                f"behind the partition for Ubuntu are no {about(self._staging)} for that of its installer",
                "Take that back first (winhost rollback RUN), and plan both at once.",
            )

    def _behind_windows(self) -> Places:
        room = can_give(self._facts)
        windows = windows_partition(self._facts)
        if windows is None or windows.state.disk is None or room < self._needed(room):
            needed = about(self._needed(room))
            raise Refusal(
                "disk.too-large",
                f"Windows can give {about(room)}, and {needed} are wanted",
                "Plan a smaller partition with --set linux=SIZE, or free space on the Windows volume.",
            )
        state = windows.state
        # Its end on a whole MiB, so that what follows begins on one.
        end = (state.offset + state.size) // MiB * MiB - self._linux(room) - self._staging
        return Places(windows.state.disk, end, self._linux(room), self._staging, end - state.offset)

    @property
    def _staging(self) -> Bytes:
        asked = self._settings.staging
        if asked == "none":
            return STAGING_SIZE if self._settings.system else 0
        return parse_size(asked)

    def _linux(self, room: Bytes) -> Bytes:
        if self._settings.linux != "auto":
            return parse_size(self._settings.linux)
        half = (room - self._staging) // 2 // MiB * MiB
        return max(LEAST_FOR_LINUX, half)

    def _needed(self, room: Bytes) -> Bytes:
        return self._linux(room) + self._staging

    def _made(self, name: str) -> OwnPartition | None:
        found = self._facts.of(OwnPartition, {"name": name})
        return found if found is not None and found.made is not False else None

    @property
    def shrunk(self) -> tuple[Item, ...]:
        """Windows, where it has to give something."""
        windows, size = windows_partition(self._facts), self.places.shrink_to
        if windows is None or size is None:
            return ()
        given = about(windows.state.size - size)
        return ({"partition": windows.key["partition"], "size": size, "given": given},)

    @property
    def partitions(self) -> tuple[Item, ...]:
        """Ubuntu's, and the one of its installer behind it."""
        places = self.places
        common = {"disk": places.disk, "model": self._named(places.disk)}
        linux = {"name": LINUX_PARTITION, "offset": places.offset, "size": places.linux, "label": self._label}
        staging = {"name": STAGING, "offset": places.offset + places.linux, "size": places.staging}
        wanted = [{**linux, "title": "Ubuntu's partition", **common}]
        if places.efi:
            efi = {"name": OWN_EFI, "offset": places.offset - places.efi, "size": places.efi}
            wanted.insert(0, {**efi, "label": _LABEL_OF_FAT, "title": "Ubuntu's EFI system partition", **common})
        if places.staging:
            wanted.append({**staging, "label": _LABEL_OF_FAT, "title": "The installer's partition", **common})
        return tuple(wanted)

    def _named(self, guid: str) -> str:
        """Name a disk by its model and by what tells it from another of the same model."""
        disks = [each.state for each in self._facts.all(Disk) if each.state.guid == guid]
        return next((f"{each.model} ({_WITH if each.boot else _WITHOUT})" for each in disks), "its disk")

    @property
    def _label(self) -> str:
        """The label by which the installer's guard knows the partition: unique to this machine and position."""
        made = self._made(LINUX_PARTITION)
        if made is not None and made.label:
            return made.label
        told = f"{self._facts.machine_id} {self.places.disk} {self.places.offset} {self.places.linux}"
        return f"WINHOST-{sha256(told.encode()).hexdigest()[:8]}"

    @property
    def boot_partitions(self) -> tuple[Item, ...]:
        """EFI system partitions that were there before: that of Windows, and what is on Ubuntu's disk. The one that
        winhost makes goes as a whole.
        """
        own = self._made(OWN_EFI)
        of_windows = [each for each in self._facts.all(Partition) if starts_windows(each.state)]
        of_ubuntu = [each for each in on_disk(self._facts, self.places.disk) if each.state.type == EFI]
        guids = dict.fromkeys(each.key["partition"] for each in of_windows + of_ubuntu)
        return tuple({"partition": each} for each in guids if own is None or each != own.partition)

    @property
    def entries(self) -> tuple[Item, ...]:
        """A boot entry for the installer, once its partition has a GUID. Raises MissingFact before."""
        if not self.places.staging:
            return ()
        return ({"name": "installer", "partition": self._staged, "path": LOADER},)

    @property
    def _staged(self) -> str:
        """The GUID of the installer's partition. Raises MissingFact until it is made."""
        staged = self._made(STAGING)
        if staged is None or staged.made is not True or staged.partition is None:
            raise MissingFact("OwnPartition", Unavailable(OwnPartition.resource_type.name))
        return staged.partition

    # ---- the system itself, where winhost installs it

    @cached_property
    def _ubuntu(self) -> UbuntuDecisions | None:
        asked = self._settings.system
        return UbuntuDecisions(self._facts, asked, self._settings.containers) if asked else None

    @property
    def inside(self) -> LinuxDecisions | None:
        return self._ubuntu.inside if self._ubuntu else None

    images, drivers, specs = ListOf("_ubuntu"), ListOf("_ubuntu"), ListOf("_ubuntu")
    shown_gpus, serving_systems = ListOf("_ubuntu"), ListOf("_ubuntu")

    @property
    def installers(self) -> tuple[Item, ...]:
        return self._ubuntu.installers(self._staged) if self._ubuntu else ()

    @property
    def switches(self) -> tuple[Item, ...]:
        """The switch to Linux, once its installer can be started. Raises MissingFact before."""
        return ({"system": LINUX_RUNS, "partition": self._staged},) if self._ubuntu else ()


def _drive(volume: str) -> Item:
    return {"volume": volume, "drive": volume.rstrip(":\\")}
