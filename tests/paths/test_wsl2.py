"""Decisions of the WSL 2 path: settings are checked whole, addresses are our own, memory holds the GPUs."""

from dataclasses import replace
from functools import cache
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version
from pydantic import ValidationError

from tests.rows import each_row
from winhost.core.answers import Record
from winhost.engine.plan_wsl2 import Wsl2Decisions
from winhost.lab.hostfile import expand, find
from winhost.model.facts import Facts
from winhost.model.reason import Refusal
from winhost.model.units import GiB, MiB
from winhost.paths.wsl2 import Bridge, NetworkingMode, Wsl2Settings, WslMemory, bridge_adapter, mac_address, wsl_memory
from winhost.resources.host import Gpu, HostFacts
from winhost.resources.windows.read_only import NetworkAdapter
from winhost.sizing.memories import wsl_default_ram
from winhost.wslconfig.format import WSLCONF
from winhost.wslconfig.keys import read_values
from winhost.wslconfig.rules import lint

NEEDED: dict[str, Any] = {
    "wsl": {"version": "2.7.14", "source": "https://example.test/wsl.msi", "sha256": "0" * 64},
    "image": {"source": r"C:\images\ubuntu.wsl", "sha256": "1" * 64},
    "containers": {"ubuntu": "noble", "docker": "5:29.8.0-1~ubuntu.24.04~noble", "toolkit": "1.20.0-1"},
}
BRIDGE = {"switch": "lan", "address": "192.0.2.10/24", "gateway": "192.0.2.1", "dns": ["192.0.2.53"]}


def settings(**given: Any) -> Wsl2Settings:
    return Wsl2Settings.model_validate({**NEEDED, **given})


def test_all_but_what_only_the_user_knows_has_a_default() -> None:
    found = settings()
    assert (found.network, found.account, found.distro, found.administrator) == ("auto", "winhost", "winhost", False)
    assert found.stated("memory") is None
    assert settings(memory="48 GiB").stated("memory") == 48 * GiB
    assert found.wsl.full == "2.7.14.0"
    assert (found.wsl.name, found.image.name) == ("wsl.msi", "ubuntu.wsl")


