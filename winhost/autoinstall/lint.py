"""Lint an autoinstall file: what the installer accepts, and what then wipes disks, stops, waits or tells secrets.

The shape of the file comes first (lint_shape.py). The installer's own schema ends there: it says of `storage` that it
is an object, and allows any other key.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from packaging.version import Version

from winhost.autoinstall import lint_secrets, lint_shape
from winhost.autoinstall.autoinstall_file import (
    PREFIX,
    ROWS,
    AutoinstallContext,
    Delivery,
    KnownDisk,
    Loc,
    StorageAction,
    Unreadable,
    bare,
    parsed_autoinstall,
    schema,
    storage_bytes,
)
from winhost.autoinstall.installer_storage import UNRESOLVED
from winhost.findings.finding import FileFinding, Observation, matching_key_rows, run_rules, to_findings
from winhost.model.errors import did_you_mean
from winhost.resources.windows.disks import BASIC_DATA, DYNAMIC, EFI, RECOVERY, RESERVED, STORAGE_SPACES

Findings = Iterator[Observation]


def sections(context: AutoinstallContext) -> Findings:
    """Find repeated keys, a missing section, and keys beside it, which only a cloud-config may have."""
    file = context.file
    for loc in file.twice:
        yield context.found(loc[len(file.at) :], "key-twice", key=loc[-1])
    if file.delivery is Delivery.CLOUD_CONFIG and not file.section:
        yield context.found((), "no-section")
    elif file.delivery is Delivery.WRAPPED:
        for key in file.whole:
            if key != "autoinstall":
                yield context.found((), "beside-section", key=key)


def top_keys(context: AutoinstallContext) -> Findings:
    """Find keys that the installer does not know: where it does not refuse them, it ignores them."""
    sections = schema()["sections"]
    for keys, shape in (((), sections), (("storage",), sections["storage"]), (("ssh",), sections["ssh?"])):
        for loc, key, near in context.unknown(keys, context.mapping(*keys), shape):
            if not keys and key in schema()["cloud_init"].split():
                yield context.found(loc, "cloud-init-key", key=key)
            else:
                yield context.found(loc, "unknown-key", key=key, near=(not keys and _home(key)) or near)


def below_user_data(context: AutoinstallContext) -> Findings:
    """Find sections of the installer that slipped below user-data, where nobody reads them."""
    for key in context.mapping("user-data"):
        if key in _NOT_CLOUD_INIT:
            yield context.found(("user-data", key), "below-user-data", key=key)


_NOT_CLOUD_INIT = (
    *("late-commands", "early-commands", "error-commands", "interactive-sections", "refresh-installer", "identity"),
    *("storage", "shutdown", "updates", "codecs", "oem"),
)


def _home(key: str) -> str:
    """Name the only section that has this key: the key stands beside the section where the indentation slipped."""
    homes = [
        name.rstrip("!?")
        for name, shape in schema()["sections"].items()
        if isinstance(shape, dict) and not {"[]", "|", "~"} & shape.keys() and key in bare(shape)
    ]
    return f": it belongs below `{homes[0]}:`." if len(homes) == 1 else ""


def interactive(context: AutoinstallContext) -> Findings:
    """Find screens at which the installer waits for a person."""
    if context.asks:
        yield context.found(("interactive-sections",), "interactive", sections=", ".join(context.asks))


def account(context: AutoinstallContext) -> Findings:
    """Check that somebody can log on to the new system."""
    told = {"identity", "user-data", "active-directory"} & set(context.file.section)
    told |= {"identity", "*"} & set(context.asks)
    server = "server" in str(context.get("source", "id") or "server")
    if not told and server and context.get("storage", "layout", "reset-partition-only") is not True:
        yield context.found((), "no-account")
    ssh, users = context.mapping("ssh"), str(context.get("user-data"))
    keys = bool(ssh.get("authorized-keys")) or "ssh_authorized_keys" in users or "ssh_import_id" in users
    if ssh.get("install-server") is not True or not (keys or ssh.get("allow-pw") is True):
        yield context.found(("ssh",), "locked-out")


def by_rows(context: AutoinstallContext) -> Findings:
    """Yield the findings of rows about a key."""
    for row, key in matching_key_rows(ROWS, context.ask):
        yield context.found(tuple(key.split(".")), row.code, value=context.get(*key.split(".")))


LISTS = Version("24.04.2")  # of the media; `match` may be a list from there on
_LAYOUT = ("storage", "layout")


def storage(context: AutoinstallContext) -> Findings:
    """Check which of its forms the storage section has. Without one, the installer takes the largest disk."""
    section = context.file.section
    if not section:
        return
    if "storage" not in section:
        asks = not {"storage", "*"}.isdisjoint(context.asks)
        others = [str(key) for key in section if key not in bare(schema()["sections"])]
        wrong = next((key for key in others if did_you_mean(key, ["storage"])), None)
        near = f"; '{wrong}' is not it." if wrong else "."
        yield context.found((), "no-storage-asks" if asks else "no-storage", near=near)
        return
    content = context.mapping("storage")
    if "config" not in content and "layout" not in content:
        yield context.found(("storage",), "storage-empty")
    elif "config" in content and "layout" in content:
        yield context.found(("storage", "config"), "layout-and-config")


def layout(context: AutoinstallContext) -> Findings:
    """Check what a layout does, and to which disk."""
    if not context.uses_layout:
        return
    found = context.mapping(*_LAYOUT)
    for loc, key, near in context.unknown(_LAYOUT, found, schema()["layout"]):
        yield context.found(loc, "unknown-key", key=key, near=near)
    mode = found.get("mode")
    if mode is None:
        yield context.found(_LAYOUT, "layout-no-mode", which=_which(found))
    elif mode == "reformat_disk":
        yield context.found((*_LAYOUT, "mode"), "layout-reformat", which=_which(found))
    yield from _match(context, (*_LAYOUT, "match"), found.get("match"))


def _which(layout: dict[str, Any]) -> str:
    match = layout.get("match")
    return "the largest disk" if not match else f"the first disk that matches {match}"


def disk_matches(context: AutoinstallContext) -> Findings:
    """Check the match of each disk in `config`."""
    for each in context.of("disk"):
        if "serial" not in each.data and "path" not in each.data:
            yield from _match(context, (*each.loc, "match"), each.data.get("match"), kept=each.is_true("preserve"))


def _match(context: AutoinstallContext, loc: Loc, match: object, *, kept: bool = False) -> Findings:
    if isinstance(match, list):
        if context.installer is not None and context.installer < LISTS:
            yield context.found(loc, "match-list")
        for at, each in enumerate(match):
            yield from _one_match(context, (*loc, at), each, kept=kept)
    elif match is not None:
        yield from _one_match(context, loc, match, kept=kept)


def _one_match(context: AutoinstallContext, loc: Loc, match: object, *, kept: bool) -> Findings:
    if not isinstance(match, dict):
        return
    for inner, key, near in context.unknown(loc, match, schema()["match"]):
        yield context.found(inner, "match-key", key=key, near=near)
    if not kept:
        return
    named = [key for key in ("serial", "path", "id_path", "devpath") if key in match]
    for key in (*named, *(key for key in ("model", "vendor") if key in match)):
        if any(char in str(match[key]) for char in "*?["):
            yield context.found((*loc, key), "match-wildcard", key=key, value=match[key])
    if not named:
        how = ", ".join(f"{key}: {value}" for key, value in match.items()) or "left"
        yield context.found(loc, "match-any", how=how)


_FOREIGN = {
    EFI: "an ESP",
    RESERVED: "of Microsoft, reserved",
    BASIC_DATA: "of Windows' data",
    RECOVERY: "of Windows' recovery",
    STORAGE_SPACES: "of Storage Spaces",
    **dict.fromkeys(DYNAMIC, "of a dynamic disk"),
}
_FLAGS = {"boot": "an ESP", "msftres": "of Microsoft, reserved"}


def action_keys(context: AutoinstallContext) -> Findings:
    """Find misspelt keys of storage actions: `preserv: true` preserves nothing."""
    for each in context.actions:
        for loc, key, near in context.unknown(each.loc, each.data, schema()["actions"].get(each.type, {"*": "any"})):
            yield context.found(loc, "misspelt", type=each.type, id=each.id, key=key, near=near)


def disks(context: AutoinstallContext) -> Findings:
    """Check how each disk is named, and what becomes of its table."""
    for each in context.of("disk"):
        kept, given = each.is_true("preserve"), each.data.keys()
        if each.data.get("serial") == UNRESOLVED:
            if "guard.py" not in str(context.get("early-commands")):
                yield context.found((*each.loc, "serial"), "unresolved")
        elif "path" in given and "serial" not in given:
            yield context.found((*each.loc, "path"), "disk-path", path=each.data["path"])
        elif "serial" not in given and not each.data.get("match") and (kept or "wwn" in given):
            yield context.found(each.loc, "disk-unnamed", id=each.id)
        if not kept and each.data.get("serial") != UNRESOLVED:
            yield context.found(each.loc, "disk-anew", id=each.id)
        elif kept and each.data.get("wipe"):
            yield context.found((*each.loc, "wipe"), "disk-wipe", id=each.id, wipe=each.data["wipe"])


def partitions(context: AutoinstallContext) -> Findings:
    """Check partitions. Those of a disk that keeps something must state all that the installer would else choose."""
    every = context.of("partition")
    for at, each in enumerate(every):
        size, kept = storage_bytes(each.data.get("size")), context.keeps(each)
        if kept and "offset" not in each.data:
            yield context.found(each.loc, "no-offset", id=each.id)
        if kept and size == -1:
            yield context.found((*each.loc, "size"), "size-rest", size=each.data["size"])
        later = [other for other in every[at + 1 :] if other.data.get("device") == each.data.get("device")]
        extended = each.data.get("flag") == "extended"
        if size == -1 and "%" not in str(each.data["size"]) and later and not extended:
            yield context.found((*each.loc, "size"), "rest-not-last", id=each.id, later=later[0].id)
        if each.is_true("resize"):
            yield context.found((*each.loc, "resize"), "resize", id=each.id)
        if each.is_true("preserve"):
            yield from _preserved(context, each)


def _preserved(context: AutoinstallContext, each: StorageAction) -> Findings:
    if not each.data.get("partition_type"):
        yield context.found(each.loc, "no-type", id=each.id)
    if each.data.get("number") is None:
        yield context.found(each.loc, "no-number", id=each.id)
    disk = context.by_id("disk", each.data.get("device"))
    if disk is not None and not disk.is_true("preserve"):
        yield context.found(each.loc, "keeps-some", id=each.id)
    kind = _foreign(each)
    if kind and each.data.get("wipe"):
        yield context.found((*each.loc, "wipe"), "wipes-foreign", id=each.id, kind=kind)


def _foreign(partition: StorageAction) -> str | None:
    """The kind of a partition that is not Linux's own, or None."""
    kind = str(partition.data.get("partition_type", "")).lower()
    return _FOREIGN.get(kind) or (_FLAGS.get(str(partition.data.get("flag"))) if not kind else None)


