"""Physics of the simulated Windows, and what must hold whatever is done to it."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import read_cases
from tests.powershell.bundles import twin
from tests.rows import each_row
from winhost.core.answers import Unavailable, Unknown
from winhost.lab.hostfile import expand, expand_all, find
from winhost.lab.physics.host_state import HostDown
from winhost.lab.physics.lab_section import LabClock, LabSection
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.virtual_machine import Device
from winhost.lab.physics.windows_errors import CmdletError

CASES = read_cases(Path(__file__).parents[2] / "data" / "lab" / "physics.yaml")
hosts = cache(expand_all)
SLOW = LabClock(scale=10.0)  # a restart that nobody lives to see the end of


def machine(host: str, clock: LabClock | None = None, **lab: Any) -> Machine:
    facts, section = hosts()[host]
    return Machine(facts, LabSection.model_validate(section.model_dump() | lab), clock)


def vm_named(host: Machine, name: str) -> str:
    return next((vm.guid for vm in host.vms.values() if vm.name == name), "")


class Case:
    """Runs the steps of one case."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.rest = dict(case)
        self.steps = self.rest.pop("do")
        clock = SLOW if self.rest.pop("slow", False) else None
        self.machine = machine(self.rest.pop("host"), clock, **self.rest.pop("lab", {}))
        self.vm = vm_named(self.machine, self.rest.pop("vm", "llm-01"))
        name = self.rest.pop("gpu", "NVIDIA L40S")
        self.device = next((d for d in self.machine.devices if d.enabled_state["name"] == name), None)
        self.fails = self.rest.pop("fails", None)
        self.then = self.rest.pop("then", {})
        self.gave: Any = None
        assert not self.rest, f"unknown keys {set(self.rest)}"

    def run(self) -> None:
        *first, last = self.steps
        for step in first:
            self.do(step)
        if self.fails is None:
            self.do(last)
        else:
            with pytest.raises(CmdletError) as caught:
                self.do(last)
            error = caught.value
            assert self.fails["hresult"] in error.hresults
            assert (error.cmdlet, error.category) == (self.fails["cmdlet"], self.fails["category"])
        found = self.found()
        assert {name: found[name] for name in self.then} == self.filled(self.then)

    def do(self, step: Any) -> None:
        if isinstance(step, str):
            getattr(self, step)()
            return
        ((name, arguments),) = step.items()
        arguments = self.filled(arguments)
        whose = next(part for part in (self.machine, *self.machine.parts) if hasattr(part, name))
        self.gave = getattr(whose, name)(*arguments.pop("names", ()), **arguments)

    def prepared(self) -> None:
        if self.machine.vms[self.vm].power != "off":
            self.machine.stop_vm(self.vm)
        self.machine.set_vm(self.vm, stop_action="turn-off", checkpoint_type="disabled")
        self.machine.set_vm(self.vm, dynamic_memory=False)

    def taken(self) -> None:
        assert self.device
        self.machine.disable_pnp_device(self.device.instance)
        self.machine.dismount_vm_host_assignable_device(self.device.location, force=True)

    def settled(self) -> None:
        self.machine.wait_until_ready()

    def filled(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self.filled(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self.filled(each) for each in value]
        if self.device is not None and value in ("GPU", "INSTANCE"):
            return self.device.location if value == "GPU" else self.device.instance
        return value.replace("VM", self.vm) if value in ("VM", "assigned:VM") else value

    def says(self, resource: str, asked: dict[str, Any]) -> dict[str, Any]:
        """The same properties of the first instance."""
        return {name: self.machine.instances(resource)[0].state[name] for name in asked}

    def found(self) -> dict[str, Any]:
        host = self.machine
        asked = self.then.get("unavailable", [])
        return {
            "assignment": self.device and host.assignment(self.device.location),
            "power": self.vm and host.vms[self.vm].power,
            "seen": self.vm and host.devices_in_guest(self.vm),
            "role": host.role,
            "tools": host.tools,
            "boot": host.boot,
            "gave": self.gave,
            "says": {name: self.says(name, state) for name, state in self.then.get("says", {}).items()},
            "unavailable": [resource for resource in asked or ["Vm"] if isinstance(host.answer(resource), Unavailable)],
        }


@each_row("name", CASES)
def test_physics(name: str) -> None:
    Case(CASES[name]).run()


def test_a_text_says_the_host_s_language_and_codes_do_not() -> None:
    errors = []
    for host in (machine("server2025-german"), machine("server2025-3gpu")):
        with pytest.raises(CmdletError) as caught:
            host.start_vm("8d1f3c52-6a2e-4b7d-9c41-0e5f7a6b2d10")
        errors.append(caught.value)
    german, english = errors
    assert (german.category, german.code, german.hresults) == (english.category, english.code, english.hresults)
    assert german.message == f"[de-DE] {english.message}"


def test_the_instance_id_says_where_a_device_stands_and_changes_with_each_mount() -> None:
    host = machine("server2025-role-installed")
    gpu = next(d for d in host.devices if d.enabled_state["name"] == "NVIDIA L40S")
    before = gpu.instance
    host.disable_pnp_device(before)
    disabled = gpu.state()
    host.dismount_vm_host_assignable_device(gpu.location)
    dismounted = gpu.state()
    host.mount_vm_host_assignable_device(gpu.location)
    assert dismounted["instance"] == before.replace("PCI\\", "PCIP\\")
    assert (disabled["problem"], disabled["ranges"], dismounted["ranges"]) == (22, [], [])
    assert gpu.instance.startswith("PCI\\")
    assert gpu.instance != before


def test_nobody_is_at_home_while_the_host_restarts() -> None:
    host = machine("server2025-role-installed", LabClock(scale=10.0), restart_delay=0, reboot_seconds=60)
    first = host.snapshot()["Boot"]
    host.restart_computer()
    while host.accepts_connections():
        pass
    with pytest.raises(HostDown):
        host.restart_computer()
    again = machine("server2025-role-installed")
    again.restart_computer()
    again.wait_until_ready()
    assert again.snapshot()["Boot"] != first
    assert again.snapshot()["Boot"][0]["state"]["servicing"] is False


def test_vms_stop_and_start_with_the_host_as_their_actions_say() -> None:
    host = machine("server2025-role-installed")
    llm, files = vm_named(host, "llm-01"), vm_named(host, "files-01")
    host.set_vm(llm, start_action="nothing")
    host.restart_computer()
    host.wait_until_ready()
    assert (host.vms[llm].power, host.vms[files].power) == ("saved", "running")


def test_the_hypervisor_hides_what_the_firmware_said() -> None:
    host = machine("server2025-3gpu")
    before = host.snapshot()["Firmware"][0]["state"]
    host.install_windows_feature("Hyper-V")
    waiting = host.snapshot()
    host.restart_computer()
    host.wait_until_ready()
    after = host.snapshot()
    assert before["virtualization_enabled"] is True
    assert before["hypervisor_present"] is False
    assert waiting["PendingReboot"][0]["state"]["reasons"] == ["servicing"]
    assert after["PendingReboot"][0]["state"]["reasons"] == []
    assert after["Firmware"][0]["state"]["hypervisor_present"] is True
    assert after["Firmware"][0]["state"]["virtualization_enabled"] is False


def test_who_is_no_administrator_is_told_so_and_sees_the_rest() -> None:
    host = machine("not-administrator")
    refused = host.answer("Vm")
    assert isinstance(refused, Unknown)
    assert refused.unknown.category == "PermissionDenied"
    assert isinstance(host.answer("PciDevice"), tuple)
    assert host.snapshot()["Session"][0]["state"]["administrator"] is False


def test_the_role_given_back_leaves_the_host_as_it_was() -> None:
    host = machine("server2025-3gpu")
    before = host.comparable_state()
    assert host.install_windows_feature("Hyper-V", "Hyper-V-PowerShell")
    restart(host)
    assert host.comparable_state() != before
    assert host.uninstall_windows_feature("Hyper-V", "Hyper-V-PowerShell")
    restart(host)
    assert host.comparable_state() == before
    assert "Vm" in before  # its VMs count, though no session can see them now


def test_three_gpus_need_a_window_for_their_order() -> None:
    needed = 0
    for order in ("assigned", "reversed"):
        host = machine("server2025-role-installed", guest_order=order)
        vm = vm_named(host, "llm-01")
        host.stop_vm(vm)
        host.set_vm(vm, stop_action="turn-off", low=1 << 30)
        host.set_vm(vm, high=164_384 << 20)
        host.set_vm(vm, dynamic_memory=False)
        for gpu in [d for d in host.devices if d.enabled_state.get("vram")]:
            host.disable_pnp_device(gpu.instance)
            host.dismount_vm_host_assignable_device(gpu.location, force=True)
            host.add_vm_assignable_device(vm, gpu.location)
        host.start_vm(vm)
        needed += len(host.devices_in_guest(vm))
    assert needed == 5  # all three in one order, two in the other


def test_a_recorded_facts_file_makes_a_twin(tmp_path: Path) -> None:
    from winhost.model.documents import write_document

    facts, _ = expand(find("server2022-2gpu"))
    path = tmp_path / "gpu-02.json"
    path.write_text(write_document(facts), encoding="utf-8")
    twin, lab = expand(path)
    assert Machine(twin, lab).facts().resources == facts.resources


def restart(host: Machine) -> None:
    host.restart_computer()
    host.wait_until_ready()


DO: dict[str, Callable[[Machine, Device, str], None]] = {
    "disable": lambda host, device, vm: host.disable_pnp_device(device.instance),
    "enable": lambda host, device, vm: host.enable_pnp_device(device.instance),
    "dismount": lambda host, device, vm: host.dismount_vm_host_assignable_device(device.location, force=True),
    "mount": lambda host, device, vm: host.mount_vm_host_assignable_device(device.location),
    "add": lambda host, device, vm: host.add_vm_assignable_device(vm, device.location),
    "remove": lambda host, device, vm: host.remove_vm_assignable_device(vm, device.location),
    "start": lambda host, device, vm: host.start_vm(vm),
    "turn off": lambda host, device, vm: host.turn_vm_off(vm),
    "restart": lambda host, device, vm: restart(host),
}
MOVES = st.lists(st.tuples(st.sampled_from(sorted(DO)), st.integers(0, 5), st.integers(0, 1)), max_size=40)


def assignable(host: Machine) -> Machine:
    for guid in host.vms:
        host.stop_vm(guid)
        host.set_vm(guid, stop_action="turn-off", start_action="nothing")
        host.set_vm(guid, dynamic_memory=False)
    return host


@given(MOVES)
def test_a_device_is_always_in_one_place_and_undoing_returns_to_the_start(moves: list[tuple[str, int, int]]) -> None:
    host = assignable(machine("server2025-role-installed"))
    start = host.comparable_state()
    for what, which, whose in moves:
        try:
            DO[what](host, host.devices[which], list(host.vms)[whose])
        except CmdletError:
            continue
        finally:
            check_places(host)
    give_everything_back(host)
    assert host.comparable_state() == start


def check_places(host: Machine) -> None:
    records = host.answer("AssignableDevice")
    assert isinstance(records, tuple)
    assert len({r.key["location"] for r in records}) == len(records) == len(host.devices)
    for device in host.devices:
        claims = [vm for vm in host.vms.values() if vm.has_device(device.location)]
        assert len(claims) <= 1
        # A running VM holds its devices: none is pulled from under it.
        assert all(device.dismounted for vm in claims if vm.power == "running")
        assert device.instance.startswith("PCIP\\") is device.dismounted
        assert not (device.dismounted and device.enabled)


def give_everything_back(host: Machine) -> None:
    for vm in host.vms.values():
        host.turn_vm_off(vm.guid)
        for claim in list(vm.assignments):
            host.remove_vm_assignable_device(vm.guid, claim.location)
    for device in host.devices:
        if device.dismounted:
            host.mount_vm_host_assignable_device(device.location)
        host.enable_pnp_device(device.instance)


def test_a_copy_of_a_host_tells_of_itself() -> None:
    """By it a run is filmed, moment by moment."""
    host = machine("server2025-role-installed")
    found = host.snapshot()  # whatever it keeps to tell of itself is kept by now
    copied = twin(host)
    device = next(each for each in copied.devices if each.enabled_state["name"] == "NVIDIA L40S")
    copied.disable_pnp_device(device.instance)
    assert copied.snapshot()["PciDevice"] != found["PciDevice"]
    assert host.snapshot() == found
