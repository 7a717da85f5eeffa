"""Rules on the disks and partitions that `storage.config` lists."""

from collections.abc import Iterator

from winhost.autoinstall.installer_storage import UNRESOLVED
from winhost.autoinstall.lint_document import AutoinstallContext, StorageAction, schema, storage_bytes
from winhost.autoinstall.manifest import BASIC_DATA_TYPE, ESP_TYPE, LDM_TYPES, MSR_TYPE, RECOVERY_TYPE, SPACES_TYPE
from winhost.findings.finding import Finding

Findings = Iterator[Finding]
_FOREIGN = {
    ESP_TYPE: "an ESP",
    MSR_TYPE: "of Microsoft, reserved",
    BASIC_DATA_TYPE: "of Windows' data",
    RECOVERY_TYPE: "of Windows' recovery",
    SPACES_TYPE: "of Storage Spaces",
    **dict.fromkeys(LDM_TYPES, "of a dynamic disk"),
}
_FLAGS = {"boot": "an ESP", "msftres": "of Microsoft, reserved"}


def action_keys(context: AutoinstallContext) -> Findings:
    """`preserv: true` preserves nothing."""
    for each in context.actions:
        for loc, key, near in context.unknown(each.loc, each.data, schema()["actions"].get(each.type, {"*": "any"})):
            yield context.found(loc, "misspelt", type=each.type, id=each.id, key=key, near=near)


def disks(context: AutoinstallContext) -> Findings:
    """Which disk it is, and what becomes of its table."""
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
    """What is written down, and what is left to the installer on a disk that keeps something."""
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
    """What somebody else has there; None for Linux' own."""
    kind = str(partition.data.get("partition_type", "")).lower()
    return _FOREIGN.get(kind) or (_FLAGS.get(str(partition.data.get("flag"))) if not kind else None)


def formats(context: AutoinstallContext) -> Findings:
    """A new file system on what was preserved."""
    for each in context.of("format"):
        volume = context.by_id("partition", each.data.get("volume"))
        if volume is None or not volume.is_true("preserve") or each.is_true("preserve"):
            continue
        kind = _foreign(volume)
        if kind:
            yield context.found(each.loc, "formats-foreign", id=volume.id, kind=kind)


def mounts(context: AutoinstallContext) -> Findings:
    """A root, and a place for the boot loader of the firmware that the file is for."""
    if not context.actions:
        return
    if "/" not in [path for each in context.actions for path in _mounted(each)]:
        yield context.found(("storage", "config"), "no-root")
    if not any(_for_uefi(context, each) or each.data.get("flag") == "prep" for each in context.of("partition")):
        bios = [each for each in context.of("disk") if each.is_true("grub_device") and _for_bios(context, each)]
        if not context.of("dasd"):
            yield context.found(bios[0].loc if bios else ("storage", "config"), "bios-only" if bios else "no-loader")


def _mounted(each: StorageAction) -> Iterator[str]:
    """Where an entry is mounted; of ZFS, pools and volumes mount themselves."""
    settings = each.data.get({"zpool": "fs_properties", "zfs": "properties"}.get(each.type, ""))
    if each.type == "mount":
        yield str(each.data.get("path"))
    elif isinstance(settings, dict) and settings.get("canmount", True) in (True, "on"):
        yield str(settings.get("mountpoint", each.data.get("mountpoint", each.data.get("volume"))))


def _for_uefi(context: AutoinstallContext, each: StorageAction) -> bool:
    """An ESP that GRUB goes to."""
    formats = [it.data.get("id") for it in context.of("format") if it.data.get("volume") == each.data.get("id")]
    mounted = [
        it for it in context.of("mount") if it.data.get("path") == "/boot/efi" and it.data.get("device") in formats
    ]
    return each.is_true("grub_device") and bool(mounted)


def _for_bios(context: AutoinstallContext, disk: StorageAction) -> bool:
    """A disk that GRUB can go to without UEFI: without GPT, or with a partition for GRUB's core."""
    if disk.data.get("ptable") in ("msdos", "dos") or "ptable" not in disk.data:
        return True
    mine = [each for each in context.of("partition") if each.data.get("device") == disk.data.get("id")]
    return any(each.data.get("flag") == "bios_grub" for each in mine)


def loaders(context: AutoinstallContext) -> Findings:
    """What curtin does to the firmware's boot entries."""
    grub = context.mapping("storage", "grub")
    if grub.get("reorder_uefi") is True:
        yield context.found(("storage", "grub", "reorder_uefi"), "reorder")
    keeps = any(each.is_true("preserve") for each in context.of("partition"))
    if keeps and grub.get("remove_duplicate_entries") is not False:
        yield context.found(("storage",), "duplicates")
