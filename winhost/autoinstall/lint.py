"""Lint an autoinstall file: find what the installer refuses, and what wipes disks, stops, waits or discloses secrets.

lint_shape.py checks the shape of the file. The installer's own schema checks no more than that: for `storage` it only
demands an object, and it allows any other key.
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
    parse_autoinstall,
    schema,
    storage_bytes,
)
from winhost.autoinstall.installer_storage import UNRESOLVED
from winhost.findings.finding import FileFinding, Observation, matching_key_rows, run_rules, to_findings
from winhost.model.errors import did_you_mean
from winhost.resources.windows.disks import BASIC_DATA, DYNAMIC, EFI, RECOVERY, RESERVED, STORAGE_SPACES

Findings = Iterator[Observation]


def check_sections(context: AutoinstallContext) -> Findings:
    """Find repeated keys, a missing section, and keys next to the section, which only a cloud-config may have."""
    file = context.file
    for loc in file.twice:
        yield context.observe(loc[len(file.at) :], "key-twice", key=loc[-1])
    if file.delivery is Delivery.CLOUD_CONFIG and not file.section:
        yield context.observe((), "no-section")
    elif file.delivery is Delivery.WRAPPED:
        for key in file.whole:
            if key != "autoinstall":
                yield context.observe((), "beside-section", key=key)


def check_top_keys(context: AutoinstallContext) -> Findings:
    """Find keys that the installer does not know: it refuses or ignores them."""
    sections = schema()["sections"]
    for keys, shape in (((), sections), (("storage",), sections["storage"]), (("ssh",), sections["ssh?"])):
        for loc, key, near in context.unknown(keys, context.mapping(*keys), shape):
            if not keys and key in schema()["cloud_init"].split():
                yield context.observe(loc, "cloud-init-key", key=key)
            else:
                yield context.observe(loc, "unknown-key", key=key, near=(not keys and _home(key)) or near)


def check_below_user_data(context: AutoinstallContext) -> Findings:
    """Find sections of the installer below user-data, where they have no effect."""
    for key in context.mapping("user-data"):
        if key in _INSTALLER_SECTIONS:
            yield context.observe(("user-data", key), "below-user-data", key=key)


_INSTALLER_SECTIONS = (
    *("late-commands", "early-commands", "error-commands", "interactive-sections", "refresh-installer", "identity"),
    *("storage", "shutdown", "updates", "codecs", "oem"),
)


def _home(key: str) -> str:
    """Suggest the only section that has this key, in case of a wrong indentation."""
    homes = [
        name.rstrip("!?")
        for name, shape in schema()["sections"].items()
        if isinstance(shape, dict) and not {"[]", "|", "~"} & shape.keys() and key in bare(shape)
    ]
    return f": it belongs below `{homes[0]}:`." if len(homes) == 1 else ""


def check_interactive_sections(context: AutoinstallContext) -> Findings:
    """Find screens on which the installer waits for a person."""
    if context.asks:
        yield context.observe(("interactive-sections",), "interactive", sections=", ".join(context.asks))


def check_logon(context: AutoinstallContext) -> Findings:
    """Check that somebody can log on to the new system."""
    told = {"identity", "user-data", "active-directory"} & set(context.file.section)
    told |= {"identity", "*"} & set(context.asks)
    server = "server" in str(context.get("source", "id") or "server")
    if not told and server and context.get("storage", "layout", "reset-partition-only") is not True:
        yield context.observe((), "no-account")
    ssh, users = context.mapping("ssh"), str(context.get("user-data"))
    keys = bool(ssh.get("authorized-keys")) or "ssh_authorized_keys" in users or "ssh_import_id" in users
    if ssh.get("install-server") is not True or not (keys or ssh.get("allow-pw") is True):
        yield context.observe(("ssh",), "locked-out")


def check_key_rows(context: AutoinstallContext) -> Findings:
    """Check the rows of findings.yaml about a key."""
    for row, key in matching_key_rows(ROWS, context.ask):
        yield context.observe(tuple(key.split(".")), row.code, value=context.get(*key.split(".")))


LISTS = Version("24.04.2")  # the first media on which `match` may be a list
_LAYOUT = ("storage", "layout")


def check_storage(context: AutoinstallContext) -> Findings:
    """Check the form of the storage section. Without a section, the installer takes the largest disk."""
    section = context.file.section
    if not section:
        return
    if "storage" not in section:
        asks = not {"storage", "*"}.isdisjoint(context.asks)
        others = [str(key) for key in section if key not in bare(schema()["sections"])]
        wrong = next((key for key in others if did_you_mean(key, ["storage"])), None)
        near = f"; '{wrong}' is not it." if wrong else "."
        yield context.observe((), "no-storage-asks" if asks else "no-storage", near=near)
        return
    content = context.mapping("storage")
    if "config" not in content and "layout" not in content:
        yield context.observe(("storage",), "storage-empty")
    elif "config" in content and "layout" in content:
        yield context.observe(("storage", "config"), "layout-and-config")


def check_layout(context: AutoinstallContext) -> Findings:
    """Check the effect of a layout, and on which disk."""
    if not context.uses_layout:
        return
    found = context.mapping(*_LAYOUT)
    for loc, key, near in context.unknown(_LAYOUT, found, schema()["layout"]):
        yield context.observe(loc, "unknown-key", key=key, near=near)
    mode = found.get("mode")
    if mode is None:
        yield context.observe(_LAYOUT, "layout-no-mode", which=_matched_disk(found))
    elif mode == "reformat_disk":
        yield context.observe((*_LAYOUT, "mode"), "layout-reformat", which=_matched_disk(found))
    yield from _match(context, (*_LAYOUT, "match"), found.get("match"))


def _matched_disk(layout: dict[str, Any]) -> str:
    match = layout.get("match")
    return "the largest disk" if not match else f"the first disk that matches {match}"


def check_disk_matches(context: AutoinstallContext) -> Findings:
    """Check the match of each disk in `config`."""
    for each in context.actions_of("disk"):
        if "serial" not in each.data and "path" not in each.data:
            yield from _match(context, (*each.loc, "match"), each.data.get("match"), kept=each.is_true("preserve"))


def _match(context: AutoinstallContext, loc: Loc, match: object, *, kept: bool = False) -> Findings:
    if isinstance(match, list):
        if context.installer is not None and context.installer < LISTS:
            yield context.observe(loc, "match-list")
        for at, each in enumerate(match):
            yield from _match_entry(context, (*loc, at), each, kept=kept)
    elif match is not None:
        yield from _match_entry(context, loc, match, kept=kept)


def _match_entry(context: AutoinstallContext, loc: Loc, match: object, *, kept: bool) -> Findings:
    if not isinstance(match, dict):
        return
    for inner, key, near in context.unknown(loc, match, schema()["match"]):
        yield context.observe(inner, "match-key", key=key, near=near)
    if not kept:
        return
    named = [key for key in ("serial", "path", "id_path", "devpath") if key in match]
    for key in (*named, *(key for key in ("model", "vendor") if key in match)):
        if any(char in str(match[key]) for char in "*?["):
            yield context.observe((*loc, key), "match-wildcard", key=key, value=match[key])
    if not named:
        how = ", ".join(f"{key}: {value}" for key, value in match.items()) or "left"
        yield context.observe(loc, "match-any", how=how)


_FOREIGN = {
    EFI: "an ESP",
    RESERVED: "of Microsoft, reserved",
    BASIC_DATA: "of Windows' data",
    RECOVERY: "of Windows' recovery",
    STORAGE_SPACES: "of Storage Spaces",
    **dict.fromkeys(DYNAMIC, "of a dynamic disk"),
}
_FLAGS = {"boot": "an ESP", "msftres": "of Microsoft, reserved"}


def check_action_keys(context: AutoinstallContext) -> Findings:
    """Find misspelt keys of storage actions: `preserv: true` preserves nothing."""
    for each in context.actions:
        for loc, key, near in context.unknown(each.loc, each.data, schema()["actions"].get(each.type, {"*": "any"})):
            yield context.observe(loc, "misspelt", type=each.type, id=each.id, key=key, near=near)


def check_disks(context: AutoinstallContext) -> Findings:
    """Check how each disk is identified, and whether its table is preserved."""
    for each in context.actions_of("disk"):
        kept, given = each.is_true("preserve"), each.data.keys()
        if each.data.get("serial") == UNRESOLVED:
            if "guard.py" not in str(context.get("early-commands")):
                yield context.observe((*each.loc, "serial"), "unresolved")
        elif "path" in given and "serial" not in given:
            yield context.observe((*each.loc, "path"), "disk-path", path=each.data["path"])
        elif "serial" not in given and not each.data.get("match") and (kept or "wwn" in given):
            yield context.observe(each.loc, "disk-unnamed", id=each.id)
        if not kept and each.data.get("serial") != UNRESOLVED:
            yield context.observe(each.loc, "disk-anew", id=each.id)
        elif kept and each.data.get("wipe"):
            yield context.observe((*each.loc, "wipe"), "disk-wipe", id=each.id, wipe=each.data["wipe"])


def check_partitions(context: AutoinstallContext) -> Findings:
    """Check partitions. On a preserved disk they must state every value that the installer would otherwise choose."""
    every = context.actions_of("partition")
    for at, each in enumerate(every):
        size, kept = storage_bytes(each.data.get("size")), context.keeps(each)
        if kept and "offset" not in each.data:
            yield context.observe(each.loc, "no-offset", id=each.id)
        if kept and size == -1:
            yield context.observe((*each.loc, "size"), "size-rest", size=each.data["size"])
        later = [other for other in every[at + 1 :] if other.data.get("device") == each.data.get("device")]
        extended = each.data.get("flag") == "extended"
        if size == -1 and "%" not in str(each.data["size"]) and later and not extended:
            yield context.observe((*each.loc, "size"), "rest-not-last", id=each.id, later=later[0].id)
        if each.is_true("resize"):
            yield context.observe((*each.loc, "resize"), "resize", id=each.id)
        if each.is_true("preserve"):
            yield from _preserved(context, each)


def _preserved(context: AutoinstallContext, each: StorageAction) -> Findings:
    if not each.data.get("partition_type"):
        yield context.observe(each.loc, "no-type", id=each.id)
    if each.data.get("number") is None:
        yield context.observe(each.loc, "no-number", id=each.id)
    disk = context.find_action("disk", each.data.get("device"))
    if disk is not None and not disk.is_true("preserve"):
        yield context.observe(each.loc, "keeps-some", id=each.id)
    kind = _foreign(each)
    if kind and each.data.get("wipe"):
        yield context.observe((*each.loc, "wipe"), "wipes-foreign", id=each.id, kind=kind)


def _foreign(partition: StorageAction) -> str | None:
    """Return the kind of a partition that is not Linux's own, or None."""
    kind = str(partition.data.get("partition_type", "")).lower()
    return _FOREIGN.get(kind) or (_FLAGS.get(str(partition.data.get("flag"))) if not kind else None)


