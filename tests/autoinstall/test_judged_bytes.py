"""curtin's own block-meta on a loop device of a disk as Windows lays it out: what it writes, and what it leaves.

Where WINHOST_CURTIN names its source. It is under the AGPL: it is run here, and nothing of it is part of winhost. Needs
root, loop devices and a running systemd-udevd.
"""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.autoinstall.layouts import WITH_BITLOCKER, manifest_of
from tests.autoinstall.made_disk import made_by_tools, missing_tools, table_of
from tests.autoinstall.mutations import DISK
from tests.autoinstall.rig import Rig, digest, outside, rig_of
from tests.autoinstall.test_judges import PYTHON
from tests.processes import PATIENCE_S
from winhost.autoinstall.installer_guard import InstallDisk
from winhost.autoinstall.manifest import PartitionRole
from winhost.model.units import Bytes

CURTIN = os.environ.get("WINHOST_CURTIN", "")
UDEV = Path("/run/udev/control")
MISSING = missing_tools(["sgdisk", "sfdisk", "mkntfs", "mkfs.vfat", "mke2fs", "partx", "losetup", "udevadm"])
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not CURTIN, reason="WINHOST_CURTIN names no source"),
    pytest.mark.skipif(bool(MISSING) or os.name != "posix", reason=f"not here: {', '.join(MISSING)}"),
    pytest.mark.skipif(not UDEV.exists() or os.geteuid() != 0, reason="no root, or no systemd-udevd runs"),
]
MANIFEST = manifest_of(WITH_BITLOCKER)
# Of the installer's system, which curtin imports and this part of it does not use.
STUBS = {
    "aptsources/sourceslist.py": "class SourceEntry: pass\nclass Deb822SourceEntry: pass\n",
    "debian/deb822.py": "class Deb822: pass\n",
}
# A kernel that reads no tables by itself is told of the partitions.
PARTPROBE = "#!/bin/sh\nfor each; do partx -u $each || partx -a $each; done 2>/dev/null\nexit 0\n"
CHS_OF_PROTECTIVE_MBR = range(451, 454)  # where its one entry ends, in a form that nobody reads


def block_meta(rig: Rig, tmp: Path, version: int) -> None:
    config: list[Any] = [each for each in rig.resolved["config"] if each["type"] != "mount"]
    image = {"id": "disk-0", "type": "image", "path": str(rig.device(DISK)), "size": MANIFEST.size}
    config[0] = {**image, "ptable": "gpt", "preserve": True}
    file, programs, modules = tmp / "config.yaml", tmp / "bin", tmp / "modules"
    file.write_text(yaml.safe_dump({"storage": {"version": version, "config": config}}))
    for path, text in STUBS.items():
        (modules / path).parent.mkdir(parents=True)
        (modules / path).parent.joinpath("__init__.py").touch()
        (modules / path).write_text(text)
    programs.mkdir()
    (programs / "partprobe").write_text(PARTPROBE)
    (programs / "partprobe").chmod(0o755)
    places = {name: tmp / name.lower() for name in ("OUTPUT_FSTAB", "OUTPUT_NETWORK_STATE", "OUTPUT_NETWORK_CONFIG")}
    folders = {name: tmp / name.lower() for name in ("TARGET_MOUNT_POINT", "WORKING_DIR")}
    for folder in folders.values():
        folder.mkdir()
    environment = {**os.environ, **{name: str(path) for name, path in (places | folders).items()}, "CONFIG": str(file)}
    environment |= {"PATH": f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": f"{CURTIN}:{modules}"}
    command = [PYTHON, "-m", "curtin", "--showtrace", "--config", str(file), "block-meta", "--testmode", "custom"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-3000:]


@pytest.mark.parametrize("version", [1, 2])
def test_curtin_writes_the_target_alone(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
    rig = rig_of(tmp_path, MANIFEST, lambda image, manifest: made_by_tools(image, manifest, tmp_path))
    assert rig.guard() == 0
    disk, target = rig.device(DISK), MANIFEST.with_role(PartitionRole.TARGET)
    raw, table = disk.read_bytes(), table_of(disk)
    block_meta(rig, tmp_path, version)
    assert table_of(disk) == table
    assert InstallDisk(rig.root, DISK).signature(target.offset, target.size)["TYPE"] == "ext4"
    # The second version writes the same table anew, and the first none at all.
    changed = different(raw, disk.read_bytes(), outside(MANIFEST))
    assert changed <= set(CHS_OF_PROTECTIVE_MBR if version == 2 else ())
    assert digest(disk, outside(MANIFEST))[1] == MANIFEST.size - target.size


def different(before: bytes, after: bytes, spans: list[tuple[Bytes, Bytes]]) -> set[int]:
    """The places of the bytes that differ."""
    sectors = (
        at for begin, end in spans for at in range(begin, end, 512) if before[at : at + 512] != after[at : at + 512]
    )
    return {at + n for at in sectors for n in range(512) if before[at + n] != after[at + n]}
