"""The output of lsblk for a disk that is in use, which is enough to recognize that without reading the disk."""

from typing import Any

import pytest

from tests.linux.agent_definitions import definitions

DISK = {"name": "no-such-disk", "kname": "no-such-disk", "type": "disk", "size": 1 << 40, "serial": " S1 ", "ro": False}


def below(name: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"children": [{"name": name, "type": kind, **more}]}


TREES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "nothing": ({}, []),
    "a way of multipath": (below("mpatha", "mpath"), ["mpatha (mpath)"]),
    "a volume of a group": (below("vg-a", "lvm", mountpoint="/srv"), ["vg-a (lvm)", "vg-a: use at /srv"]),
    "a member of an array": (below("md0", "raid1", fstype="ext4"), ["md0 (raid1)", "md0: signature ext4"]),
    "an opened LUKS": (below("secret", "crypt"), ["secret (crypt)"]),
    "swap": ({"fstype": "swap", "mountpoint": "[SWAP]"}, ["x: signature swap", "x: use at [SWAP]"]),
    "a table": ({"pttype": "gpt"}, ["x: partition table gpt"]),
    "a pool of ZFS": ({"fstype": "zfs_member"}, ["x: signature zfs_member"]),
    "a partition in a partition": (
        {"children": [{"name": "p1", "type": "part", **below("p5", "part")}]},
        ["p1 (part)", "p5 (part)"],
    ),
    "read-only": ({"ro": True}, ["it is read-only"]),
    "read-only, as an old lsblk writes it": ({"ro": "1"}, ["it is read-only"]),
}


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    pytest.importorskip("fcntl")  # the agent runs on Linux
    return definitions()


@pytest.mark.parametrize(("more", "held"), TREES.values(), ids=TREES.keys())
def test_what_uses_a_disk_is_told(script: dict[str, Any], more: dict[str, Any], held: list[str]) -> None:
    assert list(script["device_users"]({**DISK, "name": "x", **more}, [])) == held


def test_a_disk_is_known_by_its_serial_number_and_size(script: dict[str, Any]) -> None:
    key_of_disk = script["key_of_disk"]
    assert key_of_disk(DISK) == {"serial": "S1", "size": str(1 << 40)}
    assert key_of_disk({**DISK, "serial": None}) is key_of_disk({**DISK, "serial": " "}) is None


def test_a_drive_for_cds_is_no_disk_for_data(script: dict[str, Any]) -> None:
    """An empty one, as a guest has that is rid of its seed, cannot be read at all."""
    assert script["key_of_disk"]({**DISK, "name": "sr0", "type": "rom"}) is None


def test_the_same_disk_by_another_way_is_told(script: dict[str, Any]) -> None:
    assert list(script["device_users"](DISK, ["sdb"])) == ["the same serial number as sdb: two ways to one disk"]
