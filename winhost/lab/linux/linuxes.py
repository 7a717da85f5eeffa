"""Linuxes that are no distros: hosts made from facts, guests in VMs that winhost made, and the Linux beside Windows."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from uuid import NAMESPACE_OID, UUID, uuid5

from winhost.core.answers import Json, Record
from winhost.core.dataclass import dataclass
from winhost.lab.linux.linux_answers import LinuxAnswers, Sshd
from winhost.lab.linux.linux_machine import Linux, ubuntu
from winhost.lab.physics.firmware import WINDOWS_LOADER, FirmwarePart
from winhost.lab.physics.lab_section import LabClock, LabSection
from winhost.lab.physics.parts import Part
from winhost.lab.physics.simulated_machine import InstalledLinux, Machine
from winhost.lab.physics.ssh_keys import seed_of
from winhost.lab.physics.virtual_machine import Device, VirtualMachine
from winhost.lab.physics.vm_creation import GuestDisc, read_disc
from winhost.lab.physics.wsl_exe import Distro
from winhost.model.facts import Facts


class LinuxHost:
    """A Linux host made from facts. Its SSH server accepts root with the authorized keys."""

    user = "root"

    def __init__(self, facts: Facts, section: LabSection, clock: LabClock) -> None:
        self._distro = Distro(facts.host, "", running=True, systemd=True, sshd=True, enabled=True)
        self.machine = Machine(facts, section, clock)
        self.linux = Linux(self.machine, self._distro, is_standalone=True)
        self.answers = LinuxAnswers(self.linux)

    @property
    def seed(self) -> bytes:
        return self._distro.seed

    @property
    def host_key(self) -> str:
        return self._distro.host_key

    @property
    def authorized(self) -> Sequence[str]:
        return self._distro.keys

    @authorized.setter
    def authorized(self, keys: Sequence[str]) -> None:
        self._distro.keys = list(keys)

    def find_sshd(self) -> Sshd | None:
        """Return the SSH server; None while the Linux restarts."""
        machine = self.machine
        if not machine.accepts_connections():
            return None
        self.answers.catch_up()
        return Sshd.open(
            self.answers, self.user, self.authorized, machine, lambda: (machine.accepts_connections(), machine.boot)
        )


CLOUD_INIT_DISABLED = "/etc/cloud/cloud-init.disabled"


class GuestGpus(Part):
    """NVIDIA's GPUs as a Linux on this host sees them. vm: of a guest, where each GPU has its own PCI domain."""

    def __init__(self, host: Machine, vm: VirtualMachine | None = None) -> None:
        super().__init__(host)
        self._vm = vm

    def records(self) -> Mapping[str, Callable[[], Iterator[Record]]]:
        """Return the calls that list the GPUs and missing window sizes."""
        return {"LinuxGpu": self._list_gpus} | ({} if self._vm is None else {"MmioNeed": self._list_mmio_needs})

    def _list_mmio_needs(self) -> Iterator[Record]:
        """Yield the window sizes that the guest's kernel reports as missing."""
        guest = "" if self._vm is None else self._vm.guid
        missing = self.host.missing_window_sizes(guest) if guest in self.host.vms else {}
        if missing:
            yield Record({"high": missing.get("high"), "low": missing.get("low")})

    def _list_gpus(self) -> Iterator[Record]:
        states: list[Mapping[str, Json] | None] = []
        if self._vm is None:
            states += filter(None, map(linux_gpu_state, self.host.devices))
        elif self._vm.guid in self.host.vms:
            visible = self.host.devices_in_guest(self._vm.guid)
            states += (linux_gpu_state(each) for each in self.host.devices if each.location in visible)
        address = "0000:{:02x}:00.0" if self._vm is None else "{:04x}:00:00.0"
        for number, state in enumerate(states, start=1):
            if state is not None:
                yield Record(state, {"address": address.format(number)})


def linux_gpu_state(device: Device) -> Mapping[str, Json] | None:
    """Return the state of resource LinuxGpu of a device, without a driver; None if it is no GPU of NVIDIA."""
    ids = str(device.key["device"]).split("&")
    if ids[0] != "VEN_10DE" or not device.bars.wide:
        return None
    vram = {"vram": device.get_known("vram", None)}  # as the driver of Windows reported it
    sizes = [*((size, False) for size in device.bars.narrow), *((size, True) for size in device.bars.wide)]
    bars = [
        {"index": index, "start": 1 << 40, "size": size, "prefetchable": is_wide}
        for index, (size, is_wide) in enumerate(sizes)
    ]
    return {**_NO_DRIVER, **vram, "device": f"10de:{ids[1].removeprefix('DEV_').lower()}", "bars": bars}


_NO_DRIVER: Mapping[str, Json] = {"driver": None, "numa": 0, "name": None, "uuid": None, "vram": None}


def _ubuntu(
    host: Machine, gpus: Part, disc: GuestDisc | InstalledLinux, machine_id: str, memory: Json, **more: Json
) -> Linux:
    """Return a standalone Linux from Ubuntu's image, with sshd."""
    facts = Facts(disc.hostname, "synthetic", "", "", {"LinuxSystem": (Record(ubuntu(machine_id, memory) | more),)})
    machine = Machine(facts, clock=host.clock)
    machine.parts.insert(0, gpus)
    distro = Distro(disc.hostname, "", running=True, systemd=True, sshd=True, enabled=True)
    distro.port, distro.listen = 22, "0.0.0.0"  # noqa: S104 - simulated
    distro.keys, distro.host_key_seed = list(disc.keys), seed_of(disc.private_key)
    return Linux(machine, distro, is_standalone=True)


