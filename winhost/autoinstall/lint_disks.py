"""Rules that compare `storage.config` with the partitions that a machine has."""

from collections.abc import Iterator

from winhost.autoinstall.installer_storage import UNRESOLVED
from winhost.autoinstall.lint_document import AutoinstallContext, KnownDisk, KnownPartition, StorageAction
from winhost.findings.finding import Finding

Findings = Iterator[Finding]


def against_facts(context: AutoinstallContext) -> Findings:
    """Every partition is listed where it is, and nothing new lies on one."""
    whole = context.get("storage", "layout", "mode") in (None, "reformat_disk")
    asked = context.get("interactive-sections") or []
    if context.disks and all(disk.partitions for disk in context.disks):
        holds = sum(len(disk.partitions) for disk in context.disks)
        if context.file.section and not context.actions and whole and not {"storage", "*"} & set(asked):
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
    """The disk that has most of these partitions."""
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
        else:
            yield from _one(context, each, found)


def _one(context: AutoinstallContext, each: StorageAction, known: KnownPartition) -> Findings:
    if each.number("size") != known.size:
        words = {"id": each.id, "size": each.data.get("size"), "known": known.size}
        yield context.found((*each.loc, "size"), "other-size", **words)
    kind = str(each.data.get("partition_type", "")).lower()
    if kind and kind != known.type:
        yield context.found((*each.loc, "partition_type"), "other-type", id=each.id, kind=kind, known=known.type)


def _new_ones(context: AutoinstallContext, new: list[StorageAction], known: KnownDisk) -> Findings:
    for each in new:
        begin, length = each.number("offset"), each.number("size")
        if begin is None or length is None:
            continue
        for other in known.partitions:
            if begin < other.offset + other.size and other.offset < begin + length:
                yield context.found(each.loc, "overlaps", id=each.id, guid=other.guid)
