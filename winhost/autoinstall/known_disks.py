"""The disks of a machine as the linter asks for them: of a disk manifest, or of facts."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from winhost.autoinstall.lint_document import KnownDisk, KnownPartition
from winhost.autoinstall.manifest import SCHEMA, DiskManifest, read_manifest
from winhost.core.answers import MissingFact
from winhost.model.errors import UsageError, visible
from winhost.model.yamlfile import load_json
from winhost.resources.factsfile import read_facts
from winhost.resources.host import HostFacts
from winhost.resources.windows.partition import Partition


def read_known_disks(path: Path) -> Sequence[KnownDisk]:
    """Of a file of either kind. Raises UsageError."""
    schema = str(load_json(path, dict[str, Any]).get("schema"))
    if schema.rpartition("/")[0] == SCHEMA.rpartition("/")[0]:
        return (of_manifest(read_manifest(path)),)
    try:
        return of_facts(HostFacts(read_facts(path)))
    except MissingFact as missing:
        what = f"{visible(str(path))} does not say which partitions there are: {missing}"
        hint = "Read the host again: winhost detect HOST -o facts"
        raise UsageError("NoPartitions", what=what, hint=hint) from missing


def of_manifest(manifest: DiskManifest) -> KnownDisk:
    """Of the one disk that it is about."""
    parts = (KnownPartition(each.guid, each.offset, each.size, each.type) for each in manifest.partitions)
    return KnownDisk(manifest.guid, tuple(parts))


def of_facts(facts: HostFacts) -> Sequence[KnownDisk]:
    """Of the disks with a GPT. Raises MissingFact, WrongState."""
    found: defaultdict[str, list[KnownPartition]] = defaultdict(list)
    for each in facts.all(Partition):
        state = each.state
        if state.disk is not None:
            found[state.disk].append(KnownPartition(each.key["partition"], state.offset, state.size, state.type))
    return [KnownDisk(guid, tuple(parts)) for guid, parts in found.items()]