def formats(context: AutoinstallContext) -> Findings:
    """Find new file systems on preserved partitions that are not Linux's own."""
    for each in context.of("format"):
        volume = context.by_id("partition", each.data.get("volume"))
        if volume is None or not volume.is_true("preserve") or each.is_true("preserve"):
            continue
        if kind := _foreign(volume):
            yield context.found(each.loc, "formats-foreign", id=volume.id, kind=kind)


def mounts(context: AutoinstallContext) -> Findings:
    """Check that there is a root, and a place for the firmware's boot loader."""
    if not context.actions:
        return
    if "/" not in [path for each in context.actions for path in _mounted(each)]:
        yield context.found(("storage", "config"), "no-root")
    if not any(_for_uefi(context, each) or each.data.get("flag") == "prep" for each in context.of("partition")):
        bios = [each for each in context.of("disk") if each.is_true("grub_device") and _for_bios(context, each)]
        if not context.of("dasd"):
            yield context.found(bios[0].loc if bios else ("storage", "config"), "bios-only" if bios else "no-loader")


def _mounted(each: StorageAction) -> Iterator[str]:
    """The paths at which an entry is mounted. Pools and volumes of ZFS mount themselves."""
    settings = each.data.get({"zpool": "fs_properties", "zfs": "properties"}.get(each.type, ""))
    if each.type == "mount":
        yield str(each.data.get("path"))
    elif isinstance(settings, dict) and settings.get("canmount", True) in (True, "on"):
        yield str(settings.get("mountpoint", each.data.get("mountpoint", each.data.get("volume"))))


