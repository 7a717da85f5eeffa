"""What Windows has made by its own plan is what the manifest, the guard's order and the section are made of."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.engine.test_dual_boot import DATA, STAGED, TYPED, plan
from tests.engine.world import world
from winhost.autoinstall.autoinstall_file import disks_of_facts
from winhost.autoinstall.facts_manifest import manifest_of_facts
from winhost.autoinstall.guard_order import order_beside, storage_beside_windows
from winhost.autoinstall.install_plan import format_install_file
from winhost.autoinstall.lint import lint_autoinstall
from winhost.autoinstall.manifest import PartitionRole
from winhost.core.answers import Record
from winhost.model.units import GiB
from winhost.resources.host import HostFacts
from winhost.resources.windows.disks import LINUX


def test_the_partition_that_windows_made_is_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINHOST_LAST_GROUP", "888888")
    here = world(tmp_path, "win11-pro-1gpu")
    here.apply(plan(here, **TYPED, **STAGED), DATA)
    told = here.facts()
    facts = HostFacts(told)
    manifest = manifest_of_facts(facts)
    target, staged = manifest.with_role(PartitionRole.TARGET), manifest.with_role(PartitionRole.STAGING)
    assert (target.size, target.type, staged.offset) == (200 * GiB, LINUX, target.end)
    assert manifest.with_role(PartitionRole.WINDOWS).filesystem == "BitLocker"
    assert order_beside(manifest)["disks"][0]["label"] == manifest.label
    document = {"version": 1, "early-commands": ["guard.py"], "storage": storage_beside_windows(manifest)}
    found = lint_autoinstall(format_install_file(document).encode(), disks=disks_of_facts(facts))
    assert [each for each in found if each.subject.startswith("storage")] == []
    # Of a volume that Windows does not tell of the guard compares nothing.
    untold = {"category": "NotImplemented", "code": "Winhost.NotExposed", "hresults": [], "cmdlet": "", "message": ""}
    locked = tuple(
        Record({**each.state, "conversion": {"unknown": untold}}, each.key)
        for each in told.resources["BitLocker"]  # type: ignore[union-attr]
    )
    told = replace(told, resources={**told.resources, "BitLocker": locked})
    assert manifest_of_facts(HostFacts(told)).with_role(PartitionRole.WINDOWS).filesystem is None
