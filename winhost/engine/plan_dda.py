"""Plan a path that assigns GPUs to a VM: choose the GPUs and the VM, and compute the decisions of the playbook."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from shlex import quote

from winhost.compat.assess import choose_compatible_gpus, default_gpus, judge, reasons_against_sharing
from winhost.core.answers import Id, Json, MissingFact, RemoteFault, Unavailable, Unknown, identity, if_known
from winhost.core.dataclass import dataclass
from winhost.core.steps import DesiredResource
from winhost.engine.path_planner import PathPlanner
from winhost.hardware import mmio
from winhost.hardware.host_gpus import gpu_name
from winhost.hardware.mmio import FailedMmioRequest, MmioWindows, mmio_windows
from winhost.hardware.processors import with_address_width
from winhost.model.errors import NotOnHost, UsageError, format_choices, visible
from winhost.model.facts import Instance
from winhost.model.plan import Deferred, PlanRequest, Unchecked, sort_risks
from winhost.model.reason import Caution, Finding, PathVerdict, Severity, SubjectVerdict, Verdict
from winhost.model.units import Bytes, mib, parse_size, size
from winhost.paths.dda_settings import DdaSettings
from winhost.paths.linux import (
    ContainersInside,
    DriverChoice,
    LinuxDecisions,
    PartList,
    refuse_mixed_gpus,
    select_driver,
)
from winhost.paths.never_sleep import facts_kept_awake, power_plans, sleep_cautions
from winhost.paths.new_vm import (
    UPLOAD_BY_HTTP,
    ComingVm,
    desired_vm,
    find_own_vm,
    get_own_vm,
    guest_decisions,
    numa_cautions,
    staged_disk_image,
)
from winhost.paths.playbook import PathRequest
from winhost.paths.vm_guest import GuestDecisions, Item, guest_not_ready, refuse_without_pci_driver
from winhost.paths.vm_network import guest_forwards, nats_to_make, vm_network
from winhost.resources.host import Gpu, HostFacts, Selection
from winhost.resources.linux.packages import AptPackages
from winhost.resources.linux.read_only import LinuxGpu, LinuxGpuDriver
from winhost.resources.linux.system import ShownGpus
from winhost.resources.windows.pci_device import PciDevice, pci_id
from winhost.resources.windows.read_only import Vm
from winhost.resources.windows.vms import DISMOUNTED, RUNNING, AssignableDevice, VmMmio, VmPower, assignment_to

_DOUBTFUL = Verdict.UNVERIFIED.rank

# ---- which GPUs go to which VM


class VmNotNamed(UsageError):
    """The path needs a VM and the user named none. verdicts: on each VM, if they were judged."""

    def __init__(self, host: str, known: Mapping[str, str], verdicts: Mapping[str, str] | None = None) -> None:
        judged = {vm: f" ({verdict})" for vm, verdict in (verdicts or {}).items()}
        vms = format_choices({vm: name + judged.get(vm, "") for vm, name in known.items()})
        super().__init__(
            "WhichVm",
            what=f"{host} has {len(known)} VMs: choose the one that gets the GPUs",
            hint=f"Add --vm with a name or id:\n{vms}"
            if known
            else "Have one made with --new-vm NAME, or create it on the host (generation 2), then plan again.",
            host=host,
        )
        self.known = known


def choose_vm(facts: HostFacts, requested: str | None) -> Instance[Vm]:
    """Choose the VM by GUID or exact name, or the only one if none is named. Raises NotOnHost, VmNotNamed,
    MissingFact.
    """
    names = {vm.key["vm"]: vm.state.name for vm in facts.vms}
    if requested is None:
        if len(names) != 1:
            raise VmNotNamed(facts.host, names)
        return facts.vms[0]
    matches = [vm for vm in facts.vms if vm.key["vm"] == requested.strip("{}").lower()]
    matches = matches or [vm for vm in facts.vms if vm.state.name == requested]
    if len(matches) != 1:
        raise NotOnHost(facts.host, "VM", requested, names, several=bool(matches))
    return matches[0]


def choose_gpus(facts: HostFacts, requested: tuple[str, ...]) -> tuple[Gpu, ...]:
    """Choose GPUs by location path or exact name. Raises NotOnHost."""
    names = {gpu.location: gpu.pci.state.name for gpu in facts.gpus}
    chosen: dict[str, Gpu] = {}
    for name in requested:
        matches = [gpu for gpu in facts.gpus if name in (gpu.location, gpu.pci.key["location"])]
        matches = matches or [gpu for gpu in facts.gpus if gpu.pci.state.name.casefold() == name.casefold()]
        if len(matches) != 1:
            raise NotOnHost(facts.host, "GPU", name, names, several=bool(matches))
        chosen[matches[0].location] = matches[0]
    return tuple(chosen[location] for location in sorted(chosen))


# ---- decisions


@dataclass(frozen=True)
class ChosenWindows:
    """The sizes of the MMIO windows to set, in bytes, with the reasons."""

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
    """The decisions that the playbook of this path may refer to. Each is computed when it is read. Before the Hyper-V
    role is installed, for example, `vm` raises MissingFact, and the entries that refer to it wait for the next stage.
    """

    def __init__(self, facts: HostFacts, request: PlanRequest, settings: DdaSettings, gpus: tuple[Gpu, ...]) -> None:
        self._facts = facts
        self._settings = settings
        self._request = request
        self._gpus = gpus

    @cached_property
    def selection(self) -> Selection:
        new = self._settings.new_vm
        vm = choose_vm(self._facts, self._request.vm) if new is None else get_own_vm(self._facts, new)
        return Selection(self._gpus, vm)

    @cached_property
    def new_vms(self) -> tuple[Mapping[str, Json], ...]:
        """The VM to make, if any."""
        new = self._settings.new_vm
        return () if new is None else (desired_vm(self._facts, new),)

    @cached_property
    def nat_switches(self) -> tuple[Mapping[str, Json], ...]:
        """The network behind NAT for the new VM, if winhost makes one."""
        new = self._settings.new_vm
        return () if new is None else nats_to_make(vm_network(self._facts, new.name, new), self._facts)

    @cached_property
    def guest_forwards(self) -> tuple[Mapping[str, Json], ...]:
        """The port forwardings that reach the new VM behind NAT."""
        new = self._settings.new_vm
        if new is None:
            return ()
        return guest_forwards(self._facts, vm_network(self._facts, new.name, new), new, self._settings.endpoint)

    @cached_property
    def new_images(self) -> tuple[Mapping[str, str], ...]:
        new = self._settings.new_vm
        return () if new is None else (staged_disk_image(new),)

    @cached_property
    def _guest(self) -> GuestDecisions | None:
        new = self._settings.new_vm
        return None if new is None else guest_decisions(self._facts, new)

    @property
    def seeds(self) -> tuple[Item, ...]:
        """The seed of the guest. Raises UsageError (NoDriver) for GPUs that no driver supports together."""
        if not self._guest:
            return ()
        refuse_mixed_gpus(self._devices)
        return self._guest.seeds

    known_guests, guests = PartList("_guest"), PartList("_guest")
    first_keys, own_keys = PartList("_guest"), PartList("_guest")

    @cached_property
    def drivers(self) -> tuple[DriverChoice, ...]:
        """The guest's driver, chosen by the PCI ids that the host reads: the guest may not have the GPUs yet."""
        if not self._guest:
            return ()
        if not self._guest.is_ready:
            raise guest_not_ready()
        refuse_without_pci_driver(self._facts)
        chosen = select_driver(self._facts, self._devices)
        return (chosen,) if chosen else ()

    @property
    def _devices(self) -> list[str]:
        return [gpu.pci.key["device"] for gpu in self._gpus]

    @cached_property
    def vm(self) -> Mapping[str, str]:
        new = self._settings.new_vm
        if new is not None and find_own_vm(self._facts, new) is None:
            return ComingVm(name=new.name)
        vm = self.selection.vm
        assert vm is not None
        return {"id": vm.key["vm"], "name": visible(vm.state.name)}

    @cached_property
    def mmio(self) -> ChosenWindows:
        """The requested windows, which `check` checks, or else computed ones. Raises MmioRefused if no window can hold
        the GPUs.
        """
        needed = self._windows
        high = max(needed.high.size, self._windows_in_use.high) if self._request.high is None else self._request.high
        low = max(needed.low.size, self._windows_in_use.low) if self._request.low is None else self._request.low
        why = f"High window {size(high)}, nothing below {mib(needed.high.floor)} works. {needed.high.why}"
        return ChosenWindows(high, low, " ".join((why, *needed.high.doubts)))

    @cached_property
    def _windows(self) -> MmioWindows:
        return mmio_windows(self._facts, self.selection, self._unmet_requests)

    @property
    def _windows_in_use(self) -> FailedMmioRequest:
        """The present windows of our own guest once it has its GPUs: they may be larger than computed, because the
        guest reported that it needs more.
        """
        with suppress(MissingFact):
            window = self._facts.find(VmMmio, {"vm": self.vm["id"]})
            if self._guest and window is not None and self._has_all_gpus:
                return FailedMmioRequest(window.high, window.low)
        return FailedMmioRequest(0, 0)

    @property
    def _has_all_gpus(self) -> bool:
        return all(self._facts.assignment(gpu.pci) == self.assignment["assigned"] for gpu in self._gpus)

    @property
    def _unmet_requests(self) -> Mapping[str, FailedMmioRequest]:
        """The MMIO space that the guest could not get for GPUs that it has and does not show, by location path."""
        with suppress(MissingFact):
            shown = self._facts.the(ShownGpus)
            unmet = FailedMmioRequest(shown.needed_high or 0, shown.needed_low or 0)
            if self._guest and unmet != FailedMmioRequest(0, 0):
                visible_devices = [inside.state.device for inside in self._facts.all(LinuxGpu)]
                return {
                    gpu.location: unmet for gpu in self._gpus if pci_id(gpu.pci.key["device"]) not in visible_devices
                }
        return {}

    @property
    def shown_gpus(self) -> tuple[Mapping[str, Json], ...]:
        """The number of GPUs that the guest's driver is expected to show once the VM has them all."""
        if not self._guest:
            return ()
        self._require_gpus()
        if not self.drivers and not self._has_other_driver:
            return ()
        return ({"count": len(self._gpus), "loaded": True, "unplaced": 0},)

    @property
    def _has_other_driver(self) -> bool:
        """True if the guest has a driver that winhost did not choose. Some packages of a driver alone do not count."""
        driver = self._facts.the(LinuxGpuDriver)
        return bool(driver.loaded or driver.installed)

    def _require_gpus(self) -> None:
        """Raise MissingFact unless the VM has all GPUs."""
        if not self._has_all_gpus:
            raise MissingFact("ShownGpus", Unavailable(AssignableDevice.resource_type.name))

    @cached_property
    def inside(self) -> LinuxDecisions | None:
        """The decisions about containers in the guest, if the settings ask for them. Raises MissingFact before the
        guest is set up.
        """
        if not self._guest or self._settings.containers is None:
            return None
        if not self._guest.is_ready:
            raise guest_not_ready()
        return LinuxDecisions(self._facts, self._settings.containers)

    @property
    def specs(self) -> tuple[Mapping[str, str], ...]:
        """The CDI specifications of the GPUs. Raises MissingFact before the guest has them."""
        if self.inside is None:
            return ()
        self._require_gpus()
        return ({"title": "The GPUs, for containers"},)

    @property
    def serving_guests(self) -> tuple[Item, ...]:
        """The guest, in which engines are started once its driver shows all GPUs. Raises MissingFact before."""
        if not self._guest:
            return ()
        if not self._guest.is_ready or not self._has_all_gpus or self._facts.the(ShownGpus).count != len(self._gpus):
            raise MissingFact("ShownGpus", Unavailable(ShownGpus.resource_type.name))
        return ({"name": self.vm["name"]},)

    def check(self, desired: Iterable[DesiredResource]) -> None:
        """Check that the desired windows hold the GPUs, whatever their source. Raises MmioRefused."""
        with suppress(MissingFact):
            # Also before the VM can be read: the chosen GPUs need a minimum, whatever else the VM has.
            if self._request.high is not None:
                self._check_high(self._request.high, mmio_windows(self._facts, Selection(self._gpus, None)))
            if self._request.low is not None:
                mmio.check_low(self._request.low, mmio_windows(self._facts, Selection(self._gpus, None)).low)
        for each in desired:
            if each.resource == VmMmio.resource_type.name and each.key["vm"] == self.vm["id"]:
                if "high" in each.desired:
                    self._check_high(each.desired["high"], self._windows)
                if "low" in each.desired:
                    mmio.check_low(each.desired["low"], self._windows.low)

    def _check_high(self, high: Bytes, needed: MmioWindows) -> None:
        mmio.check_high(high, needed.high, allow_unverified=self._request.allow_unverified)

    @cached_property
    def assignment(self) -> Mapping[str, str]:
        return {"assigned": assignment_to(self.vm["id"]), "dismounted": DISMOUNTED}

    @cached_property
    def power_plans(self) -> tuple[Mapping[str, str], ...]:
        return power_plans(self._facts, self._settings.never_sleep)

    @cached_property
    def gpus(self) -> tuple[GpuFunction, ...]:
        """The GPUs to assign. Raises MissingFact until our own guest is set up and has its driver."""
        for driver in self.drivers:
            installed = self._facts.find(AptPackages, {"packages": driver.packages})
            if installed is None or installed.installed is not True:
                raise MissingFact("LinuxGpuDriver", Unavailable(LinuxGpuDriver.resource_type.name))
        return tuple(_gpu_function(gpu.pci, gpu_name(gpu)) for gpu in self._gpus)

    @cached_property
    def companions(self) -> tuple[GpuFunction, ...]:
        _ = self.gpus
        gpus = ((gpu, other) for gpu in self._gpus for other in gpu.companions)
        return tuple(_gpu_function(other, f"{gpu_name(gpu)}, its {other.state.kind} function") for gpu, other in gpus)

    @cached_property
    def power(self) -> str:
        """The power state of the VM after the run: the requested one, else the present one. A VM that winhost made
        runs.
        """
        if self._guest and not self._guest.is_ready:
            _ = self.vm["id"]
            return RUNNING
        if self._request.power != "as-found":
            return self._request.power
        if self._settings.new_vm is not None:
            _ = self.vm["id"]
            return RUNNING
        vm_power = self._facts.find(VmPower, {"vm": self.vm["id"]})
        if vm_power is None:
            fault = RemoteFault("ObjectNotFound", message=f"the host lists no state of the VM {self.vm['name']}")
            raise MissingFact("VmPower", Unknown(fault))
        return vm_power.state


