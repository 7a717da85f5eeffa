"""Host files: what is shipped, how a delta is laid over a base, and what is said of a faulty one."""

from pathlib import Path

import pytest

from tests.errors import raises
from tests.rows import each_row
from winhost.core.answers import Record, Unavailable, Unknown
from winhost.lab.hostfile import expand, expand_all, find, host_files
from winhost.lab.physics.simulated_machine import Machine
from winhost.model.shipped import shipped
from winhost.resources.host import HostFacts, typed_instance
from winhost.resources.registry import WINDOWS_STATES
from winhost.resources.windows.pci_device import PciDevice
from winhost.resources.windows.read_only import Vm

BASE = "server2025-3gpu"
NAMES = [path.stem for path in host_files()]


def delta(folder: Path, text: str, base: str = BASE) -> Path:
    """A delta on a copy of the shipped files."""
    for path in host_files():
        (folder / path.name).write_bytes(path.read_bytes())
    written = folder / "mine.yaml"
    head = f"schema: winhost.host/2\norigin: synthetic\nabout: of a test\nbase: {base}\n"
    written.write_text(head + text, encoding="utf-8")
    return written


@each_row("name", NAMES)
def test_every_shipped_host_is_whole_and_answers_what_its_file_says(name: str) -> None:
    facts, lab = expand(find(name))
    assert facts.origin == "synthetic"
    assert set(facts.resources) == {state.resource_type.name for state in WINDOWS_STATES}
    for state in WINDOWS_STATES:
        answer = facts.resources[state.resource_type.name]
        for record in answer if isinstance(answer, tuple) else ():
            typed_instance(state, record)
    assert Machine(facts, lab).facts() == facts


@each_row("name", NAMES)
def test_every_range_lies_on_its_own_boundary(name: str) -> None:
    for gpu in HostFacts(expand(find(name))[0]).all(PciDevice):
        for bar in gpu.state.ranges:
            assert bar.start % bar.length == 0, gpu.key


def test_no_two_hosts_of_the_shipped_ones_are_the_same() -> None:
    everything = expand_all()
    assert list(everything) == NAMES
    seen = [repr((facts.resources, lab)) for facts, lab in everything.values()]
    assert len(set(seen)) == len(seen)


def test_vms_of_before_are_hidden_until_the_role_is_back() -> None:
    facts, lab = expand(find(BASE))
    assert facts.resources["Vm"] == Unavailable("HyperVRole")
    assert {record["state"]["name"] for record in lab.hidden["Vm"]} == {"llm-01", "files-01"}


def test_a_dismounted_gpu_shows_no_ranges_and_the_lab_remembers_them() -> None:
    facts, lab = expand(find("gpu-dismounted"))
    host = HostFacts(facts)
    (gpu,) = [d for d in host.all(PciDevice) if "26B9" in d.key["device"]]
    assert gpu.state.dismounted
    assert gpu.state.ranges == ()
    assert "L40S" not in gpu.state.name
    assert any(record["state"]["name"] == "NVIDIA L40S" for record in lab.hidden["PciDevice"])


def test_hostile_names_arrive_unharmed() -> None:
    names = [vm.state.name for vm in HostFacts(expand(find("hostile-vm-names"))[0]).all(Vm)]
    assert max(map(len, names)) == 255
    everything = "".join(names)
    assert all(character in everything for character in ("'", '"', "$(", "\n", "\u2019", "\u202e", "[1]*"))
    assert len(set(names)) < len(names)  # Hyper-V allows the same name twice


def test_a_delta_sets_adds_and_removes(tmp_path: Path) -> None:
    path = delta(
        tmp_path,
        """
change:
  OperatingSystem: {revision: 1}
  PciDevice:
    - {match: {location: PCIROOT(49)#PCI(0100)#PCI(0000)}, set: {vram: 48 GiB}}
    - {match: {kind: audio}, remove: true}
  BitLocker:
    - {match: {volume: "C:"}, set: {protection: {unknown: {category: PermissionDenied}}}}
    - {add: {key: {volume: "D:"}, state: {protection: "on", volume_type: data}}}
  Disk: {unknown: {category: PermissionDenied, message: no}}
lab: {reboot_seconds: 1, devices: {"PCIROOT(7B)#PCI(0100)#PCI(0000)": {in_use: true}}}
""",
        base="server2025-role-installed",
    )
    facts, lab = expand(path)
    host = HostFacts(facts)
    assert (host.os.revision, host.os.build) == (1, 26100)
    assert {d.state.kind for d in host.all(PciDevice)} == {"display"}
    assert len(host.all(PciDevice)) == len(_records(facts.resources["AssignableDevice"]))
    assert 48 << 30 in [d.state.vram for d in host.all(PciDevice)]
    assert [r.key["volume"] for r in _records(facts.resources["BitLocker"])] == ["C:", "D:"]
    assert isinstance(facts.resources["Disk"], Unknown)
    gpu = lab.devices["PCIROOT(7B)#PCI(0100)#PCI(0000)"]
    assert (lab.reboot_seconds, gpu.in_use, gpu.mitigation_driver) == (1, True, True)


def _records(answer: object) -> tuple[Record, ...]:
    assert isinstance(answer, tuple)
    return answer


