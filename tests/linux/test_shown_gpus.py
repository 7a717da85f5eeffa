"""What the kernel of a guest says of GPUs that got no place, as pci-hyperv.c writes it."""

from typing import Any

import pytest

from winhost.resources.linux.linux_scripts import agent_text

LOG = """\
hv_pci 4f3a1c2e-0001-4b7d-9c41-0e5f7a6b2d10: PCI VMBus probing: Using version 0x10004
hv_pci 4f3a1c2e-0001-4b7d-9c41-0e5f7a6b2d10: Need 0x802000000 of high MMIO space. Consider reconfiguring the VM.
hv_pci 4f3a1c2e-0002-4b7d-9c41-0e5f7a6b2d10: Need 0x1002000000 of high MMIO space. Consider reconfiguring the VM.
hv_pci 4f3a1c2e-0002-4b7d-9c41-0e5f7a6b2d10: Need 0x3000000 of low MMIO space. Consider reconfiguring the VM.
NVRM: Need 0xffffffffff of high MMIO space
"""


@pytest.mark.parametrize(
    ("log", "high", "low"), [(LOG, 0x1002000000, 0x3000000), ("", None, None), ("hv_pci: Need 0x of high", None, None)]
)
def test_the_most_that_one_gpu_asked_for_counts(log: str, high: int | None, low: int | None) -> None:
    scripts: dict[str, Any] = {}
    exec(compile(agent_text(), "the agent", "exec"), scripts)  # definitions only
    assert [scripts["most_needed"](log, which) for which in ("high", "low")] == [high, low]