def check_formats(context: AutoinstallContext) -> Findings:
    """Find new file systems on preserved partitions that are not Linux's own."""
    for each in context.actions_of("format"):
        volume = context.find_action("partition", each.data.get("volume"))
        if volume is None or not volume.is_true("preserve") or each.is_true("preserve"):
            continue
        if kind := _foreign(volume):
            yield context.observe(each.loc, "formats-foreign", id=volume.id, kind=kind)


def check_mounts(context: AutoinstallContext) -> Findings:
    """Check that there is a root, and a partition for the boot loader."""
    if not context.actions:
        return
    if "/" not in [path for each in context.actions for path in _mounted(each)]:
        yield context.observe(("storage", "config"), "no-root")
    if not any(
        _is_uefi_loader(context, each) or each.data.get("flag") == "prep" for each in context.actions_of("partition")
    ):
        bios = [
            each
            for each in context.actions_of("disk")
            if each.is_true("grub_device") and _is_bios_loader(context, each)
        ]
        if not context.actions_of("dasd"):
            yield context.observe(bios[0].loc if bios else ("storage", "config"), "bios-only" if bios else "no-loader")


def _mounted(each: StorageAction) -> Iterator[str]:
    """Yield the paths at which an entry is mounted. Pools and volumes of ZFS mount themselves."""
    settings = each.data.get({"zpool": "fs_properties", "zfs": "properties"}.get(each.type, ""))
    if each.type == "mount":
        yield str(each.data.get("path"))
    elif isinstance(settings, dict) and settings.get("canmount", True) in (True, "on"):
        yield str(settings.get("mountpoint", each.data.get("mountpoint", each.data.get("volume"))))


