"""The settings of Ubuntu beside Windows."""

from typing import Annotated, Literal

from pydantic import AfterValidator, model_validator

from winhost.model.secrets import SecretRef
from winhost.model.units import GiB, MiB, parse_size, size
from winhost.model.written import Closed
from winhost.paths.disks import LEAST_FOR_LINUX
from winhost.paths.linux_settings import LinuxSettings
from winhost.paths.new_ubuntu import NewUbuntu
from winhost.paths.setting_values import OfOneHost, matching

_DISKS = "auto, windows, or the GUID of a disk"
Proof = Literal["active-directory", "entra", "typed"]
_LEAST_STAGING, _MOST_STAGING = 4 * GiB, 32 * GiB  # an installer's image; FAT32 as Windows formats it


def _linux_size(text: str) -> str:
    if text != "auto" and (parse_size(text) < LEAST_FOR_LINUX or parse_size(text) % MiB):
        raise ValueError(f"should be auto, or a size in whole MiB of {size(LEAST_FOR_LINUX)} at least")
    return text


def _staging_size(text: str) -> str:
    if text != "none" and (not _LEAST_STAGING <= parse_size(text) <= _MOST_STAGING or parse_size(text) % MiB):
        raise ValueError(f"should be none, or a size in whole MiB from {size(_LEAST_STAGING)} to {size(_MOST_STAGING)}")
    return text


def _reference(text: str) -> str:
    SecretRef.parse(text)
    return text


class KeyProof(Closed):
    """The proof, before anything changes, that recovery keys are kept elsewhere."""

    by: Proof
    """active-directory, entra: the directory takes each key once more, and says so. typed: you know the last six digits
    of the recovery key of the Windows volume; they are compared on the host, and stored nowhere.
    """
    last_group: Annotated[str, AfterValidator(_reference)] | None = None
    """Of typed: a secret reference to those six digits, as env:LAST_GROUP or file:/run/secrets/group."""

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
        OfOneHost("disk", ("auto", "windows")),
    ] = "auto"
    """Where Ubuntu goes. auto: an empty disk where there is one, so that the disk of Windows stays as it is, else that
    of Windows; windows: that in any case; or the GUID of an empty disk, as `winhost detect HOST -o wide` shows it.
    """
    linux: Annotated[str, AfterValidator(_linux_size)] = "auto"
    """How large the partition of Ubuntu becomes. auto: all of a disk of its own; of that of Windows half of what is
    there for it, and 64 GiB at least.
    """
    staging: Annotated[str, AfterValidator(_staging_size)] = "none"
    """How large a partition for the installer becomes, and a boot entry with it, where the host has no virtual media
    and nobody brings a USB stick: 8GiB holds Ubuntu Server. none: nothing of the kind.
    """
    keys: KeyProof | None = None
    """Of a host with BitLocker: how it is proven that its recovery keys are kept elsewhere."""
    system: NewUbuntu | None = None
    """The system that is installed, in the same run. Left out, it is installed by media of `winhost install`. With it,
    staging is 8GiB where nothing else is said.
    """
    containers: LinuxSettings | None = None
    """Of that system: what runs containers there, and NVIDIA's toolkit. A workload in containers brings it along."""

    @model_validator(mode="after")
    def _has_a_system(self) -> "DualBootSettings":
        if self.containers is not None and self.system is None:
            raise ValueError("containers are those of a system that winhost installs: set system, too")
        return self
