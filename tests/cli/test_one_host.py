"""A value that only one host can have is refused for several before anything is written."""

import json
from pathlib import Path

import pytest
from pydantic import BaseModel

from tests.cli.conftest import Line
from tests.cli.test_new_vm import KEY, SIZED
from tests.errors import raises
from winhost.cli.plan.options import RequestBuilder
from winhost.paths.setting_values import HostSpecificValue, host_specific_values, refuse_shared

PREPARED = (*SIZED, "--vhdx", r"D:\images\ubuntu.vhdx", "--vhdx-sha256", "2" * 64)
UBUNTU = ("--path", "dual-boot", "--set", "system.hostname=llm-01", "--set", f"system.key={KEY}")
BRIDGED = ("--path", "wsl2/bridged", "--set", "bridge.adapter=auto")
STATIC = ("--set", "bridge.address=192.0.2.9/24", "--set", "bridge.gateway=192.0.2.1")
HOSTS = ("server2025-role-installed", "server2022-2gpu")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (PREPARED, "VM name llm-02"),
        ((*PREPARED, "--address", "192.0.2.10/24", "--gateway", "192.0.2.1"), "address 192.0.2.10/24"),
        (UBUNTU, "host name llm-01"),
        ((*BRIDGED, *STATIC), "address 192.0.2.9/24"),
        (("--vm", "llm-01"), "VM llm-01 (--vm)"),
        (("--gpu", "PCIROOT(C9)#PCI(0200)#PCI(0000)"), "location PCIROOT(C9)"),
        (
            ("--path", "dual-boot", "--set", "disk=0b0fc3ac-7a51-4a5b-8d52-9b6d2b4b8f11"),
            "disk 0b0fc3ac-7a51-4a5b-8d52-9b6d2b4b8f11",
        ),
    ],
)
def test_it_is_refused_before_anything_is_written(line: Line, words: tuple[str, ...], says: str) -> None:
    for output in (("-o", "plans/"), ()):
        said = line("plan", *map(line.facts, HOSTS), *words, *output)
        assert (said.code, "Plan each host by itself" in said.err) == (2, True), said
        assert says in " ".join(said.err.split())
    assert not (line.folder / "plans").exists()


def test_so_is_one_that_a_playbook_of_ones_own_has(line: Line) -> None:
    facts = line.facts(HOSTS[0])
    assert line("plan", facts, *PREPARED, "-o", "plan.json").code == 0
    book = json.loads(Path("plan.json").read_text("utf-8"))["request"]["playbook"]
    Path("mine.yaml").write_text(json.dumps(book), "utf-8")
    said = line("plan", *map(line.facts, HOSTS), "--playbook", "mine.yaml", "-o", "plans/")
    assert (said.code, "VM name llm-02" in said.err) == (2, True)


def test_what_is_the_same_on_each_host_goes_to_several(line: Line) -> None:
    facts = [line.facts("win11-pro-1gpu"), line.facts("server2025-3gpu")]
    said = line("plan", *facts, *BRIDGED, "-o", "plans/")
    assert "Plan each host by itself" not in said.err
    for words in (("--gpu", "NVIDIA L40S"), ("--path", "dual-boot", "--set", "disk=windows")):
        assert "Plan each host by itself" not in line("plan", *map(line.facts, HOSTS), *words).err


def test_plans_that_were_made_apart_are_not_applied_together(line: Line) -> None:
    for host in HOSTS:
        assert line("plan", line.facts(host), *PREPARED, "-o", f"plan-{host}.json").code == 0
    said = line("apply", *(f"plan-{host}.json" for host in HOSTS), "--yes")
    assert (said.code, "would both get the VM name llm-02" in " ".join(said.err.split())) == (2, True), said
    assert not (line.folder / "state").exists()


def test_one_address_is_one_with_any_prefix_and_one_mac_in_any_form() -> None:
    assert (
        HostSpecificValue("address", "a", "192.0.2.9/24").conflict_key
        == HostSpecificValue("address", "b", "192.0.2.9/16").conflict_key
    )
    macs = {"llm-01": "00-15-5D-AA-BB-0C", "llm-02": "00:15:5d:aa:bb:0c", "llm-03": "00:15:5d:aa:bb:0d"}
    settings = [_ubuntu(mac, name) for name, mac in macs.items()]
    with raises("SharedValue"):
        refuse_shared([("a", settings[0]), ("b", settings[1])])
    refuse_shared([("a", settings[0]), ("b", settings[2]), ("c", _ubuntu("auto", "llm-04"))])
    assert [each.called for each in host_specific_values(settings[2])] == ["host name", "MAC address"]


def _ubuntu(mac: str, name: str = "llm-01") -> BaseModel:
    words = (f"system.hostname={name}", f"system.key={KEY}", f"system.mac={mac}")
    asked = RequestBuilder("dual-boot", settings=words)
    return asked.request("dual-boot").playbook.parsed_settings
