"""A guest of Hyper-V can see assigned devices only with pci-hyperv: read from the kernel's lists of modules."""

import os
from typing import Any

import pytest

from tests.linux.sandbox import Sandbox
from winhost.connect.agent import Agent

MODULES = f"/usr/lib/modules/{os.uname().release}"
DEP, BUILTIN = "modules.dep", "modules.builtin"
MODULE = "kernel/drivers/pci/controller/pci-hyperv.ko"
LISTS: dict[str, tuple[dict[str, str], Any]] = {
    "a module": ({DEP: f"{MODULE}.zst: kernel/drivers/hv/hv_vmbus.ko.zst\n", BUILTIN: ""}, True),
    "built in": ({DEP: "", BUILTIN: f"{MODULE}\n"}, True),
    "only what it builds on": ({DEP: f"{MODULE.replace('hyperv', 'hyperv-intf')}.zst:\n", BUILTIN: ""}, False),
    "no list": ({}, "ENOENT"),
}


def told(sandbox: Sandbox, agent: Agent, runs: str, lists: dict[str, str]) -> Any:
    sandbox.write("/usr/sbin/systemd-detect-virt", f"#!/bin/sh\necho {runs}\n", 0o755)
    for name in (DEP, BUILTIN):
        sandbox.path(f"{MODULES}/{name}").unlink(missing_ok=True)
    for name, text in lists.items():
        sandbox.write(f"{MODULES}/{name}", text)
    found = (agent.get("LinuxSystem", {}) or {})["pci_hyperv"]
    return found["unknown"]["code"] if isinstance(found, dict) else found


@pytest.mark.parametrize("name", LISTS)
def test_its_kernel_has_the_driver_or_lacks_it(sandbox: Sandbox, agent: Agent, name: str) -> None:
    lists, expected = LISTS[name]
    assert told(sandbox, agent, "microsoft", lists) == expected


def test_elsewhere_nobody_needs_it(sandbox: Sandbox, agent: Agent) -> None:
    assert told(sandbox, agent, "kvm", LISTS["built in"][0]) is None
