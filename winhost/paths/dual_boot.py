"""Ubuntu beside Windows: its settings and what a plan decides for it."""

from collections.abc import Mapping
from functools import cached_property
from hashlib import sha256
from typing import Annotated, Literal

from pydantic import AfterValidator, model_validator

from winhost.core.answers import Json, MissingFact, Unavailable
from winhost.core.dataclass import dataclass
from winhost.model.facts import Instance
from winhost.model.reason import Refusal
from winhost.model.secrets import SecretRef
from winhost.model.units import Bytes, GiB, MiB, about, parse_size, size
from winhost.model.written import Closed
from winhost.paths.disks import (
    EFI_SIZE,
    MIN_LINUX_SIZE,
    STAGING_SIZE,
    Gap,
    choose_disk,
    gaps,
    largest_gap,
    partitions_on_disk,
    shrinkable_bytes,
    windows_partition,
)
from winhost.paths.linux import ContainersInside, LinuxDecisions, LinuxSettings, PartList
from winhost.paths.new_ubuntu import NewUbuntu, UbuntuDecisions
from winhost.paths.setting_values import HostSpecific, matching, size_in_steps
from winhost.resources.host import HostFacts
from winhost.resources.windows.disks import (
    EFI,
    LINUX_PARTITION,
    OWN_EFI,
    STAGING,
    BitLocker,
    OwnPartition,
    Partition,
    starts_windows,
)
from winhost.resources.windows.read_only import Disk

# ---- settings


_DISKS = "auto, windows, or the GUID of a disk"
Proof = Literal["active-directory", "entra", "typed"]
_LEAST_STAGING, _MOST_STAGING = 4 * GiB, 32 * GiB  # an installer's image; FAT32 as Windows formats it


_LINUX_SIZE = size_in_steps(
    f"auto, or a size in whole MiB of {size(MIN_LINUX_SIZE)} at least", MiB, MIN_LINUX_SIZE, word="auto"
)
_STAGING_SIZE = size_in_steps(
    f"none, or a size in whole MiB from {size(_LEAST_STAGING)} to {size(_MOST_STAGING)}",
    MiB,
    _LEAST_STAGING,
    _MOST_STAGING,
    "none",
)


class KeyProof(Closed):
    """The proof, before anything changes, that recovery keys are kept elsewhere."""

    by: Proof
    """active-directory, entra: the directory takes each key once more, and says so. typed: you know the last six digits
    of the recovery key of the Windows volume; they are compared on the host, and stored nowhere.
    """
    last_group: Annotated[str, AfterValidator(lambda text: SecretRef.parse(text).written)] | None = None
    """The proof typed takes a secret reference to those six digits, as env:LAST_GROUP or file:/run/secrets/group."""

    @model_validator(mode="after")
    def _says_where_the_digits_are(self) -> "KeyProof":
        if (self.by == "typed") != (self.last_group is not None):
            raise ValueError("by=typed goes with last_group, and no other proof does")
        return self


class DualBootSettings(Closed):
    """`settings` of the playbook, or `winhost plan --set NAME=VALUE`."""

    disk: Annotated[
        str,
        matching("auto|windows|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", _DISKS),
        HostSpecific("disk", ("auto", "windows")),
    ] = "auto"
    """The disk for Ubuntu. auto: an empty disk where there is one, so that the disk of Windows stays as it is, else
    that of Windows; windows: that in any case; or the GUID of an empty disk, as `winhost detect HOST -o wide` shows it.
    """
    linux: Annotated[str, _LINUX_SIZE] = "auto"
    """The size of Ubuntu's partition. auto: all of a disk of its own; of that of Windows half of what is there for it,
    and 64 GiB at least.
    """
    staging: Annotated[str, _STAGING_SIZE] = "none"
    """The size of a partition for the installer, which comes with a boot entry, where the host has no virtual media and
    nobody brings a USB stick: 8GiB holds Ubuntu Server. none: nothing of the kind.
    """
    keys: KeyProof | None = None
    """The proof that the recovery keys of a host with BitLocker are kept elsewhere."""
    system: NewUbuntu | None = None
    """The system that is installed, in the same run. Left out, it is installed by media of `winhost install`. With it,
    staging is 8GiB where nothing else is said.
    """
    containers: LinuxSettings | None = None
    """The container runtime of that system, and NVIDIA's toolkit. A workload in containers brings it along."""

    @model_validator(mode="after")
    def _has_a_system(self) -> "DualBootSettings":
        if self.containers is not None and self.system is None:
            raise ValueError("containers are those of a system that winhost installs: set system, too")
        return self


