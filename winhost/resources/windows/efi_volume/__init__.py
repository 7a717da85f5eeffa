"""EFI system partitions: what is on them."""

from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes
from winhost.resources.base import ResourceType, State, resource


@dataclass(frozen=True)
class EfiFile:
    """A file by its path on the volume. Without size and hash where somebody else has it open."""

    path: str
    size: Bytes | None
    sha256: str | None


@resource(ResourceType("EfiVolume", title="EFI system partitions", order=76, key=("partition",)))
class EfiVolume(State):
    """The volume of an EFI system partition, by the partition's GUID. It needs no drive letter and is given none."""

    free: Bytes
    file_system: str
    files: tuple[EfiFile, ...]
