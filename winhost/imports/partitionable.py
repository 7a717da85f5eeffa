"""`Get-VMHostPartitionableGpu`: the GPUs that Hyper-V can split or share, as the list that it shows by itself."""

import re

from winhost.imports.observation import FileObservations, Misread, Observation, SeenFunction, State, Unreported

LOOKS = re.compile(r"^ValidPartitionCounts {1,40}: \{", re.MULTILINE)
_ITEM = re.compile(r"^([A-Z]\w{1,60}) {1,60}: ?(.*)$")
_IDS = re.compile(r"PCI#(VEN_[0-9A-F]{4}&DEV_[0-9A-F]{4}(?:&SUBSYS_[0-9A-F]{8})?)[^#\s]*#[^#\s]+", re.IGNORECASE)
_COUNTS = re.compile(r"\d{1,4}(?:, ?\d{1,4})*")
_EMPTY = Unreported("Get-VMHostPartitionableGpu does not show it")


def read(text: str) -> FileObservations:
    """Raises Misread."""
    states, functions = {}, []
    for told in _records(text):
        gpu = told.get("Name", "")
        counts, partitions = told.get("ValidPartitionCounts", "").strip("{}"), told.get("PartitionCount", "")
        whole = _COUNTS.fullmatch(counts)
        found = _IDS.search(gpu)
        if found is None:
            continue
        state: State = {
            "partitions": Observation(int(partitions)) if re.fullmatch(r"\d{1,4}", partitions) else _EMPTY,
            "valid_counts": Observation([int(each) for each in counts.split(",")]) if whole else _EMPTY,
            "used": _EMPTY,
        }
        states[gpu] = state
        instance = Observation(found[0].replace("#", "\\").upper())
        functions.append(SeenFunction(found[1].upper(), {"instance": instance, "kind": Observation("display")}))
    if not states:
        raise Misread("names no GPU by its device path")
    return FileObservations(resources={"PartitionableGpu": states}, functions=tuple(functions))


def _records(text: str) -> list[dict[str, str]]:
    """The list of each GPU. A value that is too long for the console goes on in the next line, within a word."""
    records: list[dict[str, str]] = []
    name = ""
    for line in text.splitlines():
        found = _ITEM.match(line)
        if found:
            name = found[1]
            if name == "Name" or not records:
                records.append({})
            records[-1][name] = found[2].strip()
        elif name and line.startswith("    "):
            records[-1][name] += line.strip()
        else:
            name = ""
    return records
