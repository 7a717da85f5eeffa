"""Rules on the disks and partitions that `storage.config` lists."""

from collections.abc import Iterator

from winhost.autoinstall.installer_storage import UNRESOLVED
from winhost.autoinstall.lint_document import AutoinstallContext, StorageAction, install_keys
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
        if each.type in install_keys():
            for loc, key, near in context.unknown(each.loc, each.data, each.type):
                yield context.found(loc, "misspelt", type=each.type, id=each.id, key=key, near=near)


def disks(context: AutoinstallContext) -> Findings:
    """Which disk it is, and what becomes of its table."""
    for each in context.of("disk"):
        yield from _name(context, each)
        if not each.is_true("preserve") and each.data.get("serial") != UNRESOLVED:
            yield context.found(each.loc, "disk-anew", id=each.id)
        if each.data.get("wipe") and each.is_true("preserve"):
            yield context.found((*each.loc, "wipe"), "disk-wipe", id=each.id, wipe=each.data["wipe"])


def _name(context: AutoinstallContext, disk: StorageAction) -> Findings:
    if disk.data.get("serial") == UNRESOLVED:
        if "guard.py" not in str(context.get("early-commands")):
            yield context.found((*disk.loc, "serial"), "unresolved")
    elif "path" in disk.data and "serial" not in disk.data:
        yield context.found((*disk.loc, "path"), "disk-path", path=disk.data["path"])
    elif not {"serial", "path"} & set(disk.data) and not disk.data.get("match"):
        yield context.found(disk.loc, "disk-unnamed", id=disk.id)


def partitions(context: AutoinstallContext) -> Findings:
    """What is written down, and what is left to the installer."""
    for each in context.of("partition"):
        if "offset" not in each.data:
            yield context.found(each.loc, "no-offset", id=each.id)
        size = each.data.get("size")
        if each.number("size") is None:
            yield context.found((*each.loc, "size"), "size-rest", size=size)
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
    """A root, and an ESP that the loader goes to."""
    if not context.actions:
        return
    paths = [str(each.data.get("path")) for each in context.of("mount")]
    if "/" not in paths:
        yield context.found(("storage", "config"), "no-root")
    if "/boot/efi" not in paths or not any(each.is_true("grub_device") for each in context.of("partition")):
        yield context.found(("storage", "config"), "no-loader")


def loaders(context: AutoinstallContext) -> Findings:
    """What curtin does to the firmware's boot entries."""
    grub = context.mapping("storage", "grub")
    if grub.get("reorder_uefi") is True:
        yield context.found(("storage", "grub", "reorder_uefi"), "reorder")
    keeps = any(each.is_true("preserve") for each in context.of("partition"))
    if keeps and grub.get("remove_duplicate_entries") is not False:
        yield context.found(("storage",), "duplicates")