def _for_uefi(context: AutoinstallContext, each: StorageAction) -> bool:
    """Tell whether this is an ESP that GRUB is installed to."""
    formats = [it.data.get("id") for it in context.of("format") if it.data.get("volume") == each.data.get("id")]
    mounted = [
        it for it in context.of("mount") if it.data.get("path") == "/boot/efi" and it.data.get("device") in formats
    ]
    return each.is_true("grub_device") and bool(mounted)


def _for_bios(context: AutoinstallContext, disk: StorageAction) -> bool:
    """Tell whether GRUB can be installed here without UEFI: no GPT, or a partition for GRUB's core."""
    if disk.data.get("ptable") in ("msdos", "dos") or "ptable" not in disk.data:
        return True
    mine = [each for each in context.of("partition") if each.data.get("device") == disk.data.get("id")]
    return any(each.data.get("flag") == "bios_grub" for each in mine)


def loaders(context: AutoinstallContext) -> Findings:
    """Check that curtin is told to keep the firmware's boot entries."""
    keeps = any(each.is_true("preserve") for each in context.of("partition"))
    if keeps and context.get("storage", "grub", "remove_duplicate_entries") is not False:
        yield context.found(("storage",), "duplicates")


def against_facts(context: AutoinstallContext) -> Findings:
    """Check that every partition of the facts is listed where it is, and that nothing new lies on one."""
    whole = context.get("storage", "layout", "mode") in (None, "reformat_disk")
    if context.disks and all(disk.partitions for disk in context.disks):
        holds = sum(len(disk.partitions) for disk in context.disks)
        if context.file.section and not context.actions and whole and not {"storage", "*"} & set(context.asks):
            yield context.found(("storage",), "wipes-what-is-there", what="This file", holds=holds)
        for disk in context.of("disk"):
            if not disk.is_true("preserve") and disk.data.get("serial") != UNRESOLVED:
                yield context.found(disk.loc, "wipes-what-is-there", what=f"The disk {disk.id}", holds=holds)
    for disk in context.of("disk") if context.disks else ():
        listed = [each for each in context.of("partition") if each.data.get("device") == disk.data.get("id")]
        kept = [each for each in listed if each.is_true("preserve")]
        if not disk.is_true("preserve"):
            continue
        known = _meant(context, kept)
        if known is None:
            yield context.found(disk.loc, "other-disk", id=disk.id)
            continue
        yield from _compared(context, disk, kept, known)
        yield from _new_ones(context, [each for each in listed if each not in kept], known)