@each_row(
    ("text", "place", "words"),
    [
        ("change:\n  PciDevise: []\n", "mine.yaml:6:3: change.PciDevise", "did you mean 'PciDevice'"),
        ("change:\n  OperatingSystem: {skuu: 4}\n", "mine.yaml:6:21: change.OperatingSystem.skuu", "'sku'"),
        ("change:\n  OperatingSystem: {sku: Pro}\n", "mine.yaml:6:", "sku"),
        ("change:\n  OperatingSystem: [{add: {state: {}}}]\n", "mine.yaml:6:3: change.OperatingSystem", "no key"),
        ("change:\n  PciDevice: {acs: 0}\n", "mine.yaml:6:3: change.PciDevice", "has a key"),
        (
            "change:\n  PciDevice:\n    - {match: {name: RTX 9999}, set: {acs: 0}}\n",
            "mine.yaml:7:8: change.PciDevice[0].match",
            "fits no instance",
        ),
        ("change:\n  PciDevice:\n    - {match: {acs: 3}}\n", "mine.yaml:7:", "match, set"),
        ("lab: {administator: false}\n", "mine.yaml:5:7: lab.administator", "did you mean 'administrator'"),
        ("lab: {address_width: wide}\n", "mine.yaml:5:7: lab.address_width", "whole number"),
        ("lab: {found: {disk: {left: []}}}\n", "mine.yaml:5:15: lab.found.disk", "did you mean 'disks'"),
        ("lab: {found: {disks: {lefd: []}}}\n", "mine.yaml:5:23: lab.found.disks.lefd", "did you mean 'left'"),
        ("resources:\n  Wsl: {present: false, version: null}\n", "mine.yaml:", "either resources"),
    ],
)
def test_a_faulty_delta_is_told_with_its_place(tmp_path: Path, text: str, place: str, words: str) -> None:
    with raises("FileFaults") as caught:
        expand(delta(tmp_path, text))
    told = caught.value.meaning or caught.value.what
    assert place in told
    assert words in told


def test_a_size_may_be_text_in_any_property(tmp_path: Path) -> None:
    text = "\nchange:\n  WslDistro: [{match: {}, set: {file_size: 2 GiB}}]\n"
    facts, _ = expand(delta(tmp_path, text, base="win11-wsl-served"))
    assert facts.resources["WslDistro"]


def test_a_text_that_looks_like_a_size_stays_text(tmp_path: Path) -> None:
    facts, _ = expand(delta(tmp_path, '\nchange:\n  Firmware: {bios_version: "0x10", serial: 2 GiB}\n'))
    (firmware,) = facts.resources["Firmware"]  # type: ignore[misc]
    assert (firmware.state["bios_version"], firmware.state["serial"]) == ("0x10", "2 GiB")


@pytest.mark.parametrize("change", ["encoding: 9.9.9", "encoding: null"])
def test_a_file_that_no_windows_holds_is_one_that_cannot_be_read(tmp_path: Path, change: str) -> None:
    text = f"\nchange:\n  WslConfig: [{{match: {{}}, set: {{{change}}}}}]\n"
    facts, _ = expand(delta(tmp_path, text, base="win11-wsl-served"))
    assert facts.resources["WslConfig"]


def test_a_base_that_is_not_there_or_the_file_itself_is_told(tmp_path: Path) -> None:
    with raises("FileFaults", match="did you mean 'server2025-3gpu'"):
        expand(delta(tmp_path, "", base="server2025-3gpus"))
    with raises("FileFaults", match="based on itself"):
        expand(delta(tmp_path, "", base="mine"))


def test_a_delta_may_lie_anywhere_and_what_is_beside_it_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    head = "schema: winhost.host/2\norigin: synthetic\nabout: mine\n"
    path.write_text(f"{head}base: server2025-3gpu\nhost: mine\n", encoding="utf-8")
    assert expand(path)[0].resources == expand(find("server2025-3gpu"))[0].resources
    beside = find("win11-pro-1gpu").read_text(encoding="utf-8")
    (tmp_path / "server2025-3gpu.yaml").write_text(beside, encoding="utf-8")
    assert expand(path)[0].resources == expand(find("win11-pro-1gpu"))[0].resources


def test_a_complete_host_says_everything(tmp_path: Path) -> None:
    path = delta(tmp_path, "")
    text = (tmp_path / f"{BASE}.yaml").read_text(encoding="utf-8")
    path.write_text(text.replace("  Memory: {total: 256 GiB, free: 243 GiB}\n", ""), encoding="utf-8")
    with raises("FileFaults", match="Memory is missing"):
        expand(path)


def test_a_folder_that_is_not_shipped_is_told() -> None:
    with pytest.raises(FileNotFoundError, match="nonsense"):
        shipped("nonsense")


def test_an_unknown_host_is_told_with_the_nearest() -> None:
    with raises("UnknownHostFile") as caught:
        find("gpu-dismonted")
    assert "did you mean 'gpu-dismounted'" in caught.value.what
    assert "winhost lab list" in caught.value.hint
    assert BASE not in caught.value.hint


def test_a_facts_file_of_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "facts.json"
    path.write_text('{"schema": "winhost.facts/9", "host": "gpu-01"}', encoding="utf-8")
    with raises("OtherVersion", match="schema"):
        expand(path)
