"""The Linux in which a plan serves models: the machine itself, or a distro or guest that the plan may still make."""

from collections.abc import Sequence
from dataclasses import replace

from winhost.core.answers import Json, MissingFact, Record, if_known
from winhost.core.dataclass import dataclass
from winhost.engine.plan_dda import DdaPlanner
from winhost.engine.plan_wsl2 import Wsl2Planner
from winhost.model.errors import UsageError, visible
from winhost.model.facts import with_state
from winhost.model.shipped import shipped
from winhost.model.units import parse_size
from winhost.paths.dda_settings import DdaSettings
from winhost.paths.dual_boot import DualBootSettings
from winhost.paths.linux import DOCKER, NONE, WITHOUT_TOOLKIT, ChosenEngine, LinuxSettings
from winhost.paths.new_vm import NewVm
from winhost.paths.playbook import PathRequest, read_playbook
from winhost.paths.setting_values import SWAP_OFF
from winhost.paths.vm_network import vm_network
from winhost.paths.wsl2 import Wsl2Settings
from winhost.resources.host import HostFacts
from winhost.resources.linux.read_only import LinuxGpu
from winhost.resources.windows.pci_device import PciDevice, pci_id
from winhost.resources.windows.read_only import Memory
from winhost.sizing.memories import WINDOWS

_GUESTS, _SYSTEMS = "serving_guests", "serving_systems"


@dataclass(frozen=True)
class StackTarget:
    """The Linux in which models are served.

    facts: with the GPUs and the memory that this Linux has, or will have; runtime: `docker`, `podman`, or the path of
    vLLM's own program there; waits_for: the list in the path's decisions for which the serving resources wait; peers:
    the networks from which all connections come if Windows forwards and filters them, none if these are not known;
    network: the networking mode of WSL, for a distro that becomes a node.
    """

    facts: HostFacts
    request: PathRequest
    runtime: str
    waits_for: str | None = None
    peers: tuple[str, ...] | None = None
    network: str | None = None

    @property
    def networking_mode(self) -> str | None:
        """The networking mode of WSL; None elsewhere. Raises MissingFact."""
        if not isinstance(self.request.playbook.parsed_settings, Wsl2Settings):
            return None
        return str(Wsl2Planner(self.facts, self.request).decisions.network)

    def published(self, port: int, allow: Sequence[str]) -> "StackTarget":
        """Return the target with an endpoint that other machines reach through Windows. Raises ValueError."""
        if not isinstance(self.request.playbook.parsed_settings, Wsl2Settings | DdaSettings):
            return self
        return replace(self, request=self.request.with_settings(endpoint={"port": port, "allow": list(allow)}))


def stack_target(facts: HostFacts, request: PathRequest, program: str | None, *, beyond: bool = False) -> StackTarget:
    """Return the target for a stack. program: of vLLM on that Linux, instead of containers; beyond: other machines
    reach the endpoint. Raises UsageError (NoContainers, NoSshAccess, NoGuest, NoSystem, NetworkUnknown), as
    `select_driver` does, MissingFact.
    """
    settings = request.playbook.parsed_settings
    if isinstance(settings, Wsl2Settings):
        _require_access(facts.host, settings)
        behind_nat = beyond and Wsl2Planner(facts, request).decisions.network == "nat"
        return StackTarget(facts, request, program or DOCKER, peers=() if behind_nat else None)
    if isinstance(settings, DdaSettings):
        new = _new_guest(facts, settings)
        request, runtime = _choose_engine(facts, request, settings.containers, program)
        peers = _peers(facts, new) if beyond else None
        return StackTarget(_guest_facts(facts, request, new), request, runtime, _GUESTS, peers)
    if isinstance(settings, DualBootSettings):
        if settings.system is None:
            raise UsageError(
                "NoSystem",
                what=f"the plan for {visible(facts.host)} installs no Ubuntu in which models could be served",
                hint="Let it: --set system.hostname=NAME\nOr install it with winhost install, add it to fleet.yaml "
                "with kind: linux and plan the workload there.",
                host=facts.host,
            )
        request, runtime = _choose_engine(facts, request, settings.containers, program)
        return StackTarget(facts, request, runtime, _SYSTEMS)
    if program is not None and isinstance(settings, LinuxSettings) and settings.engine in ("auto", NONE):
        # Nothing runs in a container there; a container engine is installed only if the settings name one.
        return StackTarget(facts, request.with_settings(engine=NONE, toolkit=WITHOUT_TOOLKIT), program)
    engine = settings.engine if isinstance(settings, LinuxSettings) else "auto"
    return StackTarget(facts, request, program or _engine_of(facts, ChosenEngine(facts, engine).name))


