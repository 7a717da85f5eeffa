"""What the installer's own storage code makes of our sections, where WINHOST_SUBIQUITY and WINHOST_CURTIN name its
source. It is under the AGPL: it is run here, and nothing of it is part of winhost.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.autoinstall.layouts import WINDOWS_11, guid_of, manifest_of
from tests.processes import PATIENCE_S
from winhost.autoinstall.guard_order import DiskChoice, Scheme, storage_beside_windows, whole_disks
from winhost.autoinstall.install_plan import InstallSettings, format_install_file, install_document, new_host_key
from winhost.autoinstall.installer_guard import InstallDisk, TableEntry, resolve_disks
from winhost.autoinstall.lint import lint_autoinstall
from winhost.autoinstall.manifest import DiskManifest, PartitionRole
from winhost.images.seed import GuestSeed
from winhost.model.units import Bytes, GiB
from winhost.resources.windows.disks import BASIC_DATA

SOURCES = [os.environ.get(name, "") for name in ("WINHOST_SUBIQUITY", "WINHOST_CURTIN")]
PYTHON = os.environ.get("WINHOST_JUDGE_PYTHON", sys.executable)
pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not all(SOURCES), reason="WINHOST_SUBIQUITY and WINHOST_CURTIN name no sources"),
]
LARGE = manifest_of(tuple((role, type_, mib * 100, kind) for role, type_, mib, kind in WINDOWS_11))


def found_disk(path: str, size: Bytes, manifest: DiskManifest | None = None) -> InstallDisk:
    """As the guard has it after it compared everything."""
    disk = InstallDisk.__new__(InstallDisk)
    disk.path, disk.size, disk.entries = path, size, []
    for number, each in enumerate(manifest.partitions if manifest else (), 1):
        disk.entries.append(TableEntry(number, each.guid, each.type, each.offset, each.size))
    return disk


def probed(path: str, size: Bytes, manifest: DiskManifest | None = None) -> dict[str, Any]:
    """As udev and sfdisk tell the installer of a disk."""
    name = path.removeprefix("/dev/")
    disk: dict[str, Any] = {"DEVNAME": path, "DEVTYPE": "disk", "DEVPATH": f"/devices/pci0000:00/nvme/{name}"}
    disk |= {
        "MAJOR": "259",
        "MINOR": "0",
        "ID_SERIAL": f"QEMU_{name}",
        "ID_MODEL": "QEMU",
        "attrs": {"size": str(size)},
    }
    found = {path: disk}
    if manifest is None:
        return found
    disk |= {"ID_PART_TABLE_TYPE": "gpt", "ID_PART_TABLE_UUID": manifest.guid}
    rows = []
    for number, each in enumerate(manifest.partitions, 1):
        node = f"{path}p{number}"
        rows.append(
            {"node": node, "start": each.offset // 512, "size": each.size // 512, "type": each.type, "uuid": each.guid}
        )
        entry = {
            "SCHEME": "gpt",
            "NUMBER": str(number),
            "OFFSET": str(each.offset // 512),
            "SIZE": str(each.size // 512),
        }
        entry |= {"TYPE": each.type, "UUID": each.guid, "DISK": "259:0"}
        found[node] = {
            "DEVNAME": node,
            "DEVTYPE": "partition",
            "DEVPATH": f"{disk['DEVPATH']}/{name}p{number}",
            "MAJOR": "259",
            "MINOR": str(number),
            "attrs": {"size": str(each.size), "partition": str(number), "start": str(each.offset // 512)},
            **{f"ID_PART_ENTRY_{key}": value for key, value in entry.items()},
        }
    table = {"label": "gpt", "id": manifest.guid, "device": path, "unit": "sectors", "partitions": rows}
    disk["partitiontable"] = {**table, "firstlba": 34, "lastlba": manifest.size // 512 - 34}
    return found


def judged(config: list[Any], *disks: dict[str, Any], version: int = 1, mounted: str | None = None) -> dict[str, Any]:
    blocks = {path: told for disk in disks for path, told in disk.items()}
    names = {path.removeprefix("/dev/").partition("n1")[0] for path in blocks if path.startswith("/dev/nvme")}
    controllers = {name: {"NVME_TRTYPE": "pcie", "NVME_TRADDR": "0000:01:00.0"} for name in names}
    probe: dict[str, Any] = {"blockdev": blocks, "filesystem": {}, "nvme": controllers}
    if mounted is not None:
        place = f"259:{mounted[-1]}"
        probe["mount"] = [{"source": mounted, "target": "/cdrom", "fstype": "vfat", "options": "ro", "maj:min": place}]
        probe["filesystem"] = {mounted: {"TYPE": "vfat", "USAGE": "filesystem", "UUID": "C6B2-C10E"}}
    asked = json.dumps({"probe": probe, "config": config, "version": version})
    command = [PYTHON, str(Path(__file__).with_name("judge_subiquity.py")), *SOURCES]
    ran = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ran.returncode == 0, ran.stderr[-3000:]
    answer: dict[str, Any] = json.loads(ran.stdout)
    return answer


PATH = "/dev/nvme0n1"


@pytest.mark.parametrize("version", [1, 2])
def test_it_takes_the_resolved_section_and_changes_the_target_alone(version: int) -> None:
    storage = resolve_disks(storage_beside_windows(LARGE), {"disk-0": found_disk(PATH, LARGE.size, LARGE)})
    answer = judged(storage["config"], probed(PATH, LARGE.size, LARGE), version=version)
    assert answer["stops"] == ""
    rendered = answer["rendered"]["storage"]["config"]
    target = LARGE.with_role(PartitionRole.TARGET)
    parts = [each for each in rendered if each["type"] == "partition"]
    assert all(each["preserve"] for each in parts)
    assert [each["offset"] for each in parts if each.get("wipe")] == [target.offset]
    assert {each["offset"]: (each["size"], each["partition_type"].lower()) for each in parts} == {
        each.offset: (each.size, each.type) for each in LARGE.partitions
    }
    formats = [each["volume"] for each in rendered if each["type"] == "format" and not each.get("preserve")]
    assert [each["offset"] for each in parts if each["id"] in formats] == [target.offset]
    (disk,) = (each for each in rendered if each["type"] == "disk")
    assert (disk["path"], disk["preserve"], disk.get("wipe")) == (PATH, True, None)
    assert answer["rendered"].get("grub", {}).get("reorder_uefi") is not True


@pytest.mark.parametrize("version", [1, 2])
def test_it_stops_at_a_section_that_no_guard_has_seen(version: int) -> None:
    for storage in (storage_beside_windows(LARGE), whole_disks([DiskChoice("disk-0", 900 * GiB)], Scheme())):
        answer = judged(storage["config"], probed(PATH, LARGE.size, LARGE), version=version)
        assert "matched no disk" in answer["stops"]


@pytest.mark.parametrize(
    ("disks", "scheme"),
    [(1, Scheme()), (1, Scheme(lvm=True)), (2, Scheme(1)), (2, Scheme(1, lvm=True)), (2, Scheme(0)), (4, Scheme(10))],
)
@pytest.mark.parametrize("version", [1, 2])
def test_it_takes_whole_disks_in_each_scheme(disks: int, scheme: Scheme, version: int) -> None:
    sizes = [900 * GiB - n * GiB for n in range(disks)]
    choices = [DiskChoice(f"disk-{n}", size, guid_of(n)) for n, size in enumerate(sizes)]
    paths = [f"/dev/nvme{n}n1" for n in range(disks)]
    known = {f"disk-{n}": found_disk(paths[n], sizes[n]) for n in range(disks)}
    storage = resolve_disks(whole_disks(choices, scheme), known)
    others = [probed("/dev/sdz", 4000 * GiB)]  # larger, and nobody's business
    answer = judged(storage["config"], *map(probed, paths, sizes), *others, version=version)
    assert answer["stops"] == ""
    rendered = answer["rendered"]["storage"]["config"]
    assert {each["path"] for each in rendered if each["type"] == "disk"} == set(paths)
    for each in rendered:
        if each["type"] == "partition":
            assert each["offset"] + each["size"] <= sizes[-1]


def test_a_disk_that_is_not_listed_is_not_touched() -> None:
    other = replace(LARGE, guid=guid_of(99), partitions=())
    storage = resolve_disks(storage_beside_windows(LARGE), {"disk-0": found_disk(PATH, LARGE.size, LARGE)})
    answer = judged(storage["config"], probed(PATH, LARGE.size, LARGE), probed("/dev/sdz", other.size))
    assert {each["path"] for each in answer["rendered"]["storage"]["config"] if each["type"] == "disk"} == {PATH}


@pytest.mark.parametrize("version", [1, 2])
def test_it_takes_a_disk_that_it_was_started_from(version: int) -> None:
    """Staged media lie on the disk with Windows, and are mounted while the installer runs."""
    rows = (*WINDOWS_11, (PartitionRole.STAGING, BASIC_DATA, 48, "vfat"))
    manifest = manifest_of(tuple((role, type_, mib * 100, kind) for role, type_, mib, kind in rows))
    storage = resolve_disks(storage_beside_windows(manifest), {"disk-0": found_disk(PATH, manifest.size, manifest)})
    answer = judged(storage["config"], probed(PATH, manifest.size, manifest), version=version, mounted=f"{PATH}p6")
    assert answer["stops"] == ""
    parts = [each for each in answer["rendered"]["storage"]["config"] if each["type"] == "partition"]
    assert len(parts) == len(manifest.partitions)
    assert [each["number"] for each in parts if each.get("wipe")] == [4]


EVERYTHING = """
{version: 1, interactive-sections: [network], active-directory: {admin-name: a, domain-name: b},
 codecs: {install: true},
 apt: {preserve_sources_list: false, primary: [], geoip: true, sources: {}, disable_components: [universe],
       fallback: abort,
       mirror-selection: {primary: [country-mirror, {uri: "http://a", arches: [amd64]}]},
       preferences: [{package: a, pin: b, pin-priority: 1}]},
 debconf-selections: a, drivers: {install: false}, early-commands: [a, [b, c]], error-commands: [a], late-commands: [a],
 identity: {realname: a, username: a, hostname: b, password: c, groups: [d]}, kernel: {package: linux},
 kernel-crash-dumps: {enabled: true}, keyboard: {layout: us, variant: a, toggle: b}, locale: C, oem: {install: auto},
 network: {version: 2, ethernets: {match: {name: a}}, wifis: {match: {driver: a}}, bridges: {}, bonds: {}, tunnels: {},
           vlans: {}},
 packages: [a], proxy: "http://a", refresh-installer: {update: true, channel: edge}, reporting: {hook: {type: print}},
 shutdown: reboot, snaps: [{name: a, channel: b, classic: true}], source: {search_drivers: true, id: a}, storage: {},
 ssh: {install-server: true, authorized-keys: [a], allow-pw: true}, timezone: UTC, updates: all, user-data: {},
 ubuntu-pro: {token: C1NWcZTHLteJXGVMM6YhvHDpGrhyy7}, zdevs: [{id: a, enabled: true}]}
