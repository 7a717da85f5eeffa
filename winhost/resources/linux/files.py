"""Files, folders and disks of a Linux."""

import re
from collections.abc import Mapping

from winhost.core.answers import Json
from winhost.core.rules import Condition, ConsentRule, KeepIf, UndoRule
from winhost.core.steps import Change
from winhost.resources.base import State, resource
from winhost.resources.shared import K3S_UNIT, PACKAGES, PLAIN_HTTP, REMOTE_ACCESS_FILES, UNITS, LinuxType
from winhost.resources.values import FLAG, SHA256_OR_NOTHING, UUID, Value, one_of, or_nothing, secret_reference, text


@resource(
    LinuxType(
        "LinuxFile",
        title="files in Linux",
        order=30,
        key=("path",),
        sets={
            "text": or_nothing(text(r"(?s).*", "text")),
            "link": or_nothing(text(r"[^\0]+", "where a link leads")),
            "mode": or_nothing(text(r"0[0-7]{3}", "a mode, as 0644")),
            "owner": or_nothing(text(r"[^:]+:[^:]+", "an owner, as root:root")),
        },
        after=("LinuxFolder", "PythonVenv"),  # a changed unit file restarts its unit, which uses these
        asks=("network",),
        risks=(*REMOTE_ACCESS_FILES, PLAIN_HTTP, K3S_UNIT),
        # Writing this file waits until cloud-init has ended.
        timeout=lambda change: 900 if change.key["path"] == "/etc/cloud/cloud-init.disabled" else 0,
        dependents=(PACKAGES, UNITS),
        # A mode or owner cannot be restored without the text.
        undo=UndoRule(whole=True),
    )
)
class LinuxFile(State):
    """One of the files that winhost writes, by its path; all properties are null if it does not exist.

    link: the target of a symbolic link. Links are never followed, and a change that replaces one sets `link: null`.
    Files of sshd, sudo, netplan, nftables, systemd and Docker are validated by that program before they replace the
    old file. Changes that affect SSH access (sshd, sudo, netplan) are undone by the machine itself unless winhost
    connects again.
    """

    text: str | None
    link: str | None
    mode: str | None
    owner: str | None


def _are_program_texts(value: Json) -> bool:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(re.fullmatch(r"[a-z_]+\.py", name) and isinstance(text, str) for name, text in value.items())
    )


@resource(
    LinuxType(
        "LinuxFolder",
        title="folders of a program in Linux",
        order=31,
        key=("path",),
        sets={
            "files": or_nothing(Value("texts by the names of files, as name.py", _are_program_texts)),
            "only_root": or_nothing(FLAG),
        },
        asks=("network",),
        risks=(PLAIN_HTTP,),
        dependents=(UNITS,),
        undo=UndoRule(whole=True),
    )
)
class LinuxFolder(State):
    """The folder of a program that winhost writes. All its files are replaced at once, by renaming the folder.

    files: their texts by name, null if the folder does not exist, unknown if it contains other files; only_root: only
    root can change its content.
    """

    files: Mapping[str, str] | None
    only_root: bool | None


@resource(
    LinuxType(
        "SecretFile",
        title="files with a secret",
        order=32,
        key=("path",),
        sets={"secret": or_nothing(secret_reference("what the file holds"))},
        absent={"secret": None},
        credential="secret",
        undo=UndoRule(remove_if_created={"secret": None}),
    )
)
class SecretFile(State):
    """A file that only root can read. secret: the secret reference from which winhost wrote it, never the secret; null
    if there is no file, or one that winhost did not write; followed by `, begun` if writing it was interrupted.
    """

    secret: str | None


NO_RELEASE: Mapping[str, Json] = {"source": None, "sha256": None, "bytes": None}
_SLOWEST = 1_000_000  # bytes a second


def _download_timeout(change: Change) -> float:
    size = change.desired.get("bytes")
    return 300 + (size / _SLOWEST if isinstance(size, int) else 0)


@resource(
    LinuxType(
        "ReleaseFile",
        title="files of releases",
        order=31,
        key=("path",),
        sets={
            "source": or_nothing(text(r"https?://[!-~]+|/[^\0]+", "the address of a file, or its path there")),
            "sha256": SHA256_OR_NOTHING,
            "bytes": or_nothing(Value("a size in bytes", lambda value: type(value) is int and value > 0)),
        },
        absent=NO_RELEASE,
        timeout=_download_timeout,
        undo=UndoRule(remove_if_created={"source": None}),
    )
)
class ReleaseFile(State):
    """A program or archive that winhost installs, by its path: `/usr/local/bin/k3s`, and the images that k3s loads when
    it starts. source: from where winhost copied it, or began to; null if it did not; sha256, bytes: of the existing
    file.
    """

    source: str | None
    sha256: str | None
    bytes: int | None


_DATA_STAYS = "winhost never wipes a disk; its file system and what is on it stay"


@resource(
    LinuxType(
        "DataDisk",
        title="disks for data in Linux",
        order=27,
        key=("serial", "size"),
        sets={
            "filesystem": one_of("ext4", "xfs"),
            "label": text(r"[A-Za-z0-9_-]{1,12}", "a label: up to 12 letters, digits, _ and -"),
            "uuid": UUID,
        },
        after=("AptPackages", "DebianPackage"),
        asks=("data",),
        risks=(ConsentRule("data"),),
        timeout=lambda change: 1800,
        irreversible=(
            KeepIf(
                (Condition("serial", of="key"), Condition("size", of="key")),
                f"disk {{serial}} of {{size}} bytes: {_DATA_STAYS}",
            ),
        ),
        undo=UndoRule(never=_DATA_STAYS),
    )
)
class DataDisk(State):
    """A whole disk, by its serial number and its size in bytes. Disks without a serial number are not listed.

    disk: its current name, as `nvme1n1`; holds: its contents. A disk is formatted only if these are empty, which is
    checked again right before. filesystem, label, uuid: null if there is no file system.
    """

    disk: str
    holds: tuple[str, ...]
    filesystem: str | None
    label: str | None
    uuid: str | None


@resource(
    LinuxType(
        "Mount",
        title="mounts in Linux",
        order=28,
        key=("path",),
        sets={
            "uuid": or_nothing(UUID),
            "filesystem": or_nothing(one_of("ext4", "xfs")),
            "options": or_nothing(text(r"[A-Za-z0-9_=.:+-]+(,[A-Za-z0-9_=.:+-]+)*", "options, as noatime,ro")),
            "mounted": FLAG,
        },
        after=("DataDisk",),
        absent={"uuid": None, "filesystem": None, "options": None, "mounted": False},
        undo=UndoRule(
            remove_if_created={"uuid": None, "filesystem": None, "options": None, "mounted": False},
            unless_changed=True,
            whole=True,
            transitional_states={"mounted": (False,)},  # a missing disk does not count as a change by others
        ),
    )
)
class Mount(State):
    """A file system that a systemd unit of winhost's mounts at a folder at each boot.

    options: mount options besides `nofail`, without which a missing disk would block the boot; mounted: it is mounted
    now. The other properties are null if winhost wrote no unit. Unmounting keeps the data on the disk, and a folder
    that existed before.
    """

    uuid: str | None
    filesystem: str | None
    options: str | None
    mounted: bool
