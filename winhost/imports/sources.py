"""The kinds of files that are read, how each is recognised by what is in it, and what is near but not it."""

import re
from collections.abc import Callable, Mapping

from winhost.core.dataclass import dataclass
from winhost.imports import (
    boot_texts,
    computer_info,
    dxdiag,
    lspci,
    manage_bde,
    msinfo,
    nvidia_smi,
    storage_json,
    survey_dda,
    systeminfo,
)
from winhost.imports.observation import FileObservations, Misread, decoded, unreadable

_BEGINNING = 1 << 20  # characters in which a file shows what it is


@dataclass(frozen=True)
class FileKind:
    """A kind of file. made_by: the command that makes it; looks: what only this kind has; near: what makes it, but not
    in this form, which `why` says, and instead: what to run then, where that is another command.
    """

    made_by: str
    read: Callable[[str], FileObservations]
    looks: re.Pattern[str]
    near: re.Pattern[str]
    why: str = "is in a form for people"
    instead: str | None = None


SOURCES: Mapping[str, FileKind] = {
    "nvidia-smi": FileKind(
        "nvidia-smi -q -x",
        nvidia_smi.read,
        looks=re.compile(rf"<nvidia_smi_log\b|{nvidia_smi.TABLE.pattern}", re.MULTILINE),
        near=re.compile(r"NVSMI LOG|\| NVIDIA-SMI "),
    ),
    "dxdiag": FileKind(
        "dxdiag /x FILE",
        dxdiag.read,
        looks=re.compile(r"<DxDiag\b"),
        near=re.compile(r"DxDiag Version:|\"DxDiag\""),
    ),
    "computer-info": FileKind(
        "Get-ComputerInfo | ConvertTo-Json",
        computer_info.read,
        looks=re.compile(r'^\s*[\[{][\s\S]*"(?:OsOperatingSystemSKU|WindowsEditionId|CsTotalPhysicalMemory)"\s*:'),
        near=re.compile(r"^(?:OsOperatingSystemSKU|WindowsEditionId|CsTotalPhysicalMemory)\s+:", re.MULTILINE),
    ),
    "systeminfo": FileKind(
        "systeminfo",
        systeminfo.read,
        looks=re.compile(
            rf"{systeminfo.LIST.pattern}|{systeminfo.CSV.pattern}|(?i:{systeminfo.ELSEWHERE.pattern})", re.MULTILINE
        ),
        near=systeminfo.PART,
        why="is only a part of systeminfo",
        instead="Get-ComputerInfo | ConvertTo-Json, which says the same in every language",
    ),
    "lspci": FileKind(
        "lspci -vv -nn, as root",
        lspci.read,
        looks=re.compile(lspci.HEAD.pattern, re.MULTILINE),
        near=re.compile(r"^(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[01][0-9a-f]\.[0-7] ", re.MULTILINE),
    ),
    "survey-dda": FileKind(
        "SurveyDDA.ps1",
        survey_dda.read,
        looks=re.compile(
            rf"Generating a list of PCI Express endpoint devices|{survey_dda.LOCATION.pattern}", re.MULTILINE | re.I
        ),
        near=re.compile(r"PCIROOT\("),
    ),
    "disks": FileKind(
        "Get-Disk | ConvertTo-Json",
        storage_json.read_disks,
        looks=re.compile(r'^\s*[\[{](?=[\s\S]*"PartitionStyle"\s*:)(?=[\s\S]*"UniqueId"\s*:)'),
        near=re.compile(r"^Number\s+Friendly Name\s+Serial Number\s+HealthStatus", re.MULTILINE),
    ),
    "partitions": FileKind(
        "Get-Partition | ConvertTo-Json",
        storage_json.read_partitions,
        looks=re.compile(r'^\s*[\[{](?=[\s\S]*"GptType"\s*:)(?=[\s\S]*"DiskNumber"\s*:)'),
        near=re.compile(r"^PartitionNumber\s+DriveLetter\s+Offset\s+Size\s+Type", re.MULTILINE),
    ),
    "manage-bde": FileKind(
        "manage-bde -protectors -get C:, and in English manage-bde -status",
        manage_bde.read,
        looks=re.compile(rf"{manage_bde.PROTECTOR.pattern}|{manage_bde.STATUS.pattern}", re.MULTILINE),
        near=re.compile(r"^MountPoint\s*:.*$[\s\S]*^ProtectionStatus\s*:", re.MULTILINE),
    ),
    "bcdedit": FileKind(
        "bcdedit /enum all",
        boot_texts.read_bcd,
        looks=boot_texts.BCD,
        near=re.compile(r"\{(?:bootmgr|fwbootmgr)\}"),
    ),
    "msinfo32": FileKind(
        "msinfo32 /nfo FILE, or /report FILE",
        msinfo.read,
        looks=re.compile(rf"{boot_texts.INFO.pattern}|{msinfo.TEXT.pattern}", re.MULTILINE),
        near=re.compile(r"^\[System Summary\]", re.MULTILINE),
    ),
}


def read(file: str, data: bytes, kind: str | None = None) -> tuple[str, FileObservations]:
    """The kind of a file, recognised where none is named, and what it tells. Raises UsageError: NotReadable."""
    try:
        text = decoded(data)
        kind = kind or _recognised(file, text)
        return kind, SOURCES[kind].read(text)
    except Misread as misread:
        why = str(misread)
    raise unreadable(file, why, f"It is made with: {SOURCES[kind].made_by}" if kind else None)


def _recognised(file: str, text: str) -> str:
    beginning = text[:_BEGINNING]
    if '"winhost.facts/' in beginning:
        raise unreadable(file, "is a facts file already", "Use it as it is: winhost assess --facts FILE")
    for kind, source in SOURCES.items():
        if source.looks.search(beginning):
            return kind
    for source in SOURCES.values():
        if source.near.search(beginning):
            raise unreadable(file, source.why, f"Make it with: {source.instead or source.made_by}")
    known = "\n".join(f"  {kind}: {source.made_by}" for kind, source in SOURCES.items())
    raise unreadable(file, "is of no kind that can be imported", f"These can be, or name one with --kind:\n{known}")