"""
VALUES: list[Any] = ["a word", 7, 1, True, 2.5, [], ["x"], [7], {}, {"x": "y"}]
SHAPES = {"autoinstall.malformed", "autoinstall.lacks-key", "autoinstall.key-refused"}


def changed(value: Any) -> Iterator[Any]:
    """With one thing in it replaced, left out or added, everywhere in turn."""
    yield from VALUES
    if isinstance(value, dict):
        yield {**value, "another": "key"}
        for key, inner in value.items():
            yield {other: it for other, it in value.items() if other != key}
            yield from ({**value, key: it} for it in changed(inner))
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from ([*value[:at], it, *value[at + 1 :]] for it in changed(inner))


def test_our_schema_refuses_what_theirs_refuses_and_nothing_else() -> None:
    """An empty section (null) is left out: the installer passes over most of them, which its schema does not say."""
    theirs = Draft202012Validator(json.loads((Path(SOURCES[0]) / "autoinstall-schema.json").read_text()))
    whole = yaml.safe_load(EVERYTHING)
    differs, refused = [], 0
    for section, value in whole.items():
        for it in changed(value):
            document = {**whole, section: it}
            valid = theirs.is_valid(document)
            found = {each.code for each in lint_autoinstall(json.dumps(document).encode())}
            refused += not valid
            if valid == bool(found & SHAPES) and not (section == "storage" and valid):  # they look no further there
                differs.append((section, it, valid))
    assert differs == []
    assert refused > 500


VALIDATE = "import json, jsonschema, sys; jsonschema.validate(json.load(sys.stdin), json.load(open(sys.argv[1])))"


@pytest.mark.parametrize("beside", [True, False])
def test_its_schema_takes_the_whole_file(beside: bool) -> None:
    seed = GuestSeed("gpu-01", "winhost", ("ssh-ed25519 AAAA ada",), "00155D010203")
    settings = InstallSettings(seed, beside, report="http://192.0.2.1:80/token")
    storage = storage_beside_windows(LARGE) if beside else whole_disks([DiskChoice("disk-0", 900 * GiB)], Scheme())
    text = format_install_file(install_document(settings, storage, new_host_key()))
    schema = str(Path(SOURCES[0]) / "autoinstall-schema.json")
    ran = subprocess.run(
        [PYTHON, "-c", VALIDATE, schema], input=text, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ran.returncode == 0, ran.stderr[-1500:]
