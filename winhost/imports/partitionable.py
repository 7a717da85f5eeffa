"""`Get-VMHostPartitionableGpu`: the GPUs that Hyper-V can split or share, as the list that it shows by itself."""

import re

from winhost.imports.observation import (
    FileObservations,
    Misread,
    Observation,
    SeenFunction,
    State,
    Unreported,
    format_list,
    told,
)

LOOKS = re.compile(r"^ValidPartitionCounts {1,40}: \{", re.MULTILINE)
_IDS = re.compile(r"PCI#(VEN_[0-9A-F]{4}&DEV_[0-9A-F]{4}(?:&SUBSYS_[0-9A-F]{8})?)[^#\s]*#[^#\s]+", re.IGNORECASE)
_COUNTS = re.compile(r"\d{1,4}(?:, ?\d{1,4})*")
_EMPTY = Unreported("Get-VMHostPartitionableGpu does not show it")


def read(text: str) -> FileObservations:
    """Raises Misread."""
    records: list[dict[str, str]] = []
    for name, value in format_list(text, ""):  # cut for the console within a word
        if name == "Name" or not records:
            records.append({})
        records[-1][name] = value
    states, functions = {}, []
    for record in records:
        gpu = record.get("Name", "")
        counts, partitions = record.get("ValidPartitionCounts", "").strip("{}"), record.get("PartitionCount", "")
        listed = [int(each) for each in counts.split(",")] if _COUNTS.fullmatch(counts) else None
        found = _IDS.search(gpu)
        if found is None:
            continue
        state: State = {
            "partitions": told(int(partitions) if re.fullmatch(r"\d{1,4}", partitions) else None, _EMPTY),
            "valid_counts": told(listed, _EMPTY),
            "used": _EMPTY,
        }
        states[gpu] = state
        instance = Observation(found[0].replace("#", "\\").upper())
        functions.append(SeenFunction(found[1].upper(), {"instance": instance, "kind": Observation("display")}))
    if not states:
        raise Misread("names no GPU by its device path")
    return FileObservations(resources={"PartitionableGpu": states}, functions=tuple(functions))