def _is_uefi_loader(context: AutoinstallContext, each: StorageAction) -> bool:
    """Tell whether this is an ESP that GRUB is installed to."""
    formats = [it.data.get("id") for it in context.actions_of("format") if it.data.get("volume") == each.data.get("id")]
    mounted = [
        it
        for it in context.actions_of("mount")
        if it.data.get("path") == "/boot/efi" and it.data.get("device") in formats
    ]
    return each.is_true("grub_device") and bool(mounted)


def _is_bios_loader(context: AutoinstallContext, disk: StorageAction) -> bool:
    """Tell whether GRUB can be installed here without UEFI: no GPT, or a partition for GRUB's core."""
    if disk.data.get("ptable") in ("msdos", "dos") or "ptable" not in disk.data:
        return True
    own = [each for each in context.actions_of("partition") if each.data.get("device") == disk.data.get("id")]
    return any(each.data.get("flag") == "bios_grub" for each in own)


def check_loaders(context: AutoinstallContext) -> Findings:
    """Check that curtin is told to keep the firmware's boot entries."""
    keeps = any(each.is_true("preserve") for each in context.actions_of("partition"))
    if keeps and context.get("storage", "grub", "remove_duplicate_entries") is not False:
        yield context.observe(("storage",), "duplicates")


def compare_with_facts(context: AutoinstallContext) -> Findings:
    """Check that the file lists every partition of the facts at its position, and that no new one overlaps it."""
    whole = context.get("storage", "layout", "mode") in (None, "reformat_disk")
    if context.disks and all(disk.partitions for disk in context.disks):
        holds = sum(len(disk.partitions) for disk in context.disks)
        if context.file.section and not context.actions and whole and not {"storage", "*"} & set(context.asks):
            yield context.observe(("storage",), "wipes-what-is-there", what="This file", holds=holds)
        for disk in context.actions_of("disk"):
            if not disk.is_true("preserve") and disk.data.get("serial") != UNRESOLVED:
                yield context.observe(disk.loc, "wipes-what-is-there", what=f"The disk {disk.id}", holds=holds)
    for disk in context.actions_of("disk") if context.disks else ():
        listed = [each for each in context.actions_of("partition") if each.data.get("device") == disk.data.get("id")]
        kept = [each for each in listed if each.is_true("preserve")]
        if not disk.is_true("preserve"):
            continue
        known = _best_matching_disk(context, kept)
        if known is None:
            yield context.observe(disk.loc, "other-disk", id=disk.id)
            continue
        yield from _compare_preserved(context, disk, kept, known)
        yield from _check_new(context, [each for each in listed if each not in kept], known)


