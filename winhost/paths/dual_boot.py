"""Dual boot of Ubuntu and Windows: the settings of the path, and its decisions."""

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
_MIN_STAGING, _MAX_STAGING = 4 * GiB, 32 * GiB  # an installer's image; FAT32 as Windows formats it


_LINUX_SIZE = size_in_steps(
    f"auto, or a size in whole MiB of {size(MIN_LINUX_SIZE)} at least", MiB, MIN_LINUX_SIZE, word="auto"
)
_STAGING_SIZE = size_in_steps(
    f"none, or a size in whole MiB from {size(_MIN_STAGING)} to {size(_MAX_STAGING)}",
    MiB,
    _MIN_STAGING,
    _MAX_STAGING,
    "none",
)


class KeyProof(Closed):
    """The proof, before anything changes, that recovery keys are kept elsewhere."""

    by: Proof
    """active-directory, entra: the directory stores each key once more, and confirms it. typed: you know the last six
    digits of the recovery key of the Windows volume; they are compared on the host, and stored nowhere.
    """
    last_group: Annotated[str, AfterValidator(lambda text: SecretRef.parse(text).written)] | None = None
    """The proof typed takes a secret reference to those six digits, as env:LAST_GROUP or file:/run/secrets/group."""

    @model_validator(mode="after")
    def _check_last_group(self) -> "KeyProof":
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
    """The disk for Ubuntu. auto: an empty disk if there is one, so that the disk of Windows stays as it is, else the
    disk of Windows; windows: always the disk of Windows; or the GUID of an empty disk, as `winhost detect HOST -o wide`
    shows it.
    """
    linux: Annotated[str, _LINUX_SIZE] = "auto"
    """The size of Ubuntu's partition. auto: all of a disk without Windows; on the disk of Windows half of the available
    space, and at least 64 GiB.
    """
    staging: Annotated[str, _STAGING_SIZE] = "none"
    """The size of a partition for the installer, with a boot entry, for a host without virtual media to which nobody
    takes a USB stick: 8GiB is enough for Ubuntu Server. none: no such partition.
    """
    keys: KeyProof | None = None
    """The proof that the recovery keys of a host with BitLocker are kept elsewhere."""
    system: NewUbuntu | None = None
    """The system to install in the same run. If unset, media of `winhost install` install it. If set, the default of
    staging is 8GiB.
    """
    containers: LinuxSettings | None = None
    """The container runtime of that system, and NVIDIA's toolkit. A workload in containers sets this by itself."""

    @model_validator(mode="after")
    def _check_system(self) -> "DualBootSettings":
        if self.containers is not None and self.system is None:
            raise ValueError("containers are those of a system that winhost installs: set system, too")
        return self


# ---- decisions


LOADER = "\\EFI\\boot\\bootx64.efi"
RESTARTS = 1  # of Windows: it starts once with the boot order that the installation has set
_FAT_LABEL = "WINHOST"
LINUX_SYSTEM = "linux"
_WINDOWS_DISK, _OTHER_DISK = "the disk of Windows", "a disk without Windows"

Item = Mapping[str, Json]


