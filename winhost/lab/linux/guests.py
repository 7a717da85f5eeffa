"""The Linuxes in VMs that winhost made on a simulated host, set up by the discs that they found when they started."""

from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from uuid import UUID

from winhost.core.answers import Json, Record
from winhost.core.dataclass import dataclass
from winhost.lab.linux.linux_answers import LinuxAnswers, Sshd
from winhost.lab.linux.linux_machine import Linux
from winhost.lab.physics.guest_disc import GuestDisc, read_disc
from winhost.lab.physics.parts import Part
from winhost.lab.physics.pci_function import Device
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.ssh_keys import seed_of
from winhost.lab.physics.virtual_machine import VirtualMachine
from winhost.lab.physics.wsl_session import Distro
from winhost.model.facts import Facts

NO_MORE = "/etc/cloud/cloud-init.disabled"
_KERNEL = "6.8.0-87-generic"  # of Ubuntu's server image for clouds


class SeenGpus(Part):
    """NVIDIA's GPUs that a guest sees: each in a PCI domain of its own, in the windows that its VM has for them."""

    def __init__(self, host: Machine, vm: VirtualMachine) -> None:
        super().__init__(host)
        self._host, self._vm = host, vm

    def records(self) -> Mapping[str, Callable[[], Iterator[Record]]]:
        """The calls that list the instances."""
        return {"LinuxGpu": self._gpus, "MmioNeed": self._lacks}

    def _lacks(self) -> Iterator[Record]:
        """Yield the kernel's report of devices for which there was no room."""
        lacks = self._host.guest_lacks(self._vm.guid) if self._vm.guid in self._host.vms else {}
        if lacks:
            yield Record({"high": lacks.get("high"), "low": lacks.get("low")})

    def _gpus(self) -> Iterator[Record]:
        if self._vm.guid not in self._host.vms:
            return
        seen = self._host.guest_sees(self._vm.guid)
        for number, device in enumerate(each for each in self._host.devices if each.location in seen):
            if (state := linux_gpu(device)) is not None:
                yield Record(state, {"address": f"{number + 1:04x}:00:00.0"})


def linux_gpu(device: Device) -> Mapping[str, Json] | None:
    """An NVIDIA GPU as a Linux without a driver sees it."""
    ids = str(device.key["device"]).split("&")
    if ids[0] != "VEN_10DE" or not device.bars.wide:
        return None
    told = {"vram": device.known_or("vram", None)}  # the driver of Linux will say what that of Windows said
    return {**_NO_DRIVER, **told, "device": f"10de:{ids[1].removeprefix('DEV_').lower()}", "bars": _bars(device)}


_NO_DRIVER: Mapping[str, Json] = {"driver": None, "numa": 0, "name": None, "uuid": None, "vram": None}


def _bars(device: Device) -> list[dict[str, Json]]:
    sizes = [*((size, False) for size in device.bars.narrow), *((size, True) for size in device.bars.wide)]
    return [
        {"index": index, "start": 1 << 40, "size": size, "prefetchable": wide}
        for index, (size, wide) in enumerate(sizes)
    ]


def ubuntu(machine: str, memory: Json, *, secure_boot: bool) -> dict[str, Json]:
    """The state of an Ubuntu 24.04, by its machine id and bytes of memory."""
    return {
        "id": "ubuntu",
        "version": "24.04",
        "kernel": _KERNEL,
        "architecture": "x86_64",
        "wsl": False,
        "wsl_networking": None,
        "systemd": True,
        "machine_id": machine,
        "simulated": True,
        "secure_boot": secure_boot,
        "cgroups": 2,
        "memory": memory,
        "shm": memory // 2,
    }


def _own_machine(host: Machine, vm: VirtualMachine, disc: GuestDisc) -> Machine:
    """The machine of a Linux from Ubuntu's image."""
    system = ubuntu(UUID(vm.guid).hex, vm.startup, secure_boot=bool(vm.traits["secure_boot"]))
    system |= {"virtualization": "microsoft", "pci_hyperv": host.lab.new_vms.takes_devices}
    facts = Facts(disc.hostname, "synthetic", "", "", {"LinuxSystem": (Record(system),)})
    machine = Machine(facts, clock=host.clock)
    machine.parts.insert(0, SeenGpus(host, vm))
    return machine


@dataclass
class GuestLinux:
    """The Linux of one VM. disc: what it was told on its first start."""

    vm: VirtualMachine
    disc: GuestDisc
    answers: LinuxAnswers
    seen: int = 1
    """Starts of the VM so far."""

    @property
    def distro(self) -> Distro:
        return self.answers.linux.distro

    def look(self) -> None:
        """Catch up with each start that has happened since."""
        for found in self.vm.discs[self.seen :]:
            self.seen += 1
            self.answers.machine.boot += 1
            self._start(found)
        self.answers.look()

    def _start(self, found: bytes | None) -> None:
        """cloud-init takes a start for that of another machine where it runs and does not find the same seed."""
        if self.answers.linux.file(NO_MORE)["text"] is not None:
            return
        if found is None or read_disc(found).instance != self.disc.instance:
            self.distro.own_seed = sha256(b"made anew" + self.distro.seed).digest()


class GuestsOfHost:
    """The guests of one host, by the ids of their VMs."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._known: dict[str, GuestLinux] = {}

    def guest(self, vm: VirtualMachine) -> GuestLinux | None:
        """None where nothing on its disk would ever answer."""
        disc = self._machine.disc_of(vm)
        if disc is None:
            return None
        if vm.guid not in self._known:
            distro = Distro(disc.hostname, "", running=True, systemd=True, sshd=True, enabled=True)
            distro.port, distro.listen = 22, "0.0.0.0"  # noqa: S104 - simulated
            distro.keys, distro.own_seed = list(disc.keys), seed_of(disc.private)
            self._known[vm.guid] = GuestLinux(
                vm, disc, LinuxAnswers(Linux(_own_machine(self._machine, vm, disc), distro, own=True))
            )
            vm.holds = self._known[vm.guid].answers.linux.disk.size
        found = self._known[vm.guid]
        found.look()
        return found

    def own_key(self, vm: VirtualMachine) -> bool:
        """Tell whether the guest shows a host key that it made itself."""
        guest = self.guest(vm)
        return guest is not None and guest.distro.host_key != guest.disc.public

    def listening(self) -> Sshd | None:
        """Return the SSH server of the first guest that runs."""
        machine = self._machine
        if not machine.accepting():
            return None
        for vm in machine.vms.values():
            guest = self.guest(vm) if vm.power == "running" else None
            if guest is not None:
                return self._sshd(guest)
        return None

    def _sshd(self, guest: GuestLinux) -> Sshd:
        machine, vm, starts, boot = self._machine, guest.vm, len(guest.vm.discs), self._machine.boot

        def up() -> bool:
            here = machine.accepting() and machine.boot == boot and vm.guid in machine.vms
            return here and vm.power == "running" and len(vm.discs) == starts

        return Sshd(guest.answers, guest.disc.user, tuple(guest.disc.keys), machine, up, guest.answers.came_in())