# ---- decisions


LOADER = "\\EFI\\boot\\bootx64.efi"
RESTARTS = 1  # of Windows, which comes up once with the boot order that the installation leaves
_FAT_LABEL = "WINHOST"
LINUX_SYSTEM = "linux"
_WINDOWS_DISK, _OTHER_DISK = "the disk of Windows", "a disk without Windows"

Item = Mapping[str, Json]


@dataclass(frozen=True)
class Layout:
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
    def layout(self) -> Layout:
        """The partitions as they are if they were made already; else on a disk of their own, in free space, or at the
        end of Windows. Raises Refusal.
        """
        made, efi = self._made(LINUX_PARTITION), self._made(OWN_EFI)
        if made is not None and made.disk and made.offset and made.size:
            staged, its_own = self._made(STAGING), efi is not None and efi.disk == made.disk
            if staged is None and self._staging:
                self._refuse_taken(made.disk, made.offset + made.size)
            sizes = (staged and staged.size) or self._staging, efi.size if efi and efi.size and its_own else 0
            return Layout(made.disk, made.offset, made.size, sizes[0], efi=sizes[1])
        other = choose_disk(self._facts, self._settings.disk)
        if other is not None:
            return self._on_its_own(other, efi)
        gap = largest_gap(self._facts)
        if gap is not None and gap.size >= self._needed(gap.size):
            return Layout(gap.disk, gap.offset, self._linux(gap.size), self._staging)
        return self._behind_windows()

    def _on_its_own(self, disk: Disk, efi: OwnPartition | None) -> Layout:
        """efi: its EFI system partition, where an earlier run made that, or noted that it would."""
        at = efi.offset + EFI_SIZE if efi is not None and efi.disk == disk.guid and efi.offset else None
        found = [gap for gap in gaps(self._facts, disk) if at is None or gap.offset <= at < gap.offset + gap.size]
        gap = max(found, key=lambda each: each.size, default=Gap(str(disk.guid), 0, 0))
        begin = gap.offset + EFI_SIZE if at is None else at
        room = max(0, gap.offset + gap.size - begin - self._staging)
        linux = room if self._settings.linux == "auto" else parse_size(self._settings.linux)
        if not MIN_LINUX_SIZE <= linux <= room:
            raise Refusal(
                "disk.too-large",
                f"{disk.model} has {about(room)} for Ubuntu, and {about(max(linux, MIN_LINUX_SIZE))} are wanted",
                "Plan a smaller partition with --set linux=SIZE, or go beside Windows with --set disk=windows.",
            )
        return Layout(gap.disk, begin, linux, self._staging, efi=EFI_SIZE)

    def _refuse_taken(self, guid: str, end: Bytes) -> None:
        """Raises Refusal where the installer's partition would not fit behind that of Ubuntu, which ends there."""
        disks = [each.state for each in self._facts.all(Disk) if each.state.guid == guid]
        free = [gap for disk in disks for gap in gaps(self._facts, disk)]
        if not any(gap.offset <= end and end + self._staging <= gap.offset + gap.size for gap in free):
            raise Refusal(
                "disk.too-large",
                f"behind the partition for Ubuntu are no {about(self._staging)} for that of its installer",
                "Undo that first (winhost rollback RUN), and plan both at once.",
            )

    def _behind_windows(self) -> Layout:
        room = shrinkable_bytes(self._facts)
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
        return Layout(windows.state.disk, end, self._linux(room), self._staging, end - state.offset)

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
        return max(MIN_LINUX_SIZE, half)

    def _needed(self, room: Bytes) -> Bytes:
        return self._linux(room) + self._staging

    def _made(self, name: str) -> OwnPartition | None:
        found = self._facts.find(OwnPartition, {"name": name})
        return found if found is not None and found.made is not False else None

    @property
    def shrunk(self) -> tuple[Item, ...]:
        """The partition of Windows, if it has to give something."""
        windows, size = windows_partition(self._facts), self.layout.shrink_to
        if windows is None or size is None:
            return ()
        given = about(windows.state.size - size)
        return ({"partition": windows.key["partition"], "size": size, "given": given},)

    @property
    def partitions(self) -> tuple[Item, ...]:
        """Ubuntu's partition, its EFI system partition on a disk of its own, and that of the installer."""
        layout = self.layout
        disks = [each.state for each in self._facts.all(Disk) if each.state.guid == layout.disk]
        # By the model and by what tells it from another disk of the same model.
        named = (f"{each.model} ({_WINDOWS_DISK if each.boot else _OTHER_DISK})" for each in disks)
        common = {"disk": layout.disk, "model": next(named, "its disk")}
        linux = {"name": LINUX_PARTITION, "offset": layout.offset, "size": layout.linux, "label": self._label}
        staging = {"name": STAGING, "offset": layout.offset + layout.linux, "size": layout.staging}
        wanted = [{**linux, "title": "Ubuntu's partition", **common}]
        if layout.efi:
            efi = {"name": OWN_EFI, "offset": layout.offset - layout.efi, "size": layout.efi}
            wanted.insert(0, {**efi, "label": _FAT_LABEL, "title": "Ubuntu's EFI system partition", **common})
        if layout.staging:
            wanted.append({**staging, "label": _FAT_LABEL, "title": "The installer's partition", **common})
        return tuple(wanted)

    @property
    def _label(self) -> str:
        """The label by which the installer's guard knows the partition: unique to this machine and position."""
        made = self._made(LINUX_PARTITION)
        if made is not None and made.label:
            return made.label
        told = f"{self._facts.machine_id} {self.layout.disk} {self.layout.offset} {self.layout.linux}"
        return f"WINHOST-{sha256(told.encode()).hexdigest()[:8]}"

    @property
    def boot_partitions(self) -> tuple[Item, ...]:
        """EFI system partitions that were there before: that of Windows, and what is on Ubuntu's disk. The one that
        winhost makes goes as a whole.
        """
        own = self._made(OWN_EFI)
        of_windows = [each for each in self._facts.all(Partition) if starts_windows(each.state)]
        of_ubuntu = [each for each in partitions_on_disk(self._facts, self.layout.disk) if each.state.type == EFI]
        guids = dict.fromkeys(each.key["partition"] for each in of_windows + of_ubuntu)
        return tuple({"partition": each} for each in guids if own is None or each != own.partition)

    @property
    def entries(self) -> tuple[Item, ...]:
        """A boot entry for the installer, once its partition has a GUID. Raises MissingFact before."""
        if not self.layout.staging:
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

    images, drivers, specs = PartList("_ubuntu"), PartList("_ubuntu"), PartList("_ubuntu")
    shown_gpus, serving_systems = PartList("_ubuntu"), PartList("_ubuntu")

    @property
    def installers(self) -> tuple[Item, ...]:
        return self._ubuntu.installers(self._staged) if self._ubuntu else ()

    @property
    def switches(self) -> tuple[Item, ...]:
        """The switch to Linux, once its installer can be started. Raises MissingFact before."""
        return ({"system": LINUX_SYSTEM, "partition": self._staged},) if self._ubuntu else ()


def _drive(volume: str) -> Item:
    return {"volume": volume, "drive": volume.rstrip(":\\")}
