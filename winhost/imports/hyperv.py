"""`Get-VM` and `Get-VMHost`: that Hyper-V is there and answers, as a table or a list, whose names are English;
`Get-VMHostPartitionableGpu`: the GPUs that it can split or share, as the list that it shows by itself.
"""

import re

from winhost.core.answers import Json
from winhost.imports.observation import (
    FileObservations,
    Misread,
    Observation,
    SeenFunction,
    State,
    Unreported,
    Value,
    Worth,
    format_list,
    observed,
)
from winhost.model.units import MiB

_VMS = r"^[ \t]*Name[ \t]+State[ \t]+CPUUsage\(%\)[ \t]+MemoryAssigned\(M\)"
_HOST = r"^[ \t]*ComputerName[ \t]+LogicalProcessorCount[ \t]+MemoryCapacity\(M\)"
_LIST = r"^[ \t]*(?:IovSupport|VirtualMachineMigrationEnabled|IntegrationServicesState|MemoryAssigned)[ \t]*: "
HOSTS = re.compile(rf"{_VMS}|{_HOST}|{_LIST}", re.MULTILINE)
_RUNNING = re.compile(
    r"^[ \t]*\S.*?[ \t]+Running[ \t]+\d{1,3}[ \t]+\d+[ \t]|^[ \t]*State[ \t]*: Running\b", re.MULTILINE
)
_ROW = re.compile(
    rf"{_HOST}[^\n]*\n[- \t\r]*\n[ \t]*(\S{{1,63}})[ \t]+\d+[ \t]+(\d{{3,9}})(?:[.,]\d+)?[ \t]", re.MULTILINE
)
_NAME = re.compile(r"^[ \t]*ComputerName[ \t]*: (\S{1,63})[ \t\r]*$", re.MULTILINE)
_MEMORY = re.compile(r"^[ \t]*MemoryCapacity[ \t]*: (\d{9,15})[ \t\r]*$", re.MULTILINE)
_IOV = re.compile(r"^[ \t]*IovSupport[ \t]*: (True|False)\b", re.MULTILINE)
_REASONS = re.compile(r"^[ \t]*IovSupportReasons[ \t]*: \{([^}\n]*)\}", re.MULTILINE)


def read_hosts(text: str) -> FileObservations:
    """Read the observations in a text. Raises Misread."""
    if not HOSTS.search(text):
        raise Misread("is no output of Get-VM or Get-VMHost")
    answers = Observation("installed", Worth.ROUGH)  # both ask the service vmms by the role's own module
    resources: dict[str, dict[str, State]] = {
        "HyperVRole": {"": {"role": answers, "tools": answers}},
        "HyperVHost": {"": {"service": Observation("Running", Worth.ROUGH), **_iov(text)}},
    }
    if _RUNNING.search(text):
        resources["Firmware"] = {"": {"hypervisor_present": Observation(True, Worth.ROUGH)}}
    row, name, memory = _ROW.search(text), _NAME.search(text), _MEMORY.search(text)
    total: Json = int(memory[1]) if memory else int(row[2]) * MiB if row else None
    if total:
        resources["Memory"] = {"": {"total": Observation(total, Worth.EXACT if memory else Worth.ROUNDED)}}
    return FileObservations(host=name[1] if name else row[1] if row else None, resources=resources)


def _iov(text: str) -> dict[str, Value]:
    support, reasons = _IOV.search(text), _REASONS.search(text)
    if support is None:
        return {}
    told: dict[str, Value] = {"iov_support": Observation(support[1] == "True")}
    if support[1] == "True":
        told["iov_reasons"] = Observation([])
    elif reasons and not reasons[1].rstrip().endswith(("...", "…")):
        # Sentences have commas of their own, so that several reasons cannot be told apart.
        told["iov_reasons"] = Observation([reasons[1].strip()] if reasons[1].strip() else [])
    return told


# ---- Get-VMHostPartitionableGpu


GPUS = re.compile(r"^ValidPartitionCounts {1,40}: \{", re.MULTILINE)
_IDS = re.compile(r"PCI#(VEN_[0-9A-F]{4}&DEV_[0-9A-F]{4}(?:&SUBSYS_[0-9A-F]{8})?)[^#\s]*#[^#\s]+", re.IGNORECASE)
_COUNTS = re.compile(r"\d{1,4}(?:, ?\d{1,4})*")
_EMPTY = Unreported("Get-VMHostPartitionableGpu does not show it")


def read_gpus(text: str) -> FileObservations:
    """Read the observations in a text. Raises Misread."""
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
            "partitions": observed(int(partitions) if re.fullmatch(r"\d{1,4}", partitions) else None, _EMPTY),
            "valid_counts": observed(listed, _EMPTY),
            "used": _EMPTY,
        }
        states[gpu] = state
        instance = Observation(found[0].replace("#", "\\").upper())
        functions.append(SeenFunction(found[1].upper(), {"instance": instance, "kind": Observation("display")}))
    if not states:
        raise Misread("names no GPU by its device path")
    return FileObservations(resources={"PartitionableGpu": states}, functions=tuple(functions))
