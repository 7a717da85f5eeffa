"""The kinds of files that can be imported, how each is recognized, and similar files that cannot."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from winhost.core.dataclass import dataclass
from winhost.imports import (
    computer_info,
    devices,
    dxdiag,
    hyperv,
    linux_words,
    lspci,
    msinfo,
    nvidia_smi,
    storage,
    systeminfo,
    versions,
)
from winhost.imports.observation import READABLE, FileObservations, Misread, decode, unquote, unreadable_file_error

_BEGINNING = 1 << 20  # characters in which a file shows what it is


@dataclass(frozen=True)
class FileKind:
    """A kind of file. made_by: the command that writes it; pattern: of text that only this kind has; near_pattern: of
    output of that command in a form that is not supported; why: what is wrong with that form; instead: the command to
    run in that case, if it is another one.
    """

    made_by: str
    read: Callable[[str], FileObservations]
    pattern: re.Pattern[str]
    near_pattern: re.Pattern[str]
    why: str = "is in a form for people"
    instead: str | None = None


SOURCES: Mapping[str, FileKind] = {
    "nvidia-smi": FileKind(
        "nvidia-smi -q -x",
        nvidia_smi.read,
        pattern=re.compile(
            rf"<nvidia_smi_log\b|{nvidia_smi.LOG.pattern}|{nvidia_smi.QUERY.pattern}|{nvidia_smi.LIST.pattern}"
            rf"|{nvidia_smi.TABLE.pattern}|{nvidia_smi.LOST_GPU.pattern}",
            re.MULTILINE,
        ),
        near_pattern=re.compile(r"\| NVIDIA-SMI |NVIDIA-SMI has failed|^\s*GPU0\s+(?:GPU1|X)\b", re.MULTILINE),
        why="names no GPU",
    ),
    "dxdiag": FileKind(
        "dxdiag /x FILE",
        dxdiag.read,
        pattern=re.compile(rf"<DxDiag\b|{dxdiag.TEXT.pattern}", re.MULTILINE),
        near_pattern=re.compile(r"DxDiag Version:|\"DxDiag\""),
    ),
    "computer-info": FileKind(
        "Get-ComputerInfo | ConvertTo-Json",
        computer_info.read,
        pattern=re.compile(
            r'\A\s*[\[{][\s\S]*"(?:OsOperatingSystemSKU|WindowsEditionId|CsTotalPhysicalMemory)"\s*:'
            rf"|{computer_info.LIST.pattern}",
            re.MULTILINE,
        ),
        near_pattern=re.compile(r"^(?:WindowsProductName|OsName|OsBuildNumber|HyperVisorPresent)\s*:", re.MULTILINE),
    ),
    "systeminfo": FileKind(
        "systeminfo",
        systeminfo.read,
        pattern=re.compile(
            rf"{systeminfo.LIST.pattern}|{systeminfo.CSV.pattern}|(?i:{systeminfo.ELSEWHERE.pattern})", re.MULTILINE
        ),
        near_pattern=systeminfo.PART,
        why="is only a part of systeminfo",
        instead="Get-ComputerInfo | ConvertTo-Json, which says the same in every language",
    ),
    "lspci": FileKind(
        "lspci -vv -nn, as root",
        lspci.read,
        pattern=lspci.PATTERN,
        near_pattern=re.compile(r"^(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[01][0-9a-f]\.[0-7] ", re.MULTILINE),
        why="names no GPU by the words of its class",
    ),
    "survey-dda": FileKind(
        ".\\SurveyDDA.ps1 *> survey.txt",
        devices.read_survey,
        pattern=re.compile(
            rf"Generating a list of PCI Express endpoint devices|{devices.LOCATION.pattern}", re.MULTILINE | re.I
        ),
        near_pattern=re.compile(r"PCIROOT\("),
    ),
    "pnp-devices": FileKind(
        "Get-PnpDevice -Class Display | Format-List, or pnputil /enum-devices /class Display",
        devices.read_adapters,
        pattern=re.compile(rf"{devices.LIST.pattern}|{devices.TABLE.pattern}", re.MULTILINE | re.IGNORECASE),
        near_pattern=re.compile(r"^[ \t]*(?:OK|Error|Unknown) +Display +\S", re.MULTILINE),
    ),
    "disks": FileKind(
        "Get-Disk | ConvertTo-Json",
        storage.read_disks,
        pattern=re.compile(r'^\s*[\[{](?=[\s\S]*"PartitionStyle"\s*:)(?=[\s\S]*"UniqueId"\s*:)'),
        near_pattern=re.compile(r"^Number\s+Friendly Name\s+Serial Number\s+HealthStatus", re.MULTILINE),
    ),
    "partitions": FileKind(
        "Get-Partition | ConvertTo-Json",
        storage.read_partitions,
        pattern=re.compile(r'^\s*[\[{](?=[\s\S]*"GptType"\s*:)(?=[\s\S]*"DiskNumber"\s*:)'),
        near_pattern=re.compile(r"^PartitionNumber\s+DriveLetter\s+Offset\s+Size\s+Type", re.MULTILINE),
    ),
    "manage-bde": FileKind(
        "manage-bde -protectors -get C:, and in English manage-bde -status",
        storage.read_volumes,
        pattern=re.compile(rf"{storage.PROTECTOR.pattern}|{storage.STATUS.pattern}", re.MULTILINE),
        near_pattern=re.compile(r"^MountPoint\s*:.*$[\s\S]*^ProtectionStatus\s*:", re.MULTILINE),
    ),
    "bcdedit": FileKind(
        "bcdedit /enum all", msinfo.read_bcd, pattern=msinfo.BCD, near_pattern=re.compile(r"\{(?:bootmgr|fwbootmgr)\}")
    ),
    "msinfo32": FileKind(
        "msinfo32 /nfo FILE, or /report FILE",
        msinfo.read,
        pattern=re.compile(rf"{msinfo.INFO.pattern}|{msinfo.TEXT.pattern}", re.MULTILINE),
        near_pattern=re.compile(r"^\[System Summary\]", re.MULTILINE),
    ),
    "partitionable-gpus": FileKind(
        "Get-VMHostPartitionableGpu",
        hyperv.read_gpus,
        pattern=hyperv.GPUS,
        near_pattern=re.compile(r"GPUPARAV", re.IGNORECASE),
    ),
    "wsl-version": FileKind(
        "wsl --version",
        versions.read_package,
        pattern=versions.PACKAGE,
        near_pattern=re.compile(
            r"^\s*(?:Default Distribution|Standardverteilung|Distribution par défaut|默认(?:分发版|分发))\s*[:\uff1a]",
            re.MULTILINE,
        ),
        why="names no version of WSL",
    ),
    "wsl-list": FileKind(
        "wsl -l -v, while a distro runs",
        versions.read_distros,
        pattern=versions.DISTROS,
        near_pattern=re.compile(r"^\s*NAME\s+STATE\s+VERSION", re.MULTILINE),
    ),
    "hyper-v": FileKind(
        "Get-VMHost | Format-List, or Get-VM",
        hyperv.read_hosts,
        pattern=hyperv.HOSTS,
        near_pattern=re.compile(r"^\s*(?:LogicalProcessorCount|VMId)\s*:", re.MULTILINE),
    ),
    "linux": FileKind(
        "lscpu and free, on a Linux started on the machine itself, or uname -a in WSL",
        linux_words.read,
        pattern=linux_words.PATTERN,
        near_pattern=re.compile(r"^\s*CPU op-mode\(s\):|^\s*total +used +free +shared", re.MULTILINE),
        why="does not say whether it ran on the machine itself or in a VM such as WSL's",
        instead="lscpu and free in one paste",
    ),
    "windows-version": FileKind(
        "ver, or Settings > System > About",
        versions.read_words,
        pattern=versions.PATTERN,
        near_pattern=re.compile(r"^Edition[ \t]*[:\t][ \t]*Windows 1[01]", re.MULTILINE),
    ),
}

_ALIKE = {"systeminfo", "msinfo32", "computer-info", "dxdiag"}  # which word some lines alike

_WINHOST_FILES = (  # files of winhost's own, and what they are for
    ("is a facts file already", re.compile(r'"winhost\.facts/'), "Use it as it is: winhost assess --facts FILE"),
    (
        "is a host of the simulator",
        re.compile(r"^[\s{\"]*schema\"?\s*:\s*\"?winhost\.host/", re.MULTILINE),
        "Serve it: winhost lab up FILE",
    ),
)

_PARTS = (  # what is of no kind, but tells what it is about, and what tells of that
    ("names GPUs, but in no form that is read", re.compile(r"PCI\\VEN_[0-9A-F]{4}&DEV_", re.I), "dxdiag /x FILE"),
    (
        "lists disks, but in no form that is read",
        re.compile(
            r"^\s*Disk ###|^\s*(?:Disk|Datenträger|Disque|磁盘) \d+ {2,}|^\s*Volume ###|^NAME +(?:MAJ:MIN|FSTYPE)", re.M
        ),
        "Get-Disk | ConvertTo-Json",
    ),
    (
        "names a Windows, but in no form that is read",
        re.compile(r"\bWindows (?:(?:1[01]|Server 20\d\d)\b|\[Version )"),
        "Get-ComputerInfo | ConvertTo-Json",
    ),
    ("names GPUs, but in no form that is read", re.compile(r"\b(?:NVIDIA|GeForce|Quadro|Tesla)\b"), "nvidia-smi -q -x"),
    ("names GPUs, but in no form that is read", re.compile(r"\b(?:Radeon|Intel)\b.*\bGraphics\b"), "dxdiag /x FILE"),
)


def read(file: str, data: bytes, kind: str | None = None) -> list[tuple[str, FileObservations]]:
    """Read the outputs in a file: only those of the named kind, else all that are recognized.

    Raises UsageError: NotReadable.
    """
    try:
        text = unquote(decode(data))
        if not text.strip():
            raise Misread("is empty")
        if kind:
            return [(kind, SOURCES[kind].read(text))]
        kind = _recognize_kind(file, text)
        return _read_outputs(kind, text)
    except Misread as misread:
        why = str(misread)
    made = f"It is made with: {SOURCES[kind].made_by}" if kind else READABLE
    raise unreadable_file_error(file, why, made)


def _read_outputs(kind: str, text: str) -> list[tuple[str, FileObservations]]:
    """Read every output in a text, of which `kind` is the first. GPUs are read from only one output, because two may
    number them differently. Raises Misread if none can be read.
    """
    outputs = list[tuple[str, FileObservations]]()
    same_gpus, unread = list[str](), dict[str, Misread]()
    other_kinds = [other for other in SOURCES if other != kind and not {kind, other} <= _ALIKE]
    for each in (kind, *(other for other in other_kinds if SOURCES[other].pattern.search(text[:_BEGINNING]))):
        try:
            found = SOURCES[each].read(text)
        except Misread as misread:
            unread[SOURCES[each].made_by] = misread
            continue
        if found.functions and any(before.functions for _, before in outputs):
            same_gpus.append(SOURCES[each].made_by)
            found = replace(found, functions=None, every_function=False, every_gpu=False, advice=None)
        outputs.append((each, found))
    if not outputs:
        raise next(iter(unread.values()))
    first, found = outputs[0]
    advice = [found.advice] if found.advice else []
    if same_gpus:
        taken = next(SOURCES[each].made_by for each, observed in outputs if observed.functions)
        apart = " and ".join(same_gpus)
        advice.append(f"GPUs were read from what {taken} printed: put {apart} into a separate file")
    if unread:
        advice.append(f"what {' and '.join(unread)} printed was not read: put it into a separate file")
    outputs[0] = first, replace(found, advice="; ".join(advice) or None)
    return outputs


def _recognize_kind(file: str, text: str) -> str:
    beginning = text[:_BEGINNING]
    for why, pattern, hint in _WINHOST_FILES:
        if pattern.search(beginning):
            raise unreadable_file_error(file, why, hint)
    for kind, source in SOURCES.items():
        if source.pattern.search(beginning):
            return kind
    near = ((source.why, source.near_pattern, source.instead or source.made_by) for source in SOURCES.values())
    for why, pattern, instead in (*near, *_PARTS):
        if pattern.search(beginning):
            raise unreadable_file_error(file, why, f"Make it with: {instead}")
    known = "\n".join(f"  {kind}: {source.made_by}" for kind, source in SOURCES.items())
    raise unreadable_file_error(
        file, "is of no kind that can be imported", f"These can be, or name one with --kind:\n{known}"
    )
