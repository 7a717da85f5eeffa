# key {}   state {count: int, needed_high: bytes | null, needed_low: bytes | null}
from __future__ import annotations

import re
import time
from functools import partial

from winhost.agent.linux_agent import AgentFault, Found, Key, State, changes, place_of, reads, run, value, waiting

# pci-hyperv.c, hv_pci_allocate_bridge_windows
NEED = re.compile(r"hv_pci [^:]+: Need 0x([0-9a-f]+) of (high|low) MMIO space")
COMPLAINT = re.compile(r"NVRM: .*|hv_pci .*")
LONGEST = 300.0  # seconds: a driver may start eight GPUs one after the other


@reads("ShownGpus")
def shown_gpus(key: Key | None) -> Found:
    high, low = (value(partial(needed, which)) for which in ("high", "low"))
    yield {}, {"count": value(count_gpus), "needed_high": high, "needed_low": low}


def count_gpus() -> int:
    if place_of("nvidia-smi") is None:
        return 0
    done = run("nvidia-smi", "-L", within=60)
    return len(re.findall(r"^GPU \d+: ", done.output, re.MULTILINE)) if done.code == 0 else 0


def kernel_log() -> str:
    return run("journalctl", "--quiet", "--dmesg", "--boot", "--no-pager", "--output=cat", within=60).output


def needed(which: str) -> int | None:
    return most_needed(kernel_log(), which)


def most_needed(log: str, which: str) -> int | None:
    """By one device."""
    return max((int(size, 16) for size, kind in NEED.findall(log) if kind == which), default=None)


@changes("ShownGpus", "count")
def await_gpus(key: Key, desired: State, how: State) -> None:
    limit = min(float(how.get("within") or LONGEST), LONGEST)
    over = time.monotonic() + limit
    with waiting(f"waiting for {desired['count']} GPUs, for up to {limit:.0f} s"):
        while (found := count_gpus()) != desired["count"]:
            if time.monotonic() > over:
                said = "; ".join(COMPLAINT.findall(kernel_log())[-3:]) or "its kernel says nothing of them"
                message = f"nvidia-smi shows {found} GPUs, not {desired['count']}: {said}"
                raise AgentFault("Winhost.GpusMissing", "ObjectNotFound", message[:2000])
            time.sleep(2)
