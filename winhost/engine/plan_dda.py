"""Planning a path where GPUs leave the host: which go, what is said of them, and which consents they take."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from shlex import quote

from winhost.compat.assess import default_gpus, going_together, judge, spoiling
from winhost.core.answers import Id, MissingFact, Unavailable, identity, if_known
from winhost.core.steps import DesiredResource
from winhost.engine.path_planner import PathPlanner
from winhost.model.facts import Instance
from winhost.model.plan import Deferred, Unchecked, in_order
from winhost.model.reason import Caution, Finding, PathVerdict, Severity, SubjectVerdict, Verdict
from winhost.model.units import parse_size
from winhost.paths.dda import DdaDecisions, DdaSettings
from winhost.paths.dda_windows import Selection, VmNotNamed, cautions_of_high, choose_gpus, choose_vm, with_width
from winhost.paths.never_sleep import cautions_of_sleep, kept_awake
from winhost.paths.new_vm import FETCHED, made_vm, numa_cautions, staged
from winhost.paths.playbook import PathRequest
from winhost.resources.host import Gpu, HostFacts
from winhost.resources.windows.pci_device import PciDevice
from winhost.resources.windows.read_only import Vm

_DOUBTFUL = Verdict.UNVERIFIED.rank


class DdaPlanner(PathPlanner[DdaSettings]):
    """A request for Discrete Device Assignment on one host."""

    settings_type = DdaSettings

    def __init__(self, facts: HostFacts, request: PathRequest) -> None:
        super().__init__(facts, request)
        self._facts = with_width(facts, self._settings.address_width)

    @cached_property
    def verdict(self) -> PathVerdict:
        """The verdict on exactly the GPUs and the VM that are asked for. Raises NotOnHost, VmNotNamed, MissingFact."""
        planned = kept_awake(self._facts, self._settings.never_sleep)
        return judge(planned, self._request.path, Selection(self.gpus, self._vm))

    @cached_property
    def decisions(self) -> DdaDecisions:
        return DdaDecisions(self._facts, self._request, self._settings, self.gpus)

    @property
    def cautions(self) -> tuple[Caution, ...]:
        """The cautions about a host that never sleeps, a large window, a new VM on several sockets, and GPUs that could
        go and stay, because nobody named one.
        """
        general = tuple(cautions_of_sleep(self._facts, self._request.path, self._settings.never_sleep))
        general += tuple(cautions_of_high(self._request.high))
        if (asked := self._settings.new_vm) is not None:
            general += tuple(numa_cautions(self._facts, self.gpus, parse_size(asked.memory), asked.cpus))
        if self._request.gpus:
            return general
        going = {gpu.location for gpu in self.gpus}
        because = spoiling(self._facts, self._default)
        alone = {gpu.location for gpu in self._default}  # those that would go if the others did not
        judged = judge(self._facts, self._request.path).gpus
        able = (gpu for gpu in judged if gpu.verdict is not Verdict.UNSUPPORTED)
        staying = (gpu for gpu in able if gpu.key not in going)
        return general + tuple(_staying(gpu, because if gpu.key in alone else ()) for gpu in staying)

    @property
    def choices(self) -> str | None:
        """Options of the first VM, and of as many GPUs as go to it together, of which nothing is left to doubt."""
        for vm in self._vms():
            gpus = self._together(vm)
            if not gpus:
                continue
            asked = self._request.vm if vm is self._vm else vm.key["vm"]
            words = [f"--vm {quote(asked)}"] if asked else []
            words += [f"--gpu {quote(gpu.location)}" for gpu in gpus if gpus != self.gpus]
            return " ".join(words)
        return None

    def _vms(self) -> Iterator[Instance[Vm]]:
        """The one that is chosen first, then those of which nothing is wrong."""
        if self._vm:
            yield self._vm
        good = {each.key for each in judge(self._facts, self._request.path).vms if each.verdict.rank < _DOUBTFUL}
        yield from (vm for vm in self._facts.vms if vm is not self._vm and vm.key["vm"] in good)

    def _together(self, vm: Instance[Vm]) -> tuple[Gpu, ...]:
        judged = judge(self._facts, self._request.path).gpus
        gpus: tuple[Gpu, ...] = ()
        for gpu in default_gpus(self._facts, judged, vm.key["vm"]):
            verdict = judge(self._facts, self._request.path, Selection((*gpus, gpu), vm))
            gpus = (*gpus, gpu) if verdict.verdict.rank < _DOUBTFUL else gpus
        return gpus

    def check(self, desired: Iterable[DesiredResource]) -> None:
        """Raises MmioRefused."""
        self.decisions.check(desired)

    def risks(self) -> Mapping[Id, tuple[str, ...]]:
        """Consents that verdicts on GPUs ask for, on the steps that take their functions from the host; and that of a
        port through which the host fetches a file.
        """
        gpus = judge(self._facts, self._request.path).gpus
        risks = {gpu.key: {risk for reason in gpu.reasons for risk in reason.risks} for gpu in gpus}
        of_gpus = {
            identity("AssignableDevice", function.key): in_order(risks.get(gpu.location, ()))
            for gpu in self._facts.gpus
            for function in gpu.functions
            if self._on_host(function)
        }
        return {**of_gpus, **dict(self._of_fetching())}

    def _of_fetching(self) -> Iterator[tuple[Id, tuple[str, ...]]]:
        """A port on this computer, through which the host fetches what lies here."""
        new = self._settings.new_vm
        if new is not None and new.upload == FETCHED and new.disk_sha256 and staged(new)["source"].startswith("./"):
            file = staged(new)
            yield identity("StagedFile", {part: file[part] for part in ("sha256", "name", "source")}), ("network",)

    def unchecked(self, deferred: Iterable[Deferred]) -> tuple[Unchecked, ...]:
        """The VM, and whether windows that were asked for hold the GPUs that it has already."""
        try:
            _ = self._facts.vms
        except MissingFact as missing:
            if not isinstance(missing.missing, Unavailable):
                return ()
            asked = {"high": self._request.high, "low": self._request.low}
            values = {"vm": self._request.vm, **{name: value for name, value in asked.items() if value is not None}}
            return tuple(Unchecked(name, value, missing.missing.unavailable) for name, value in values.items())
        return ()

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that go to the VM: those asked for; else every GPU that can go without taking a display from the
        host, as many as go together.
        """
        if self._request.gpus:
            return choose_gpus(self._facts, self._request.gpus)
        return self._default if self._request.allow_unverified else going_together(self._facts, self._default)

    @cached_property
    def _default(self) -> tuple[Gpu, ...]:
        judged = judge(self._facts, self._request.path).gpus
        return default_gpus(self._facts, judged, self._vm.key["vm"] if self._vm else None)

    @cached_property
    def _vm(self) -> Instance[Vm] | None:
        """The VM of the request; None where VMs cannot be read, which the rules report, or it does not exist yet."""
        try:
            if self._settings.new_vm is not None:
                return made_vm(self._facts, self._settings.new_vm)
            return choose_vm(self._facts, self._request.vm)
        except VmNotNamed as which:
            judged = judge(self._facts, self._request.path).vms
            raise VmNotNamed(self._facts.host, which.known, {vm.key: vm.verdict for vm in judged}) from None
        except MissingFact:
            return None

    def _on_host(self, function: Instance[PciDevice]) -> bool:
        return (if_known(lambda: self._facts.place(function)) or "").startswith("host-")


def _staying(gpu: SubjectVerdict, together: Sequence[Finding]) -> Caution:
    """together: why it does not go with the others, if it could go alone."""
    heaviest = max(gpu.reasons, key=lambda reason: reason.severity.rank, default=None)
    stays = f"{gpu.name} ({gpu.verdict}) stays where it is; to have it in the plan, name the GPUs with --gpu."
    if together and gpu.verdict.rank < _DOUBTFUL:
        return Caution(together[0].code, Severity.DEGRADED, f"{stays} Beside the others it is doubtful.")
    return Caution(heaviest.code if heaviest else "dda.assigned-elsewhere", Severity.NOTE, stays)
