"""The seed: what is on it is what was said, whatever the names; and until a host fills it in it has no secret."""

import json
import os
import shutil
import subprocess
import traceback
from ipaddress import ip_address, ip_interface
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import read_cases
from tests.errors import raises
from tests.images.seeds import INSTANCE, PRIVATE, PUBLIC, STATIC, read, seed, seed_iso
from tests.processes import PATIENCE_S
from tests.rows import each_row
from winhost.images.seed import HOST_KEYS, LISTS, GuestAddress, seed_template
from winhost.model.errors import WinhostError

CASES: dict[str, dict[str, Any]] = read_cases(Path(__file__).parent.parent / "data" / "images" / "seeds.yaml")


def test_the_guest_is_told_this_and_nothing_else() -> None:
    found = read(seed_iso(seed()))
    assert found.label == "CIDATA"
    assert set(found.files) == {"user-data", "meta-data", "network-config"}
    assert found.files["user-data"].startswith(b"#cloud-config\n")
    assert not any(b"\r" in content for content in found.files.values())
    assert found.yaml("user-data") == {
        "users": [
            {
                "name": "admin",
                "gecos": "winhost",
                "shell": "/bin/bash",
                "sudo": "ALL=(ALL) NOPASSWD:ALL",
                "lock_passwd": True,
                "ssh_authorized_keys": [f"{PUBLIC} me@there"],
            }
        ],
        "disable_root": True,
        "ssh_pwauth": False,
        "runcmd": [LISTS],
        "ssh_deletekeys": True,
        "ssh_keys": {"ed25519_private": PRIVATE, "ed25519_public": PUBLIC},
        "ssh": {"emit_keys_to_console": False},
    }
    assert found.yaml("meta-data") == {
        "instance-id": INSTANCE,
        "local-hostname": "gpu-01-linux",
    }
    assert found.yaml("network-config") == {
        "version": 2,
        "ethernets": {
            "guest": {
                "match": {"macaddress": "00:15:5d:01:02:af"},
                "set-name": "eth0",
                "dhcp4": False,
                "addresses": ["192.0.2.10/24"],
                "routes": [{"to": "0.0.0.0/0", "via": "192.0.2.1"}],
                "nameservers": {"addresses": ["192.0.2.53", "2001:db8::53"]},
            }
        },
    }


@pytest.mark.parametrize("mac", ["00155D0102AF", "00-15-5d-01-02-af", "00:15:5D:01:02:AF"])
def test_dhcp_knows_the_guest_by_its_mac(mac: str) -> None:
    found = read(seed_iso(seed(mac=mac, address=None))).yaml("network-config")
    assert found["ethernets"]["guest"] == {
        "match": {"macaddress": "00:15:5d:01:02:af"},
        "set-name": "eth0",
        "dhcp4": True,
        "dhcp-identifier": "mac",
    }


@each_row("name", CASES)
def test_names_that_would_do_something_are_refused(name: str) -> None:
    assert set(CASES[name]) == {"with", "says"}
    with raises("SeedUnusable", match=CASES[name]["says"]) as refused:
        seed(**CASES[name]["with"])
    assert str(refused.value).isprintable()


NAMES = (
    st.text(max_size=70) | st.from_regex(r"[a-z0-9-]{1,63}", fullmatch=True) | st.sampled_from(["no", "null", "1e5"])
)


@given(hostname=NAMES, admin=NAMES, comment=st.text(max_size=30), mac=st.integers(0, 2**48 - 1))
def test_a_name_is_taken_as_it_is_or_not_at_all(hostname: str, admin: str, comment: str, mac: int) -> None:
    try:
        made = seed(hostname=hostname, admin=admin, admin_keys=(f"{PUBLIC} {comment}",), mac=f"{mac:012x}")
    except WinhostError:
        return
    found = read(seed_iso(made))
    user_data = found.yaml("user-data")
    assert found.yaml("meta-data")["local-hostname"] == hostname
    assert [user["name"] for user in user_data["users"]] == [admin]
    assert user_data["users"][0]["ssh_authorized_keys"] == [f"{PUBLIC} {comment}"]
    assert set(user_data) == set(read(seed_iso(seed())).yaml("user-data"))
    assert int(found.yaml("network-config")["ethernets"]["guest"]["match"]["macaddress"].replace(":", ""), 16) == mac