def _gpu_function(device: Instance[PciDevice], name: str) -> GpuFunction:
    return GpuFunction(device.key["location"], device.key["device"], name)


# ---- the planner


class DdaPlanner(PathPlanner[DdaSettings]):
    """Plans Discrete Device Assignment on one host."""

    settings_type = DdaSettings

    def __init__(self, facts: HostFacts, request: PathRequest) -> None:
        super().__init__(facts, request)
        self._facts = with_address_width(facts, self._settings.address_width)

    @cached_property
    def verdict(self) -> PathVerdict:
        """The verdict on exactly the chosen GPUs and VM. Raises NotOnHost, VmNotNamed, MissingFact."""
        planned = facts_kept_awake(self._facts, self._settings.never_sleep)
        return judge(planned, self._request.path, Selection(self.gpus, self._vm))

    @cached_property
    def decisions(self) -> DdaDecisions:
        return DdaDecisions(self._facts, self._request, self._settings, self.gpus)

    @property
    def cautions(self) -> tuple[Caution, ...]:
        """Cautions about a host that never sleeps, a large window, a new VM on several sockets, and GPUs that stay on
        the host although they could be assigned, if the user named none.
        """
        general = tuple(sleep_cautions(self._facts, self._request.path, self._settings.never_sleep))
        if self._request.high is not None and (above := mmio.cap_warning(self._request.high)):
            general += (Caution("mmio.over-cap", Severity.UNVERIFIED, above),)
        if (new_vm := self._settings.new_vm) is not None:
            general += tuple(numa_cautions(self._facts, self.gpus, parse_size(new_vm.memory), new_vm.cpus))
        if self._request.gpus:
            return general
        going = {gpu.location for gpu in self.gpus}
        spoiling_findings = reasons_against_sharing(self._facts, self._default)
        default_locations = {gpu.location for gpu in self._default}  # GPUs that could be assigned alone
        judged = judge(self._facts, self._request.path).gpus
        able = (gpu for gpu in judged if gpu.verdict is not Verdict.UNSUPPORTED)
        staying = (gpu for gpu in able if gpu.key not in going)
        return general + tuple(
            _staying_caution(gpu, spoiling_findings if gpu.key in default_locations else ()) for gpu in staying
        )

    @property
    def choices(self) -> str | None:
        """The options that choose the first VM, and as many GPUs together with it, whose verdict is not doubtful."""
        for vm in self._candidate_vms():
            gpus = self._gpus_going_together(vm)
            if not gpus:
                continue
            vm_name = self._request.vm if vm is self._vm else vm.key["vm"]
            options = [f"--vm {quote(vm_name)}"] if vm_name else []
            options += [f"--gpu {quote(gpu.location)}" for gpu in gpus if gpus != self.gpus]
            return " ".join(options)
        return None

    def _candidate_vms(self) -> Iterator[Instance[Vm]]:
        """Yield the chosen VM, then the others whose verdict is not doubtful."""
        if self._vm:
            yield self._vm
        good = {each.key for each in judge(self._facts, self._request.path).vms if each.verdict.rank < _DOUBTFUL}
        yield from (vm for vm in self._facts.vms if vm is not self._vm and vm.key["vm"] in good)

    def _gpus_going_together(self, vm: Instance[Vm]) -> tuple[Gpu, ...]:
        judged = judge(self._facts, self._request.path).gpus
        gpus: tuple[Gpu, ...] = ()
        for gpu in default_gpus(self._facts, judged, vm.key["vm"]):
            verdict = judge(self._facts, self._request.path, Selection((*gpus, gpu), vm))
            gpus = (*gpus, gpu) if verdict.verdict.rank < _DOUBTFUL else gpus
        return gpus

    def check(self, desired: Iterable[DesiredResource]) -> None:
        """Check the desired windows. Raises MmioRefused."""
        self.decisions.check(desired)

    def risks(self) -> Mapping[Id, tuple[str, ...]]:
        """Return the consents that verdicts on GPUs ask for, by the resources that take their functions from the host;
        and the consent `network` for a file that the host downloads from this computer.
        """
        gpus = judge(self._facts, self._request.path).gpus
        risks = {gpu.key: {risk for reason in gpu.reasons for risk in reason.risks} for gpu in gpus}
        gpu_risks = {
            identity("AssignableDevice", function.key): sort_risks(risks.get(gpu.location, ()))
            for gpu in self._facts.gpus
            for function in gpu.functions
            if self._is_on_host(function)
        }
        new = self._settings.new_vm
        if (
            new is None
            or new.upload != UPLOAD_BY_HTTP
            or not new.disk_sha256
            or not staged_disk_image(new)["source"].startswith("./")
        ):
            return gpu_risks
        file = {part: staged_disk_image(new)[part] for part in ("sha256", "name", "source")}
        return {**gpu_risks, identity("StagedFile", file): ("network",)}

    def unchecked(self, deferred: Iterable[Deferred]) -> tuple[Unchecked, ...]:
        """Return the VM and the requested windows if VMs cannot be read yet."""
        try:
            _ = self._facts.vms
        except MissingFact as missing:
            if not isinstance(missing.missing, Unavailable):
                return ()
            sizes = {"high": self._request.high, "low": self._request.low}
            values = {"vm": self._request.vm, **{name: value for name, value in sizes.items() if value is not None}}
            return tuple(Unchecked(name, value, missing.missing.unavailable) for name, value in values.items())
        return ()

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that are assigned to the VM: the requested ones, else as many as can be assigned together without
        taking a display from the host.
        """
        if self._request.gpus:
            return choose_gpus(self._facts, self._request.gpus)
        return self._default if self._request.allow_unverified else choose_compatible_gpus(self._facts, self._default)

    @cached_property
    def _default(self) -> tuple[Gpu, ...]:
        judged = judge(self._facts, self._request.path).gpus
        return default_gpus(self._facts, judged, self._vm.key["vm"] if self._vm else None)

    @cached_property
    def _vm(self) -> Instance[Vm] | None:
        """The VM of the request; None if it does not exist yet, or if VMs cannot be read, which the rules report."""
        try:
            if self._settings.new_vm is not None:
                return find_own_vm(self._facts, self._settings.new_vm)
            return choose_vm(self._facts, self._request.vm)
        except VmNotNamed as which:
            judged = judge(self._facts, self._request.path).vms
            raise VmNotNamed(self._facts.host, which.known, {vm.key: vm.verdict for vm in judged}) from None
        except MissingFact:
            return None

    def _is_on_host(self, function: Instance[PciDevice]) -> bool:
        return (if_known(lambda: self._facts.assignment(function)) or "").startswith("host-")


def _staying_caution(gpu: SubjectVerdict, findings: Sequence[Finding]) -> Caution:
    """Make the caution about a GPU that stays on the host. findings: why it cannot be assigned with the others, if it
    could be assigned alone.
    """
    heaviest = max(gpu.reasons, key=lambda reason: reason.severity.rank, default=None)
    stays = f"{gpu.name} ({gpu.verdict}) stays where it is; to have it in the plan, name the GPUs with --gpu."
    if findings and gpu.verdict.rank < _DOUBTFUL:
        return Caution(findings[0].code, Severity.DEGRADED, f"{stays} Beside the others it is doubtful.")
    return Caution(heaviest.code if heaviest else "dda.assigned-elsewhere", Severity.NOTE, stays)
