"""Discrete Device Assignment: its settings, and what a plan decides for it."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property

from pydantic import Field

from winhost.core.answers import Json, MissingFact, RemoteFault, Unavailable, Unknown
from winhost.core.dataclass import dataclass
from winhost.core.steps import DesiredResource
from winhost.hardware import mmio
from winhost.hardware.host_gpus import gpu_name
from winhost.model.errors import visible
from winhost.model.facts import Instance
from winhost.model.plan import PlanRequest
from winhost.model.units import Bytes, mib, size
from winhost.model.written import Closed
from winhost.paths.dda_windows import AskedInVain, MmioWindows, Selection, choose_vm, windows
from winhost.paths.linux import (
    ContainersInside,
    DriverChoice,
    LinuxDecisions,
    LinuxSettings,
    ListOf,
    refuse_mixed,
    wanted_driver,
)
from winhost.paths.never_sleep import power_plans
from winhost.paths.new_vm import ComingVm, NewVm, desired_vm, guest_of, made_vm, staged, the_made_vm
from winhost.paths.setting_values import PublishedEndpoint
from winhost.paths.vm_guest import GuestDecisions, Item, awaited, refuse_without_pci
from winhost.paths.vm_network import forwards, nats_to_make, vm_network
from winhost.resources.host import Gpu, HostFacts
from winhost.resources.linux.packages import AptPackages
from winhost.resources.linux.read_only import LinuxGpu, LinuxGpuDriver
from winhost.resources.linux.system import ShownGpus
from winhost.resources.windows.assignable_device import DISMOUNTED, AssignableDevice, assigned
from winhost.resources.windows.pci_device import PciDevice, pci_id
from winhost.resources.windows.vm_settings import RUNNING, VmMmio, VmPower

# ---- settings


class DdaSettings(Closed):
    """`settings` of the playbook, or `winhost plan --set NAME=VALUE`."""

    never_sleep: bool = False
    """Whether the active power plan is set never to sleep or hibernate on AC power."""
    address_width: int | None = Field(default=None, ge=32, le=64)
    """Physical address bits of the host's processors, which Windows does not report: as Start-VM has said, or the
    documents of the processor. Left out, by the model of the processors where that is known.
    """
    new_vm: NewVm | None = None
    """A VM that winhost makes for the GPUs. Left out, they go to one that is there already."""
    containers: LinuxSettings | None = None
    """What runs containers in the guest that winhost sets up, as the path linux has it. Left out: nothing, unless a
    workload is to be served there.
    """
    endpoint: PublishedEndpoint | None = None
    """What serves in the guest for other machines: behind NAT Windows forwards its port. `--workload` sets it."""


# ---- decisions


@dataclass(frozen=True)
class Chosen:
    """The sizes of the windows to set in bytes, with the reasons."""

    high: Bytes
    low: Bytes
    why: str


@dataclass(frozen=True)
class GpuFunction:
    """A PCI function of a GPU."""

    location: str
    device: str
    name: str


class DdaDecisions(ContainersInside):
    """The decisions that the playbook of this path may refer to. Each is computed when it is read: before the Hyper-V
    role is there, `vm` cannot be, and the entries that ask for it wait for the next stage.
    """

    def __init__(self, facts: HostFacts, request: PlanRequest, settings: DdaSettings, gpus: tuple[Gpu, ...]) -> None:
        self._facts = facts
        self._settings = settings
        self._request = request
        self._gpus = gpus

    @cached_property
    def selection(self) -> Selection:
        new = self._settings.new_vm
        vm = choose_vm(self._facts, self._request.vm) if new is None else the_made_vm(self._facts, new)
        return Selection(self._gpus, vm)

    @cached_property
    def new_vms(self) -> tuple[Mapping[str, Json], ...]:
        """The one that is to be made, if one is."""
        new = self._settings.new_vm
        return () if new is None else (desired_vm(self._facts, new),)

    @cached_property
    def nat_switches(self) -> tuple[Mapping[str, Json], ...]:
        """A network behind NAT for the new VM, where winhost makes one."""
        new = self._settings.new_vm
        return () if new is None else nats_to_make(vm_network(self._facts, new.name, new), self._facts)

    @cached_property
    def guest_forwards(self) -> tuple[Mapping[str, Json], ...]:
        """The port forwardings that reach the new VM behind NAT."""
        new = self._settings.new_vm
        if new is None:
            return ()
        return forwards(self._facts, vm_network(self._facts, new.name, new), new, self._settings.endpoint)

    @cached_property
    def new_images(self) -> tuple[Mapping[str, str], ...]:
        new = self._settings.new_vm
        return () if new is None else (staged(new),)

    @cached_property
    def _guest(self) -> GuestDecisions | None:
        new = self._settings.new_vm
        return None if new is None else guest_of(self._facts, new)

    @property
    def seeds(self) -> tuple[Item, ...]:
        """Raises UsageError (NoDriver) for GPUs of which that is known before."""
        if not self._guest:
            return ()
        refuse_mixed(self._devices)
        return self._guest.seeds

    known_guests, guests = ListOf("_guest"), ListOf("_guest")
    first_keys, own_keys = ListOf("_guest"), ListOf("_guest")

    @cached_property
    def drivers(self) -> tuple[DriverChoice, ...]:
        """The guest's driver, chosen by the PCI ids that the host reads: the guest has no PCI bus yet."""
        if not self._guest:
            return ()
        if not self._guest.is_ready:
            raise awaited()
        refuse_without_pci(self._facts)
        chosen = wanted_driver(self._facts, self._devices)
        return (chosen,) if chosen else ()

    @property
    def _devices(self) -> list[str]:
        return [gpu.pci.key["device"] for gpu in self._gpus]

    @cached_property
    def vm(self) -> Mapping[str, str]:
        new = self._settings.new_vm
        if new is not None and made_vm(self._facts, new) is None:
            return ComingVm(name=new.name)
        vm = self.selection.vm
        assert vm is not None
        return {"id": vm.key["vm"], "name": visible(vm.state.name)}

    @cached_property
    def mmio(self) -> Chosen:
        """The computed windows, or the user's, which `check` checks. Raises MmioRefused where none hold the GPUs."""
        needed = self._windows
        high = max(needed.high.size, self._grown.high) if self._request.high is None else self._request.high
        low = max(needed.low.size, self._grown.low) if self._request.low is None else self._request.low
        why = f"High window {size(high)}, nothing below {mib(needed.high.floor)} works. {needed.high.why}"
        return Chosen(high, low, " ".join((why, *needed.high.doubts)))

    @cached_property
    def _windows(self) -> MmioWindows:
        return windows(self._facts, self.selection, self._lacking)

    @property
    def _grown(self) -> AskedInVain:
        """The windows of our own guest once it has its GPUs: it may have asked for more than is known."""
        with suppress(MissingFact):
            window = self._facts.of(VmMmio, {"vm": self.vm["id"]})
            if self._guest and window is not None and self._has_all:
                return AskedInVain(window.high, window.low)
        return AskedInVain(0, 0)

    @property
    def _has_all(self) -> bool:
        return all(self._facts.place(gpu.pci) == self.place["assigned"] for gpu in self._gpus)

    @property
    def _lacking(self) -> Mapping[str, AskedInVain]:
        """The MMIO space that the guest asked for in vain, by location, for GPUs that it has and does not see."""
        with suppress(MissingFact):
            shown = self._facts.the(ShownGpus)
            asked = AskedInVain(shown.needed_high or 0, shown.needed_low or 0)
            if self._guest and asked != AskedInVain(0, 0):
                seen = [inside.state.device for inside in self._facts.all(LinuxGpu)]
                return {gpu.location: asked for gpu in self._gpus if pci_id(gpu.pci.key["device"]) not in seen}
        return {}

    @property
    def shown_gpus(self) -> tuple[Mapping[str, Json], ...]:
        """The number of GPUs that the guest's driver shall show once it has them, at the addresses where it
        runs them.
        """
        if not self._guest:
            return ()
        self._await_gpus()
        if not self.drivers and not self._has_other_driver:
            return ()
        return ({"count": len(self._gpus), "loaded": True, "unplaced": 0},)

    @property
    def _has_other_driver(self) -> bool:
        """One that winhost did not choose; packages alone may be parts of it that drive nothing."""
        driver = self._facts.the(LinuxGpuDriver)
        return bool(driver.loaded or driver.installed)

    def _await_gpus(self) -> None:
        """Raises MissingFact until the VM has all of them."""
        if not self._has_all:
            raise MissingFact("ShownGpus", Unavailable(AssignableDevice.resource_type.name))

    @cached_property
    def inside(self) -> LinuxDecisions | None:
        """The decisions about containers in the guest, if any are wanted. Raises MissingFact before the guest is set
        up.
        """
        if not self._guest or self._settings.containers is None:
            return None
        if not self._guest.is_ready:
            raise awaited()
        return LinuxDecisions(self._facts, self._settings.containers)

    @property
    def specs(self) -> tuple[Mapping[str, str], ...]:
        """The CDI specifications of the GPUs, once the guest has them: without a GPU there is nothing to list."""
        if self.inside is None:
            return ()
        self._await_gpus()
        return ({"title": "The GPUs, for containers"},)

    @property
    def serving_guests(self) -> tuple[Item, ...]:
        """The guest once its driver shows all GPUs: what serves starts only then. Raises MissingFact before."""
        if not self._guest:
            return ()
        if not self._guest.is_ready or not self._has_all or self._facts.the(ShownGpus).count != len(self._gpus):
            raise MissingFact("ShownGpus", Unavailable(ShownGpus.resource_type.name))
        return ({"name": self.vm["name"]},)

    def check(self, desired: Iterable[DesiredResource]) -> None:
        """Check that the desired windows hold the GPUs, whatever their source. Raises MmioRefused."""
        with suppress(MissingFact):
            self._check_asked()
        for each in desired:
            if each.resource == VmMmio.resource_type.name and each.key["vm"] == self.vm["id"]:
                if "high" in each.desired:
                    self._check_high(each.desired["high"], self._windows)
                if "low" in each.desired:
                    mmio.check_low(each.desired["low"], self._windows.low)

    def _check_high(self, asked: Bytes, needed: MmioWindows) -> None:
        mmio.check_high(asked, needed.high, allow_unverified=self._request.allow_unverified)

    def _check_asked(self) -> None:
        """Before the VM can be read: the chosen GPUs' need is a minimum, whatever else the VM has."""
        if self._request.high is not None:
            self._check_high(self._request.high, windows(self._facts, Selection(self._gpus, None)))
        if self._request.low is not None:
            mmio.check_low(self._request.low, windows(self._facts, Selection(self._gpus, None)).low)

    @cached_property
    def place(self) -> Mapping[str, str]:
        return {"assigned": assigned(self.vm["id"]), "dismounted": DISMOUNTED}

    @cached_property
    def power_plans(self) -> tuple[Mapping[str, str], ...]:
        return power_plans(self._facts, self._settings.never_sleep)

    @cached_property
    def gpus(self) -> tuple[GpuFunction, ...]:
        """A guest of our own is set up, and has its driver, before it gets any."""
        for driver in self.drivers:
            installed = self._facts.of(AptPackages, {"packages": driver.packages})
            if installed is None or installed.installed is not True:
                raise MissingFact("LinuxGpuDriver", Unavailable(LinuxGpuDriver.resource_type.name))
        return tuple(_function(gpu.pci, gpu_name(gpu)) for gpu in self._gpus)

    @cached_property
    def companions(self) -> tuple[GpuFunction, ...]:
        _ = self.gpus
        gpus = ((gpu, other) for gpu in self._gpus for other in gpu.companions)
        return tuple(_function(other, f"{gpu_name(gpu)}, its {other.state.kind} function") for gpu, other in gpus)

    @cached_property
    def power(self) -> str:
        """The power state after the run: as found, unless the user asks for another; one that was made runs."""
        if self._guest and not self._guest.is_ready:
            _ = self.vm["id"]
            return RUNNING
        if self._request.power != "as-found":
            return self._request.power
        if self._settings.new_vm is not None:
            _ = self.vm["id"]
            return RUNNING
        found = self._facts.of(VmPower, {"vm": self.vm["id"]})
        if found is None:
            gone = RemoteFault("ObjectNotFound", message=f"nothing is told of the VM {self.vm['name']}")
            raise MissingFact("VmPower", Unknown(gone))
        return found.state


def _function(device: Instance[PciDevice], name: str) -> GpuFunction:
    return GpuFunction(device.key["location"], device.key["device"], name)