@pytest.mark.parametrize("gateway", ["192.0.3.1", "2001:db8::1", "fe80::1"])
def test_a_gateway_in_another_network_is_refused(gateway: str) -> None:
    with raises("SeedUnusable", match="is not in the network"):
        seed(address=GuestAddress(ip_interface("192.0.2.10/24"), ip_address(gateway)))


@pytest.mark.parametrize("gateway", ["2001:db8::1", "fe80::1"])
def test_a_gateway_of_ipv6_may_be_link_local(gateway: str) -> None:
    address = GuestAddress(ip_interface("2001:db8::2/64"), ip_address(gateway))
    found = read(seed_iso(seed(address=address))).yaml("network-config")["ethernets"]["guest"]
    assert found["addresses"] == ["2001:db8::2/64"]
    assert found["routes"] == [{"to": "::/0", "via": gateway}]
    assert "nameservers" not in found


def test_a_private_key_in_the_wrong_place_is_not_shown() -> None:
    for changed in ({"admin_keys": (PRIVATE,)}, {"hostname": PRIVATE}):
        with raises("SeedUnusable") as refused:
            seed(**changed)
        shown = "".join(traceback.format_exception(refused.value)) + repr(refused.value) + str(refused.value.hint)
        assert PRIVATE.splitlines()[2] not in shown
        assert refused.value.__context__ is None


def test_what_is_planned_twice_is_the_same_and_has_no_key() -> None:
    template = seed_template(seed())
    assert template == seed_template(seed())
    assert template.count(HOST_KEYS) == 1
    assert len(template) == len(seed_iso(seed()))
    assert b"PRIVATE KEY" not in template


# --- With real programs ----------------------------------------------------------------------------------------------

SYSTEM_PYTHON = "/usr/bin/python3"