@dataclass
class GuestLinux:
    """The Linux of one VM. disc: the seed that it read at its first start."""

    vm: VirtualMachine
    disc: GuestDisc
    answers: LinuxAnswers
    seen_starts: int = 1
    """Starts of the VM that catch_up has applied."""

    @property
    def distro(self) -> Distro:
        return self.answers.linux.distro

    def catch_up(self) -> None:
        """Apply the starts that have happened since."""
        for seed in self.vm.seeds_at_starts[self.seen_starts :]:
            self.seen_starts += 1
            self.answers.machine.boot += 1
            # Without its seed, cloud-init treats this as a new machine, and makes new host keys.
            cloud_init_runs = self.answers.linux.read_file(CLOUD_INIT_DISABLED)["text"] is None
            if cloud_init_runs and (seed is None or read_disc(seed).instance != self.disc.instance):
                self.distro.host_key_seed = sha256(b"made anew" + self.distro.seed).digest()
        self.answers.catch_up()


class HostGuests:
    """The guests of one host, by the ids of their VMs."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._known_guests: dict[str, GuestLinux] = {}

    def guest(self, vm: VirtualMachine) -> GuestLinux | None:
        """Return the guest of a VM, or None if its disk has no Linux with cloud-init."""
        disc = self._machine.disc_of(vm)
        if disc is None:
            return None
        if vm.guid not in self._known_guests:
            traits = {"secure_boot": bool(vm.traits["secure_boot"]), "virtualization": "microsoft"}
            traits |= {"pci_hyperv": self._machine.lab.new_vms.takes_devices}
            gpus = GuestGpus(self._machine, vm)
            linux = _ubuntu(self._machine, gpus, disc, UUID(vm.guid).hex, vm.startup, **traits)
            self._known_guests[vm.guid] = GuestLinux(vm, disc, LinuxAnswers(linux))
            vm.guest_bytes = self._known_guests[vm.guid].answers.linux.disk.size
        guest = self._known_guests[vm.guid]
        guest.catch_up()
        return guest

    def has_new_host_key(self, vm: VirtualMachine) -> bool:
        """Tell whether the guest has a host key other than the seed's."""
        guest = self.guest(vm)
        return guest is not None and guest.distro.host_key != guest.disc.public_key

    def find_sshd(self) -> Sshd | None:
        """Return the SSH server of the first running guest, or None."""
        machine = self._machine
        if not machine.accepts_connections():
            return None
        for vm in machine.vms.values():
            guest = self.guest(vm) if vm.power == "running" else None
            if guest is not None:
                return self._sshd(guest)
        return None

    def _sshd(self, guest: GuestLinux) -> Sshd:
        machine, vm = self._machine, guest.vm

        def current_run() -> object:
            return (
                machine.accepts_connections(),
                machine.boot,
                machine.vms.get(vm.guid) is vm,
                vm.power,
                len(vm.seeds_at_starts),
            )

        return Sshd.open(guest.answers, guest.disc.user, guest.disc.keys, machine, current_run)


class DualBootAnswers(LinuxAnswers):
    """Answers for the Linux beside Windows. Its restart is a restart of the machine."""

    def __init__(self, host: Machine, installed: InstalledLinux) -> None:
        machine_id, memory = uuid5(NAMESPACE_OID, host.name).hex, host.instances("Memory")[0].state["total"]
        traits: dict[str, Json] = {"secure_boot": True, "virtualization": "none", "pci_hyperv": None}
        super().__init__(_ubuntu(host, GuestGpus(host), installed, machine_id, memory, **traits))
        self._host = host
        self.linux.reboot = host.restart
        self._timer: int | None = None

    def catch_up(self) -> None:
        """Apply the starts that the machine has counted."""
        self.machine.boot = self._host.dual_boot.starts
        super().catch_up()

    def answer(self, program: str, json_text: str, connection: int) -> str:
        """Answer a request; unlike other Linuxes, also for the program of `winhost boot`."""
        if program != "boot":
            return super().answer(program, json_text, connection)
        boot, request = self._host.part(FirmwarePart).boot, json.loads(json_text)
        self._timer = request.get("timer", self._timer)
        if request.get("to") == "linux":
            boot["next"] = boot["current"]
        if request.get("to") == "windows":
            boot["next"] = next(each["entry"] for each in boot["entries"] if each["path"] == WINDOWS_LOADER)
        self.catch_up()
        state = {name: boot[name] for name in ("current", "next", "order", "entries")}
        if request.get("restart"):
            self._host.restart()
        state = {"ok": True, "boot_id": self.linux.boot_id, **state, "timer": self._timer}
        return json.dumps({"answers": [state]})


class DualBootLinux:
    """The Linux beside Windows on one machine. Each installation is a new Linux."""

    def __init__(self, host: Machine) -> None:
        self._host = host
        self._known_guests: tuple[InstalledLinux, DualBootAnswers] | None = None

    def find_sshd(self) -> Sshd | None:
        """Return the SSH server; None while Windows runs."""
        installed = self._host.dual_boot.installed
        if not self._host.dual_boot.runs or installed is None:
            return None
        if self._known_guests is None or self._known_guests[0] is not installed:
            self._known_guests = (installed, DualBootAnswers(self._host, installed))
        answers = self._known_guests[1]
        answers.catch_up()
        turn = self._host.dual_boot
        return Sshd.open(answers, installed.user, installed.keys, self._host, lambda: (turn.runs, turn.starts))
