"""`winhost resume --set` accepts the same settings as `winhost plan --set`."""

import json
from pathlib import Path

import pytest

from tests.rows import each_row
from winhost.cli.change.apply import amend_request
from winhost.cli.plan import new_vm_image
from winhost.cli.plan.options import RequestBuilder, default_request, read_settings
from winhost.engine import disk_images

PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me"
NEW_VM = ("new_vm.name=llm", "new_vm.cpus=4", "new_vm.memory=64GiB", "new_vm.disk=200GiB")
SET = {
    "a key of a distro": ("wsl2", ("access.key=@id.pub", "network=nat", "wsl.version=2.7.15", "memory=64GiB")),
    "a new VM": ("dda", (*NEW_VM, "new_vm.guest.key=@id.pub", "new_vm.vhdx.source=./noble.vhdx")),
    "a new VM with another address": ("dda", (*NEW_VM, "new_vm.address=10.0.0.9/24", "address_width=40")),
    "a system": ("dual-boot", ("system.hostname=gpu-01", "system.key=@id.pub", "linux=200GiB", "keys.by=entra",
                               f"system.sha256={'ab' * 32}")),
    "a Linux": ("linux", ("engine=podman", "toolkit=1.21.0-1")),
}  # fmt: skip


@each_row(("path", "settings"), SET.values(), ids=SET.keys())
def test_resume_takes_the_settings_that_plan_takes(
    path: str, settings: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("id.pub").write_text(f"{PUBLIC}\n", encoding="utf-8")
    Path("noble.vhdx").write_bytes(b"a disk")
    asked = RequestBuilder(path, settings=read_settings(settings)).request(path)
    monkeypatch.setattr(new_vm_image, "pin_image", lambda request, report: request)
    assert amend_request(default_request(path), None, (), settings) == asked


def test_another_image_is_not_taken_for_the_one_that_was_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_vm_image, "pin_image", lambda request, report: request)
    pin = {"place": "https://x", "sha256": "ab" * 32, "bytes": 1, "disk_sha256": "cd" * 32, "disk_bytes": 2}
    settings = (*NEW_VM, "new_vm.image.name=ubuntu-24.04@20260814", f"new_vm.image.pinned={json.dumps(pin)}")
    found = amend_request(default_request("dda"), None, (), settings)
    assert disk_images.pinned_image(found) is not None
    other = amend_request(found, None, (), ("new_vm.image.name=ubuntu-26.04",))
    assert disk_images.pinned_image(other) is None
