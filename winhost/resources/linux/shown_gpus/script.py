# key {}   state {count: int, needed_high: bytes | null, needed_low: bytes | null, loaded: bool, unplaced: int}
from __future__ import annotations

from winhost.agent.linux_head import *

# pci-hyperv.c, hv_pci_allocate_bridge_windows
NEED = re.compile(r"hv_pci [^:]+: Need 0x([0-9a-f]+) of (high|low) MMIO space")
COMPLAINT = re.compile(r"NVRM: .*|hv_pci .*")
MAX_WAIT_SECONDS = 300.0  # seconds; a driver may start eight GPUs one after the other


@reads("ShownGpus")
def shown_gpus(key: Key | None) -> Found:
    high, low = (value(partial(needed, which)) for which in ("high", "low"))
    yield {}, {**{each: value(now) for each, now in NOW.items()}, "needed_high": high, "needed_low": low}


def count_gpus() -> int:
    if find_program("nvidia-smi") is None:
        return 0
    done = run("nvidia-smi", "-L", within=60)
    return len(re.findall(r"^GPU \d+: ", done.output, re.MULTILINE)) if done.code == 0 else 0


def count_unplaced_bars() -> int:
    """Count the BARs of NVIDIA's GPUs without an address. A driver cannot use a GPU with such a BAR."""
    return sum(bar["start"] == 0 for path in find_gpus_on_bus().values() for bar in read_pci_device(path)["bars"])


NOW = {"count": count_gpus, "loaded": lambda: driver_kind() is not None, "unplaced": count_unplaced_bars}


def kernel_log() -> str:
    return run("journalctl", "--quiet", "--dmesg", "--boot", "--no-pager", "--output=cat", within=60).output


def needed(which: str) -> int | None:
    return max_needed(kernel_log(), which)


def max_needed(log: str, which: str) -> int | None:
    """Return the largest number of bytes that one device requested in vain, or None."""
    return max((int(size, 16) for size, kind in NEED.findall(log) if kind == which), default=None)


@changes("ShownGpus", "count", "loaded", "unplaced")
def await_gpus(key: Key, desired: State, how: State) -> None:
    if desired.get("loaded", True) is not True or desired.get("unplaced", 0) != 0:
        raise bad_request("A driver is waited for until it runs, and BARs until each has its address.")
    limit = min(float(how.get("within") or MAX_WAIT_SECONDS), MAX_WAIT_SECONDS)
    with waiting(f"waiting for the driver and its GPUs, for up to {limit:.0f} s"):
        lacks = poll(lambda: gpu_problem(desired), limit)
    if lacks:
        said = "; ".join(COMPLAINT.findall(kernel_log())[-3:]) or "its kernel says nothing of them"
        raise AgentFault("Winhost.GpusMissing", "ObjectNotFound", f"{lacks}: {said}"[:2000])


def gpu_problem(desired: State) -> str:
    now = {each: NOW[each]() for each in desired}
    lacks = {
        "count": "nvidia-smi shows {} GPUs, not {}",
        "loaded": "there is no /proc/driver/nvidia/version, because NVIDIA's kernel module does not run",
        "unplaced": "{} BARs of the GPUs have no address",
    }
    differ = (each for each in lacks if each in desired and now[each] != desired[each])
    return " and ".join(lacks[each].format(now[each], desired[each]) for each in differ)