@dataclass(frozen=True)
class Layout:
    """The new partitions, in bytes: Ubuntu's at `offset`, the installer's after it, and, on a disk without Windows, an
    EFI system partition before it. shrink_to: the new size of the Windows partition; None if it is not resized.
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
        """Encrypted volumes that are unlocked by key protectors, such as the TPM or a password."""
        volumes = self._facts.all(BitLocker)
        return tuple(each for each in volumes if each.state.conversion == "fully-encrypted" and each.state.protectors)

    @property
    def escrows(self) -> tuple[Item, ...]:
        """The proofs that the recovery keys are stored. Raises Refusal if a proof is needed and not set."""
        keys = self._settings.keys
        if self.protected and keys is None:
            names = ", ".join(each.key["volume"] for each in self.protected)
            raise Refusal(
                "disk.unproven-key",
                f"BitLocker protects {names}, and no setting says how to prove that the recovery keys are kept",
                "Add --set keys.by=active-directory or keys.by=entra; or keys.by=typed with "
                "--set keys.last_group=env:NAME, the last six digits of the recovery key.",
            )
        last = keys.last_group if keys else None
        proof: Item = {"proof": keys and keys.by, "last_group": last}
        return tuple({**_drive(each.key["volume"]), **proof} for each in self.protected)

    @property
    def suspended(self) -> tuple[Item, ...]:
        """The Windows volume, the only one that the TPM unlocks; empty once Ubuntu is installed."""
        if self._ubuntu is not None and self._ubuntu.is_installed:
            return ()
        system = [each for each in self.protected if each.state.volume_type == "operating-system"]
        return tuple({**_drive(each.key["volume"]), "restarts": RESTARTS} for each in system)

    @cached_property
    def layout(self) -> Layout:
        """The existing partitions if they were created already; otherwise new ones on a separate disk, in free space,
        or at the end of the Windows partition. Raises Refusal.
        """
        made, efi = self._find_own_partition(LINUX_PARTITION), self._find_own_partition(OWN_EFI)
        if made is not None and made.disk and made.offset and made.size:
            staging, has_own_efi = self._find_own_partition(STAGING), efi is not None and efi.disk == made.disk
            if staging is None and self._staging_size:
                self._check_staging_fits(made.disk, made.offset + made.size)
            staging_size = (staging and staging.size) or self._staging_size
            efi_size = efi.size if efi and efi.size and has_own_efi else 0
            return Layout(made.disk, made.offset, made.size, staging_size, efi=efi_size)
        own_disk = choose_disk(self._facts, self._settings.disk)
        if own_disk is not None:
            return self._lay_out_on_own_disk(own_disk, efi)
        gap = largest_gap(self._facts)
        if gap is not None and gap.size >= self._needed_size(gap.size):
            return Layout(gap.disk, gap.offset, self._linux_size(gap.size), self._staging_size)
        return self._lay_out_after_windows()

    def _lay_out_on_own_disk(self, disk: Disk, efi: OwnPartition | None) -> Layout:
        """Lay the partitions out on a disk without Windows. efi: its EFI system partition, if a run has made it."""
        efi_end = efi.offset + EFI_SIZE if efi is not None and efi.disk == disk.guid and efi.offset else None
        usable = [
            gap for gap in gaps(self._facts, disk) if efi_end is None or gap.offset <= efi_end < gap.offset + gap.size
        ]
        gap = max(usable, key=lambda each: each.size, default=Gap(str(disk.guid), 0, 0))
        begin = gap.offset + EFI_SIZE if efi_end is None else efi_end
        room = max(0, gap.offset + gap.size - begin - self._staging_size)
        linux = room if self._settings.linux == "auto" else parse_size(self._settings.linux)
        if not MIN_LINUX_SIZE <= linux <= room:
            raise Refusal(
                "disk.too-large",
                f"{disk.model} has {about(room)} for Ubuntu, and {about(max(linux, MIN_LINUX_SIZE))} are needed",
                "Plan a smaller partition with --set linux=SIZE, or use the disk of Windows with --set disk=windows.",
            )
        return Layout(gap.disk, begin, linux, self._staging_size, efi=EFI_SIZE)

    def _check_staging_fits(self, guid: str, end: Bytes) -> None:
        """Raise Refusal if the installer's partition does not fit after that of Ubuntu, which ends at `end`."""
        disks = [each.state for each in self._facts.all(Disk) if each.state.guid == guid]
        free = [gap for disk in disks for gap in gaps(self._facts, disk)]
        if not any(gap.offset <= end and end + self._staging_size <= gap.offset + gap.size for gap in free):
            raise Refusal(
                "disk.too-large",
                f"there are no {about(self._staging_size)} after Ubuntu's partition for that of its installer",
                "Undo the run that made it (winhost rollback RUN), and plan both partitions together.",
            )

    def _lay_out_after_windows(self) -> Layout:
        """Lay the partitions out at the end of the Windows partition, which shrinks."""
        room = shrinkable_bytes(self._facts)
        windows = windows_partition(self._facts)
        if windows is None or windows.state.disk is None or room < self._needed_size(room):
            needed = about(self._needed_size(room))
            raise Refusal(
                "disk.too-large",
                f"Windows can give {about(room)}, and {needed} are needed",
                "Plan a smaller partition with --set linux=SIZE, or free space on the Windows volume.",
            )
        state = windows.state
        # The end is rounded down to a whole MiB, so that the next partition begins at one.
        end = (state.offset + state.size) // MiB * MiB - self._linux_size(room) - self._staging_size
        return Layout(windows.state.disk, end, self._linux_size(room), self._staging_size, end - state.offset)

    @property
    def _staging_size(self) -> Bytes:
        setting = self._settings.staging
        if setting == "none":
            return STAGING_SIZE if self._settings.system else 0
        return parse_size(setting)

    def _linux_size(self, room: Bytes) -> Bytes:
        if self._settings.linux != "auto":
            return parse_size(self._settings.linux)
        half = (room - self._staging_size) // 2 // MiB * MiB
        return max(MIN_LINUX_SIZE, half)

    def _needed_size(self, room: Bytes) -> Bytes:
        return self._linux_size(room) + self._staging_size

    def _find_own_partition(self, name: str) -> OwnPartition | None:
        partition = self._facts.find(OwnPartition, {"name": name})
        return partition if partition is not None and partition.made is not False else None

    @property
    def shrunk(self) -> tuple[Item, ...]:
        """The partition of Windows, if it must shrink."""
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
        # Named by model and by whether Windows is on it, which distinguishes disks of the same model.
        named = (f"{each.model} ({_WINDOWS_DISK if each.boot else _OTHER_DISK})" for each in disks)
        common = {"disk": layout.disk, "model": next(named, "its disk")}
        linux = {"name": LINUX_PARTITION, "offset": layout.offset, "size": layout.linux, "label": self._label}
        staging = {"name": STAGING, "offset": layout.offset + layout.linux, "size": layout.staging}
        desired = [{**linux, "title": "Ubuntu's partition", **common}]
        if layout.efi:
            efi = {"name": OWN_EFI, "offset": layout.offset - layout.efi, "size": layout.efi}
            desired.insert(0, {**efi, "label": _FAT_LABEL, "title": "Ubuntu's EFI system partition", **common})
        if layout.staging:
            desired.append({**staging, "label": _FAT_LABEL, "title": "The installer's partition", **common})
        return tuple(desired)

    @property
    def _label(self) -> str:
        """The label by which the installer's guard knows the partition: unique to this machine and position."""
        made = self._find_own_partition(LINUX_PARTITION)
        if made is not None and made.label:
            return made.label
        identity = f"{self._facts.machine_id} {self.layout.disk} {self.layout.offset} {self.layout.linux}"
        return f"WINHOST-{sha256(identity.encode()).hexdigest()[:8]}"

    @property
    def boot_partitions(self) -> tuple[Item, ...]:
        """The EFI system partitions that existed before: that of Windows, and those on Ubuntu's disk. The partition
        that winhost creates is not among them, because undoing removes it as a whole.
        """
        own = self._find_own_partition(OWN_EFI)
        windows_partitions = [each for each in self._facts.all(Partition) if starts_windows(each.state)]
        ubuntu_partitions = [
            each for each in partitions_on_disk(self._facts, self.layout.disk) if each.state.type == EFI
        ]
        guids = dict.fromkeys(each.key["partition"] for each in windows_partitions + ubuntu_partitions)
        return tuple({"partition": each} for each in guids if own is None or each != own.partition)

    @property
    def entries(self) -> tuple[Item, ...]:
        """The boot entry of the installer. Raises MissingFact until its partition has a GUID."""
        if not self.layout.staging:
            return ()
        return ({"name": "installer", "partition": self._staging_guid, "path": LOADER},)

    @property
    def _staging_guid(self) -> str:
        """The GUID of the installer's partition. Raises MissingFact until the partition is created."""
        staging = self._find_own_partition(STAGING)
        if staging is None or staging.made is not True or staging.partition is None:
            raise MissingFact("OwnPartition", Unavailable(OwnPartition.resource_type.name))
        return staging.partition

    # ---- the system, if winhost installs it

    @cached_property
    def _ubuntu(self) -> UbuntuDecisions | None:
        system = self._settings.system
        return UbuntuDecisions(self._facts, system, self._settings.containers) if system else None

    @property
    def inside(self) -> LinuxDecisions | None:
        return self._ubuntu.inside if self._ubuntu else None

    images, drivers, specs = PartList("_ubuntu"), PartList("_ubuntu"), PartList("_ubuntu")
    shown_gpus, serving_systems = PartList("_ubuntu"), PartList("_ubuntu")

    @property
    def installers(self) -> tuple[Item, ...]:
        return self._ubuntu.installers(self._staging_guid) if self._ubuntu else ()

    @property
    def switches(self) -> tuple[Item, ...]:
        """The switch to Linux. Raises MissingFact until its installer can be started."""
        return ({"system": LINUX_SYSTEM, "partition": self._staging_guid},) if self._ubuntu else ()


def _drive(volume: str) -> Item:
    return {"volume": volume, "drive": volume.rstrip(":\\")}