def _best_matching_disk(context: AutoinstallContext, kept: list[StorageAction]) -> KnownDisk | None:
    """Return the disk of the facts that has most of these partitions; None if none has any."""
    offsets = {each.number("offset") for each in kept}
    hits = {disk.guid: sum(each.offset in offsets for each in disk.partitions) for disk in context.disks}
    best = max(context.disks, key=lambda disk: hits[disk.guid])
    return best if hits[best.guid] else None


def _compare_preserved(
    context: AutoinstallContext, disk: StorageAction, kept: list[StorageAction], known: KnownDisk
) -> Findings:
    existing = {each.offset: each for each in known.partitions}
    listed = {each.number("offset"): each for each in kept}
    for offset, partition in existing.items():
        if offset not in listed:
            yield context.observe(disk.loc, "unlisted", guid=partition.guid, offset=offset)
    for each in kept:
        found = existing.get(each.number("offset") or -1)
        if found is None:
            yield context.observe(each.loc, "elsewhere", id=each.id, offset=each.data.get("offset"))
            continue
        if each.number("size") != found.size:
            words = {"id": each.id, "size": each.data.get("size"), "known": found.size}
            yield context.observe((*each.loc, "size"), "other-size", **words)
        kind = str(each.data.get("partition_type", "")).lower()
        if kind and kind != found.type:
            yield context.observe((*each.loc, "partition_type"), "other-type", id=each.id, kind=kind, known=found.type)