def node_target(facts: HostFacts, request: PathRequest) -> StackTarget:
    """Return the target for a node of a cluster: k3s brings the container engine, and WSL gets no swap. Raises
    UsageError (NoSshAccess, NoGuest, SwapInCluster, NotANode), MissingFact.
    """
    book, settings = request.playbook, request.playbook.parsed_settings
    if isinstance(settings, Wsl2Settings):
        _require_access(facts.host, settings)
        if settings.swap not in ("auto", SWAP_OFF):
            raise UsageError(
                "SwapInCluster",
                what=f"swap is {settings.swap}, and a node of a cluster has none",
                hint="Leave swap out, or: --set swap=0",
                host=facts.host,
            )
        node_request = request.with_settings(swap=SWAP_OFF)
        return StackTarget(facts, node_request, NONE, network=Wsl2Planner(facts, node_request).decisions.network)
    if isinstance(settings, DdaSettings):
        new = _new_guest(facts, settings)
        containers = book.settings.get("containers") or _default_containers()
        assert isinstance(containers, dict)
        node_request = request.with_settings(containers={**containers, "engine": NONE})
        return StackTarget(_guest_facts(facts, node_request, new), node_request, NONE, _GUESTS)
    if isinstance(settings, DualBootSettings):
        host = visible(facts.host)
        raise UsageError(
            "NotANode",
            what=f"winhost makes no node of a cluster of a Linux that is installed beside Windows, as on {host}",
            hint="Leave deploy: kubernetes out of the workload: then its engines are units of that Linux.",
            host=facts.host,
        )
    return StackTarget(facts, request.with_settings(engine=NONE), NONE)


def _new_guest(facts: HostFacts, settings: DdaSettings) -> NewVm:
    """Return the settings of the VM that the plan makes. Raises UsageError: NoGuest."""
    new = settings.new_vm
    if new is None or new.guest is None:
        raise UsageError(
            "NoGuest",
            what=f"the plan for {visible(facts.host)} sets up no guest in which models could be served",
            meaning="winhost goes only into the guest of a VM that it makes itself.",
            hint="Let it make one: --new-vm NAME --cpus 8 --memory 64GiB --disk 200GiB\n"
            f"Or give the GPUs to the VM first (winhost plan {facts.named} --path dda --vm VM), then add its Linux to "
            "fleet.yaml with kind: linux and plan the workload there.",
            host=facts.host,
        )
    return new


def _choose_engine(
    facts: HostFacts, request: PathRequest, containers: LinuxSettings | None, program: str | None
) -> tuple[PathRequest, str]:
    """Choose the container engine of a Linux that the plan makes, unless vLLM's program is used. Raises UsageError."""
    if containers is None and program is None:
        request = request.with_settings(containers=_default_containers())
    engine = containers.engine if containers else DOCKER
    return request, program or _engine_of(facts, DOCKER if engine == "auto" else engine)


def _default_containers() -> dict[str, Json]:
    """Return the default settings of the path `linux`."""
    return read_playbook(shipped("playbooks") / "linux.yaml").settings


def _peers(facts: HostFacts, new: NewVm) -> tuple[str, ...] | None:
    """Return the host's own address behind NAT, from which forwarded connections come; None without NAT."""
    try:
        network = vm_network(facts, new.name, new)
    except MissingFact as missing:
        raise UsageError(
            "NetworkUnknown",
            what=f"the network of {visible(new.name)} is not known yet, so nobody can be let in to its endpoint",
            meaning=f"The virtual switches of {visible(facts.host)} could not be read.",
            hint="Apply the plan without --workload first, then plan again with it.\n"
            "Or serve within the guest alone: exposure: loopback in the workload",
            host=facts.host,
        ) from missing
    return (f"{network.gateway}/32",) if network.nat else None


def _guest_facts(facts: HostFacts, request: PathRequest, new: NewVm) -> HostFacts:
    """Return the facts of the guest: with the assigned GPUs, and with the guest's memory plus the amount that sizing
    subtracts for Windows.
    """
    assigned_gpus, memory = DdaPlanner(facts, request).gpus, parse_size(new.memory)
    staying_locations = {
        function.key["location"] for gpu in facts.gpus if gpu not in assigned_gpus for function in gpu.functions
    }
    # Windows does not report the VRAM of an assigned GPU; the guest does.
    guest_gpus = [each.state for each in if_known(lambda: facts.all(LinuxGpu)) or ()]
    vram_by_device = {gpu.device: gpu.vram for gpu in guest_gpus if gpu.device and gpu.vram}

    def convert(device: Record) -> Record | None:
        if device.key["location"] in staying_locations:
            return None
        if device.state.get("kind") != "display" or device.state.get("vram"):
            return device
        size = vram_by_device.get(pci_id(device.key["device"]))
        return with_state(device, {"vram": size}) if size else device

    document = facts.document.edited(PciDevice.resource_type.name, convert)
    its_memory = {Memory.resource_type.name: (Record({"total": memory + WINDOWS, "free": memory}),)}
    return HostFacts(replace(document, resources={**document.resources, **its_memory}))


def _engine_of(facts: HostFacts, name: str) -> str:
    if name == NONE:
        raise UsageError(
            "NoContainers",
            what=f"{visible(facts.host)} has no engine for containers that winhost uses, and the plan brings none",
            hint="Let it: --set engine=docker. Or name vLLM's own program there: --engine-program PATH",
            host=facts.host,
        )
    return name


def _require_access(host: str, settings: Wsl2Settings) -> None:
    """Refuse a distro without SSH access. Raises UsageError: NoSshAccess."""
    if settings.access.key is None:
        raise UsageError(
            "NoSshAccess",
            what=f"nothing can be served from the distro of {visible(host)}: the plan gives no SSH access to it",
            meaning="What serves is installed over SSH.",
            hint="Name your public key: --set access.key=@FILE.pub",
            host=host,
        )