@each_row(
    ("given", "says"),
    [
        ({"network": "bridged"}, "network=bridged also needs bridge.switch=NAME"),
        ({"network": "nat", "bridge": BRIDGE}, r"bridge.\* is for network=bridged"),
        ({"bridge": {**BRIDGE, "gateway": "198.51.100.1"}}, "is not in the network of"),
        ({"bridge": {**BRIDGE, "gateway": "2001:db8::1"}}, "IPv4"),
        ({"bridge": {**BRIDGE, "gateway": "192.0.2.10"}}, "is the own address of this Linux"),
        ({"bridge": {**BRIDGE, "address": "192.0.2.777/24"}}, "192.0.2.777"),
        ({"bridge": {**BRIDGE, "address": "192.0.2.10/24\n[Match]"}}, "Match"),
        ({"bridge": {"address": "192.0.2.10/24"}}, "needs a gateway in its network"),
        ({"bridge": {"address": "192.0.2.0/24", "gateway": "192.0.2.1"}}, "an address of a host"),
        ({"bridge": {"address": "192.0.2.10", "gateway": "192.0.2.1"}}, "an address of a host"),
        ({"bridge": {"dns": ["192.0.2.53"]}}, "DHCP brings its own"),
        ({"bridge": {"switch": "Schalter für alle"}}, "1 to 63 letters"),
        ({"account": "a" * 21}, "1 to 20 letters"),
        ({"account": "wsl\u2019s"}, "1 to 20 letters"),
        ({"distro": "../x"}, "1 to 63 letters"),
        ({"distro": "nul"}, "a device of Windows"),
        ({"distro": "com1.x"}, "a device of Windows"),
        ({"account": "CON"}, "a device of Windows"),
        ({"bridge": {"switch": "lan.1", "adapter": "Ethernet"}}, "letters, digits, - and _"),
        ({"bridge": {"switch": "a" * 33, "adapter": "Ethernet"}}, "letters, digits, - and _"),
        ({"processors": True}, "valid integer"),
        ({"memory": "255 MiB"}, "256 MiB at least"),
        ({"access": {"port": True}}, "valid integer"),
        ({"access": {"allow": ["2001:db8::/32"]}}, "valid IPv4 network"),
        ({"access": {"allow": ["192.0.2.7/24"]}}, "valid IPv4 network"),
        ({"memory": "lots"}, "a size with its unit"),
        ({"memory": 0}, "valid string"),
        ({"swap": False}, "valid string"),
        ({"swap": "00"}, "a size with its unit"),
        ({"swap": "512 KiB"}, "0 for none"),
        ({"wsl": {**NEEDED["wsl"], "sha256": "ABC"}}, "64 digits"),
        ({"wsl": {**NEEDED["wsl"], "source": "http://example.test/wsl.msi"}}, "https://"),
        ({"image": {**NEEDED["image"], "source": r"\\server\share\x.wsl"}}, "https://"),
        ({"image": {**NEEDED["image"], "source": "C:\\x\n.wsl"}}, "https://"),
        ({"access": {"key": "ssh-ed25519 AAAA\nssh-rsa BBBB"}}, "a public key file"),
        ({"access": {"key": "ssh-ed25519 AAAA my laptop"}}, "the name has no blanks"),
        ({"access": {"key": "ssh-ed25519 AAAA=== me"}}, "a public key file"),
        ({"access": {"key": 'command="reboot" ssh-ed25519 AAAA'}}, "a public key file"),
        ({"acount": "x"}, "Extra inputs"),
        ({"containers": {**NEEDED["containers"], "toolkit": "1.19.1-1"}}, "1.20.0 or later"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        settings(**given)


@pytest.mark.parametrize(
    ("total", "given"),
    [
        (1 * GiB, GiB // 2),
        (4 * GiB, 2 * GiB),
        (6 * GiB, 3 * GiB),
        (26 * GiB, 22 * GiB),
        (28 * GiB, 24564 * MiB),
        (64 * GiB, 32 * GiB),
    ],
)
def test_linux_gets_never_less_than_wsl_would_take_by_itself(total: int, given: int) -> None:
    facts = with_memory(total)
    assert wsl_memory(facts, facts.gpus[:1], None).given == given >= wsl_default_ram(total)


@given(st.uuids(), st.uuids())
def test_addresses_are_local_and_of_one_machine(one: Any, other: Any) -> None:
    mac = mac_address(str(one), "winhost")
    first = int(mac.split(":")[0], 16)
    assert len(mac) == 17
    assert first & 3 == 2  # locally administered, no multicast
    assert mac == mac_address(str(one).upper(), "WINHOST")
    assert (mac == mac_address(str(other), "winhost")) is (one == other)


def test_the_address_that_every_wsl_takes_is_not_ours() -> None:
    assert mac_address("00000000-0000-0000-0000-000000000000", "winhost") != "5e:bb:f6:9e:ee:fa"


MODES: dict[NetworkingMode, dict[str, Any]] = {
    "nat": {},
    "mirrored": {"memory": "8 GiB", "swap": 0, "processors": 4},
    "bridged": {"bridge": BRIDGE},
}


@pytest.mark.parametrize("mode", MODES)
def test_wsl_takes_every_line_that_is_written(mode: NetworkingMode) -> None:
    made = Wsl2Decisions(HostFacts(expand(find("win11-wsl-served"))[0]), settings(**MODES[mode]), mode)
    assert lint(made.config.text.encode(), version=Version("2.7.14")) == []
    written = read_values(made.config.text)
    assert written.get(("wsl2", "swap")) == (0 if mode == "mirrored" else None)
    assert written["wsl2", "networkingMode"] == mode
    assert (written["wsl2", "vmIdleTimeout"], written["general", "instanceIdleTimeout"]) == (-1, -1)
    assert lint(made.conf.text.encode(), WSLCONF, version=Version("2.7.14")) == []
    distro = read_values(made.conf.text, WSLCONF)
    assert (distro["boot", "systemd"], distro["user", "default"]) == (True, "root")
    assert (distro.get(("network", "generateResolvConf")), made.conf.resolver) == (
        (False, "nameserver 192.0.2.53\n") if mode == "bridged" else (None, None)
    )


sizes = st.integers(1, 1024).map(lambda gib: gib * GiB)


@given(sizes, st.integers(1, 200 * 1024).map(lambda mib: mib * MiB), st.integers(1, 8))
def test_linux_gets_what_the_gpus_have_where_the_host_has_it_beside_windows(total: int, vram: int, gpus: int) -> None:
    facts = with_memory(total)
    gpu = replace_vram(facts.gpus[0], vram)
    found = wsl_memory(facts, [gpu] * gpus, None).given
    assert found % MiB == 0
    assert found >= total // 2
    assert found >= min(vram * gpus, total - 4 * GiB)
    assert found <= max(total // 2, total - 4 * GiB)


def test_memory_is_told_with_its_arithmetic() -> None:
    facts = with_memory(64 * GiB)
    assert wsl_memory(facts, facts.gpus, None).why == (
        "32 GiB, the larger of half the host's 64 GiB and the 24,564 MiB of its GPUs, and 4 GiB stay with Windows"
    )
    little = with_memory(4 * GiB)
    assert wsl_memory(little, little.gpus, None).why.startswith(
        "2 GiB, half of the host's 4 GiB, as WSL takes by itself"
    )
    untold = replace_vram(facts.gpus[0], None, device="VEN_10DE&DEV_0001&SUBSYS_00000000")
    assert wsl_memory(facts, [untold], None).why.startswith("32 GiB, half of the host's 64 GiB, because the memory of")
    assert wsl_memory(facts, facts.gpus, 8 * GiB) == WslMemory(8 * GiB, "8 GiB as you set it")


@cache
def one_gpu() -> Facts:
    return expand(find("win11-pro-1gpu"))[0]


def with_memory(total: int) -> HostFacts:
    facts = one_gpu()
    state = cast(tuple[Record, ...], facts.resources["Memory"])[0].state
    return HostFacts(replace(facts, resources={**facts.resources, "Memory": (Record({**state, "total": total}),)}))


def replace_vram(gpu: Gpu, vram: int | None, device: str | None = None) -> Gpu:
    pci = replace(
        gpu.pci,
        key={**gpu.pci.key, "device": device or gpu.pci.key["device"]},
        state=replace(gpu.pci.state, vram=vram),
    )
    return replace(gpu, pci=pci)


def of_two_networks(**changes: Any) -> HostFacts:
    """A host with a management adapter and another one; changes: by the name of an adapter, its properties."""
    facts, _ = expand(find("win11-two-networks"))
    adapters = cast(tuple[Record, ...], facts.resources["NetworkAdapter"])
    edited = tuple(replace(each, state={**each.state, **changes.get(str(each.state["name"]), {})}) for each in adapters)
    return HostFacts(replace(facts, resources={**facts.resources, "NetworkAdapter": edited}))


def name_of(facts: HostFacts, guid: str | None) -> str:
    return next(each.state.name for each in facts.all(NetworkAdapter) if each.key["adapter"] == guid)


def test_by_itself_it_takes_another_adapter_than_the_one_that_leads_to_us() -> None:
    facts = of_two_networks()
    ours = [each.state.name for each in facts.all(NetworkAdapter) if each.state.management]
    assert ours == ["Ethernet"]
    assert name_of(facts, bridge_adapter(facts, Bridge(adapter="auto"))) == "Ethernet 2"
    without = of_two_networks(**{"Ethernet 2": {"status": "disconnected"}})
    assert name_of(without, bridge_adapter(without, Bridge(adapter="auto"))) == "Ethernet"
    assert bridge_adapter(facts, Bridge()) is None


def test_where_none_suits_it_says_so() -> None:
    none = of_two_networks(**{"Ethernet": {"kind": "wifi"}, "Ethernet 2": {"status": "down"}})
    with pytest.raises(Refusal, match="No wired network adapter"):
        bridge_adapter(none, Bridge(adapter="auto"))