def _check_new(context: AutoinstallContext, new: list[StorageAction], known: KnownDisk) -> Findings:
    for each in new:
        begin, length = each.number("offset"), each.number("size")
        if begin is None or length is None:
            continue
        for other in known.partitions:
            if begin < other.offset + other.size and other.offset < begin + length:
                yield context.observe(each.loc, "overlaps", id=each.id, guid=other.guid)


# Patterns for late commands.
_DOCUMENT = re.compile(r"<<-?\s*(['\"]?)(\w+)\1[^\n]*\n.*?(?:\n[ \t]*\2[ \t]*(?=\n|$)|\Z)", re.DOTALL)
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"")
_NEXT = re.compile(r"\n|;|&&|\|\|?|\bthen\b|\bdo\b|\belse\b")
_COMMAND_PREFIX = re.compile(r"^(?:\s|!|\{|\(|if\b|sudo(?:\s+-\S+)*|env\b|[A-Za-z_]\w*=\S*)*")
_NEW_SYSTEM = re.compile(r"/target|chroot|in-target|--root|--prefix|\s-R\b")
_SYSTEM = re.compile(
    r"(?:systemctl(?:\s+-\S+)*\s+(?:enable|disable|mask|unmask|set-default)|useradd|adduser|usermod|groupadd|chpasswd|passwd"
    r"|update-grub2?|update-initramfs|grub-install|ufw|timedatectl\s+set|hostnamectl\s+set|dpkg-reconfigure)\b"
)
_PACKAGES = re.compile(
    r"(?:apt(?:-get)?(?:\s+-\S+)*\s+(?:install|upgrade|dist-upgrade|full-upgrade|purge|remove)|snap\s+install)\b"
)


def check_late_commands(context: AutoinstallContext) -> Findings:
    """Find commands that should run in the new system: late commands run in the installer, and the new system is below
    /target.
    """
    listed = context.get("late-commands")
    for at, command in enumerate(listed if isinstance(listed, list) else ()):
        text = " ".join(map(str, command)) if isinstance(command, list) else str(command)
        for code, shown in dict.fromkeys(_installer_commands(text)):
            yield context.observe(("late-commands", at), code, command=shown)


def _installer_commands(text: str) -> Iterator[tuple[str, str]]:
    """Yield the finding's code and the begin of each command in a shell text that does not refer to the new system."""
    plain = _QUOTED.sub(lambda quoted: " " * len(quoted[0]), _DOCUMENT.sub("", text.replace("\\\n", "  ")))
    for part in _NEXT.split(plain):
        command = " ".join(_COMMAND_PREFIX.sub("", part).split())
        for pattern, code in ((_SYSTEM, "late-command-outside"), (_PACKAGES, "late-packages-outside")):
            if (found := pattern.match(command)) and not _NEW_SYSTEM.search(command):
                yield code, found[0] + " \u2026" * (found.end() < len(command))  # the arguments may contain a secret


RULES = (
    *(
        lint_shape.check_shapes,
        lint_shape.check_ids,
        check_sections,
        check_top_keys,
        check_below_user_data,
        check_interactive_sections,
        check_logon,
        check_key_rows,
    ),
    *(check_storage, check_layout, check_disk_matches),
    *(check_action_keys, check_disks, check_partitions, check_formats, check_mounts, check_loaders),
    *(compare_with_facts, check_late_commands, lint_secrets.check_secrets),
)


def lint_autoinstall(
    data: bytes, *, installer: Version | None = None, disks: Sequence[KnownDisk] = ()
) -> list[FileFinding]:
    """Return all findings, by line and column. installer: the version of the media; disks: of the machine."""
    text = data.decode("utf-8-sig", "replace")
    try:
        file = parse_autoinstall(text)
    except Unreadable as error:
        found = [Observation("unreadable", error.position, {"why": error.why}, subject="the file")]
    else:
        found = run_rules(RULES, AutoinstallContext(file, installer, disks))
    return to_findings(ROWS, PREFIX, found)