def _meant(context: AutoinstallContext, kept: list[StorageAction]) -> KnownDisk | None:
    """The disk of the facts that has most of these partitions; None if none has any."""
    offsets = {each.number("offset") for each in kept}
    hits = {disk.guid: sum(each.offset in offsets for each in disk.partitions) for disk in context.disks}
    best = max(context.disks, key=lambda disk: hits[disk.guid])
    return best if hits[best.guid] else None


def _compared(
    context: AutoinstallContext, disk: StorageAction, kept: list[StorageAction], known: KnownDisk
) -> Findings:
    there = {each.offset: each for each in known.partitions}
    listed = {each.number("offset"): each for each in kept}
    for offset, partition in there.items():
        if offset not in listed:
            yield context.found(disk.loc, "unlisted", guid=partition.guid, offset=offset)
    for each in kept:
        found = there.get(each.number("offset") or -1)
        if found is None:
            yield context.found(each.loc, "elsewhere", id=each.id, offset=each.data.get("offset"))
            continue
        if each.number("size") != found.size:
            words = {"id": each.id, "size": each.data.get("size"), "known": found.size}
            yield context.found((*each.loc, "size"), "other-size", **words)
        kind = str(each.data.get("partition_type", "")).lower()
        if kind and kind != found.type:
            yield context.found((*each.loc, "partition_type"), "other-type", id=each.id, kind=kind, known=found.type)


