"""Messages of a guest's kernel about GPUs without addresses, as pci-hyperv.c writes them, and the GPUs that are
expected.
"""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.linux.agent_definitions import definitions

LOG = """\
hv_pci 4f3a1c2e-0001-4b7d-9c41-0e5f7a6b2d10: PCI VMBus probing: Using version 0x10004
hv_pci 4f3a1c2e-0001-4b7d-9c41-0e5f7a6b2d10: Need 0x802000000 of high MMIO space. Consider reconfiguring the VM.
hv_pci 4f3a1c2e-0002-4b7d-9c41-0e5f7a6b2d10: Need 0x1002000000 of high MMIO space. Consider reconfiguring the VM.
hv_pci 4f3a1c2e-0002-4b7d-9c41-0e5f7a6b2d10: Need 0x3000000 of low MMIO space. Consider reconfiguring the VM.
NVRM: Need 0xffffffffff of high MMIO space
"""


VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.173.02  Release Build  (dvs-builder@U22)\n"
# As sysfs writes the BARs of a GPU: start, end, flags. IORESOURCE_UNSET is 0x20000000.
PLACED = "0x0000001000000000 0x00000017ffffffff 0x000000000014220c\n"
UNPLACED = "0x0000000000000000 0x00000007ffffffff 0x000000002014220c\n"
NONE = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"


def guest(folder: Path, *resources: str, version: str = VERSION, shows: int | None = None) -> dict[str, Any]:
    """Return the agent of a Linux with a GPU for each of these resources. shows: the GPUs that nvidia-smi lists."""
    for number, resource in enumerate(resources):
        device = folder / f"bus/{number + 1:04x}:00:00.0"
        device.mkdir(parents=True)
        texts = {"vendor": "0x10de", "device": "0x26b9", "class": "0x030200", "resource": resource}
        for name, text in texts.items():
            (device / name).write_text(text if name == "resource" else f"{text}\n")
    if version:
        (folder / "version").write_text(version)
    shown = len(resources) if shows is None else shows
    smi = folder / "nvidia-smi"
    smi.write_text(
        "#!/bin/sh\n" + "".join(f"echo 'GPU {each}: NVIDIA L40S (UUID: GPU-{each})'\n" for each in range(shown))
    )
    smi.chmod(0o755)
    scripts = definitions()
    scripts |= {
        "PCI": folder / "bus",
        "RUNNING_DRIVER": str(folder / "version"),
        "find_program": lambda program: str(smi) if program == "nvidia-smi" else None,
        "kernel_log": lambda: LOG,
    }
    return scripts


def failure(scripts: dict[str, Any], **desired: Any) -> str | None:
    try:
        scripts["await_gpus"]({}, desired, {"within": 0.01})
    except scripts["AgentFault"] as fault:
        return str(fault)
    return None


WANTED = {"count": 2, "loaded": True, "unplaced": 0}


def test_gpus_that_run_at_their_addresses_are_not_waited_for(tmp_path: Path) -> None:
    scripts = guest(tmp_path, PLACED + NONE, NONE + PLACED)
    ((_, state),) = scripts["shown_gpus"](None)
    assert {each: state[each] for each in WANTED} == WANTED
    # Of the agent alone: `subprocess` sleeps, too, where a program has not ended yet.
    scripts["time"] = SimpleNamespace(**{**vars(time), "sleep": lambda _: pytest.fail("it waits")})
    assert failure(scripts, **WANTED) is None


@pytest.mark.costly
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"version": ""}, "there is no /proc/driver/nvidia/version"),
        ({"shows": 1}, "nvidia-smi shows 1 GPUs, not 2"),
        ({"shows": 0, "version": ""}, "nvidia-smi shows 0 GPUs, not 2 and there is no /proc/driver/nvidia/version"),
    ],
    ids=["no driver", "one is lost", "nothing"],
)
def test_what_lacks_is_said_with_the_words_of_the_kernel(tmp_path: Path, how: dict[str, Any], said: str) -> None:
    message = failure(guest(tmp_path, PLACED, PLACED, **how), **WANTED)
    assert message is not None
    assert said in message
    assert "Need 0x1002000000 of high MMIO space" in message


def test_a_bar_without_an_address_is_no_gpu_that_runs(tmp_path: Path) -> None:
    """nvidia-smi may list it all the same."""
    scripts = guest(tmp_path, PLACED + UNPLACED + NONE, PLACED)
    ((_, state),) = scripts["shown_gpus"](None)
    assert state["unplaced"] == 1
    assert "1 BARs of the GPUs have no address" in str(failure(scripts, **WANTED))


@pytest.mark.parametrize(
    ("log", "high", "low"), [(LOG, 0x1002000000, 0x3000000), ("", None, None), ("hv_pci: Need 0x of high", None, None)]
)
def test_the_most_that_one_gpu_asked_for_counts(log: str, high: int | None, low: int | None) -> None:
    scripts = definitions()
    assert [scripts["max_needed"](log, which) for which in ("high", "low")] == [high, low]