def program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def output(*words: str | Path) -> bytes:
    done = subprocess.run(list(map(str, words)), capture_output=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.mark.parametrize("extension", ["-R", "-J"], ids=["Rock Ridge", "Joliet"])
def test_isoinfo_finds_the_files(extension: str, tmp_path: Path) -> None:
    isoinfo, cd = program("isoinfo"), tmp_path / "seed.iso"
    cd.write_bytes(seed_iso(seed()))
    assert b"Volume id: CIDATA\n" in output(isoinfo, "-d", "-i", cd)
    assert output(isoinfo, "-f", extension, "-i", cd).split() == [b"/meta-data", b"/network-config", b"/user-data"]
    for name, content in read(cd.read_bytes()).files.items():
        assert output(isoinfo, extension, "-x", f"/{name}", "-i", cd) == content


def test_blkid_finds_the_label_that_cloud_init_asks_for(tmp_path: Path) -> None:
    blkid, cd = program("blkid"), tmp_path / "seed.iso"
    cd.write_bytes(seed_iso(seed()))
    found = output(blkid, "-p", "-o", "export", cd).decode().splitlines()
    assert {"LABEL=CIDATA", "TYPE=iso9660"} <= set(found)


def test_xorriso_finds_nothing_wrong(tmp_path: Path) -> None:
    xorriso, cd = program("xorriso"), tmp_path / "seed.iso"
    cd.write_bytes(seed_iso(seed()))
    done = subprocess.run(
        [
            xorriso,
            "-abort_on",
            "WARNING",
            "-indev",
            f"stdio:{cd}",
            "-osirrox",
            "on",
            "-extract",
            "/",
            str(tmp_path / "all"),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    found = {path.name: path.read_bytes() for path in (tmp_path / "all").iterdir()}
    assert found == read(cd.read_bytes()).files


def test_cloud_init_takes_its_user_data(tmp_path: Path) -> None:
    cloud_init = program("cloud-init")
    file = tmp_path / "user-data"
    file.write_bytes(read(seed_iso(seed())).files["user-data"])
    assert b"Valid" in output(cloud_init, "schema", "--config-file", file)


@pytest.mark.costly
@pytest.mark.parametrize(
    ("apt", "said"),
    [
        (f"sleep {2 * PATIENCE_S}", True),  # a network that leads nowhere
        ("exit 100", True),  # another apt that never ends
        ("exit 0", False),  # also where a list could not be fetched
        ('test -e "$0.again" || { touch "$0.again"; exit 100; }', False),
    ],
    ids=["silence", "a lock", "lists", "a lock for a while"],
)
def test_a_guest_without_a_network_goes_on(tmp_path: Path, apt: str, said: bool) -> None:
    """The command itself, with less patience."""
    program("timeout")
    (tmp_path / "apt-get").write_text(f"#!/bin/sh\n{apt}\n")
    (tmp_path / "apt-get").chmod(0o755)
    command = LISTS.replace(" 180 sh", " 2 sh").replace("sleep 5", "sleep 0.1")
    assert command != LISTS
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=PATIENCE_S, env=environment)
    assert (done.returncode, "no lists of packages within 180 s" in done.stdout) == (0, said), done.stderr


READ_BY_CLOUD_INIT = """
import json, logging, sys
from cloudinit import helpers, util
from cloudinit.config.cc_ssh import CONFIG_KEY_TO_FILE
from cloudinit.net import netplan, network_state
from cloudinit.sources.DataSourceNoCloud import DataSourceNoCloud
folder, out = sys.argv[1:]
source = DataSourceNoCloud({}, None, helpers.Paths({"cloud_dir": out, "run_dir": out}))
source.seed_dirs = [folder]
assert source._get_data()
config = util.load_yaml(source.get_userdata_raw())
network_state.parse_net_config_data(source.network_config)  # what other renderers would be given
renderer = netplan.Renderer({"netplan_path": "netplan.yaml", "postcmds": False})
state = network_state.parse_net_config_data(source.network_config, renderer=renderer)
renderer.render_network_state(state, target=out)
print(json.dumps({
    "instance": source.get_instance_id(),
    "hostname": str(source.metadata["local-hostname"]),
    "key": config["ssh_keys"]["ed25519_private"],
    "key file": CONFIG_KEY_TO_FILE["ed25519_private"][0],
    "users": [user["name"] for user in config["users"]],
    "netplan": util.load_yaml(open(out + "/netplan.yaml").read()),
}))
"""


@pytest.mark.parametrize("address", [STATIC, None], ids=["static", "DHCP"])
def test_cloud_init_itself_reads_the_seed(address: GuestAddress | None, tmp_path: Path) -> None:
    """Its own data source and its writer for netplan, of the Debian package; only the mounting is left out."""
    isoinfo = program("isoinfo")
    program("cloud-init")
    cd, folder, out = tmp_path / "seed.iso", tmp_path / "seed", tmp_path / "out"
    cd.write_bytes(seed_iso(seed(address=address)))
    folder.mkdir()
    out.mkdir()
    for name in ("user-data", "meta-data", "network-config"):
        (folder / name).write_bytes(output(isoinfo, "-R", "-x", f"/{name}", "-i", cd))
    found = json.loads(output(SYSTEM_PYTHON, "-c", READ_BY_CLOUD_INIT, folder, out))
    assert found["instance"] == INSTANCE
    assert (found["hostname"], found["users"]) == ("gpu-01-linux", ["admin"])
    assert (found["key"], found["key file"]) == (PRIVATE, "/etc/ssh/ssh_host_ed25519_key")
    expected = read(cd.read_bytes()).yaml("network-config")
    assert found["netplan"] == {"network": expected}