def _new_ones(context: AutoinstallContext, new: list[StorageAction], known: KnownDisk) -> Findings:
    for each in new:
        begin, length = each.number("offset"), each.number("size")
        if begin is None or length is None:
            continue
        for other in known.partitions:
            if begin < other.offset + other.size and other.offset < begin + length:
                yield context.found(each.loc, "overlaps", id=each.id, guid=other.guid)


# In late commands.
_DOCUMENT = re.compile(r"<<-?\s*(['\"]?)(\w+)\1[^\n]*\n.*?(?:\n[ \t]*\2[ \t]*(?=\n|$)|\Z)", re.DOTALL)
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"")
_NEXT = re.compile(r"\n|;|&&|\|\|?|\bthen\b|\bdo\b|\belse\b")
_BEFORE = re.compile(r"^(?:\s|!|\{|\(|if\b|sudo(?:\s+-\S+)*|env\b|[A-Za-z_]\w*=\S*)*")
_ELSEWHERE = re.compile(r"/target|chroot|in-target|--root|--prefix|\s-R\b")
_SYSTEM = re.compile(
    r"(?:systemctl(?:\s+-\S+)*\s+(?:enable|disable|mask|unmask|set-default)|useradd|adduser|usermod|groupadd|chpasswd|passwd"
    r"|update-grub2?|update-initramfs|grub-install|ufw|timedatectl\s+set|hostnamectl\s+set|dpkg-reconfigure)\b"
)
_PACKAGES = re.compile(
    r"(?:apt(?:-get)?(?:\s+-\S+)*\s+(?:install|upgrade|dist-upgrade|full-upgrade|purge|remove)|snap\s+install)\b"
)


def late_commands(context: AutoinstallContext) -> Findings:
    """Find commands that were meant for the new system: they run in the installer, and the new system is /target."""
    listed = context.get("late-commands")
    for at, command in enumerate(listed if isinstance(listed, list) else ()):
        text = " ".join(map(str, command)) if isinstance(command, list) else str(command)
        for code, shown in dict.fromkeys(_outside(text)):
            yield context.found(("late-commands", at), code, command=shown)


def _outside(text: str) -> Iterator[tuple[str, str]]:
    """Yield the code and the first words of each command in a shell's text that names nothing of the new system."""
    plain = _QUOTED.sub(lambda quoted: " " * len(quoted[0]), _DOCUMENT.sub("", text.replace("\\\n", "  ")))
    for part in _NEXT.split(plain):
        command = " ".join(_BEFORE.sub("", part).split())
        for pattern, code in ((_SYSTEM, "late-command-outside"), (_PACKAGES, "late-packages-outside")):
            if (found := pattern.match(command)) and not _ELSEWHERE.search(command):
                yield code, found[0] + " \u2026" * (found.end() < len(command))  # the rest may hold a secret


RULES = (
    *(lint_shape.shapes, lint_shape.ids, sections, top_keys, below_user_data, interactive, account, by_rows),
    *(storage, layout, disk_matches),
    *(action_keys, disks, partitions, formats, mounts, loaders),
    *(against_facts, late_commands, lint_secrets.secrets),
)


def lint_autoinstall(
    data: bytes, *, installer: Version | None = None, disks: Sequence[KnownDisk] = ()
) -> list[FileFinding]:
    """All findings, by line and column. installer: the version of the media; disks: of the machine."""
    text = data.decode("utf-8-sig", "replace")
    try:
        file = parsed_autoinstall(text)
    except Unreadable as error:
        found = [Observation("unreadable", error.position, {"why": error.why}, subject="the file")]
    else:
        found = run_rules(RULES, AutoinstallContext(file, installer, disks))
    return to_findings(ROWS, PREFIX, found)
