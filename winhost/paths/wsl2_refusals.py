"""The refusals and the cautions of a plan for WSL 2."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from ipaddress import ip_address, ip_network
from typing import TypeVar

from winhost.core.answers import MissingFact, Unavailable, if_available
from winhost.core.steps import DesiredResource
from winhost.hardware.host_gpus import gpu_memory, runs_cuda
from winhost.model.facts import Instance
from winhost.model.reason import Caution, Refusal, Severity
from winhost.model.units import about, size
from winhost.paths.never_sleep import sleep_cautions
from winhost.paths.playbook import PlaybookResource
from winhost.paths.wsl2 import Bridge, Wsl2Settings, allowed_networks, bridge_adapter, wsl_memory
from winhost.resources.base import State
from winhost.resources.host import HostFacts
from winhost.resources.linux.read_only import LinuxGpuDriver
from winhost.resources.windows.accounts import AccountRight, AccountTasks, LocalAccount
from winhost.resources.windows.distros import WslDistro
from winhost.resources.windows.read_only import NetworkAdapter, VmSwitch
from winhost.sizing.memories import WINDOWS_USABLE

# ---- refusals


S = TypeVar("S", bound=State)
_OWNED_RESOURCES = ("LocalAccount", "AccountTasks", "WslConfig", "WslVm", "WslDistro")  # used by winhost alone


def refusals(facts: HostFacts, settings: Wsl2Settings, desired: Iterable[DesiredResource]) -> Iterator[Refusal]:
    """Conflicts of the settings and of the desired resources with the host.

    Raises MissingFact where accounts, distros or the network could not be read, and NotOnHost.
    """
    ours = [each.key for each in desired if each.resource in _OWNED_RESOURCES]
    # Windows and WSL do not tell such names apart by their case.
    accounts = {name.casefold(): name for name in (settings.account, *(key["account"] for key in ours))}
    distros = {key["distro"].casefold(): key["distro"] for key in ours if "distro" in key}
    distros[settings.distro.casefold()] = settings.distro
    for account in facts.all(LocalAccount):
        if name := accounts.get(account.key["account"].casefold()):
            yield from _account_refusals(account.state, account.key["account"], name)
    yield from _task_refusals(facts, accounts)
    for distro in _available_instances(facts, WslDistro):
        if distro.key["account"].casefold() in accounts and (name := distros.get(distro.key["distro"].casefold())):
            yield from _distro_refusals(distro, name)
    yield from _memory_refusals(facts, settings)
    if settings.bridge:
        yield from _bridge_refusals(facts, settings.bridge)
    if settings.access.key is not None:
        yield from _access_refusals(facts, settings)
    yield from _linux_refusals(facts)


def _access_refusals(facts: HostFacts, settings: Wsl2Settings) -> Iterator[Refusal]:
    """This computer must be able to reach the distro: without that, the plan would stop after all changes in Windows.

    An IPv6 session is not refused: it does not show this computer's IPv4 address.
    """
    try:
        peers = [ip_address(peer) for peer in facts.session.peers]
        may = allowed_networks(facts, settings)
    except MissingFact:
        return
    if peers and not any(peer.version == 6 or any(peer in ip_network(each) for each in may) for peer in peers):
        found = ", ".join(map(str, peers))
        yield Refusal(
            "wsl.controller-outside",
            f"This computer reaches the host from {found}, but only {', '.join(may)} may connect to the distro.",
            f"Set all networks that may connect: --set access.allow=[{','.join((*may, f'{peers[0]}/32'))}]",
        )


def _memory_refusals(facts: HostFacts, settings: Wsl2Settings) -> Iterator[Refusal]:
    stated, total = settings.stated("memory"), facts.memory.total
    if stated is not None and stated > total:
        told = size if about(stated) == about(total) else about
        yield Refusal(
            "wsl.memory-beyond-host",
            f"Linux cannot have {told(stated)}: the host has {told(total)}.",
            "Let winhost compute it with --set memory=auto, or set a smaller size.",
        )


def _available_instances(facts: HostFacts, state: type[S]) -> tuple[Instance[S], ...]:
    """Return the instances; none where what they depend on is missing, such as Hyper-V."""
    return if_available(lambda: facts.all(state)) or ()


def _linux_refusals(facts: HostFacts) -> Iterator[Refusal]:
    """Refuse a Linux GPU driver in the distro, which is read once there is SSH access."""
    driver = if_available(lambda: facts.the(LinuxGpuDriver))
    if driver and driver.packages:
        yield Refusal(
            "wsl.linux-driver",
            f"A Linux GPU driver is installed in the distro: {', '.join(driver.packages)}.",
            f"Remove it inside the distro: apt-get purge {' '.join(driver.packages)}",
        )


def _account_refusals(account: LocalAccount, name: str, desired: str) -> Iterator[Refusal]:
    if not account.ours:
        yield Refusal(
            "wsl.account-taken",
            f"The account {name} already exists and was not created by winhost, which would change its password.",
            "Choose another name: --set account=NAME",
        )
    elif name != desired:
        yield Refusal(
            "wsl.account-taken",
            f"winhost already created the account {name}; to Windows, {desired} is the same name.",
            f"Use that spelling: --set account={name}",
        )
    elif not account.enabled:
        yield Refusal(
            "wsl.account-disabled",
            f"The account {name} is disabled, so its tasks cannot log on.",
            f"Enable it on the host: Enable-LocalUser -Name {name}",
        )
    if account.sessions:
        yield Refusal(
            "wsl.account-logged-on",
            f"A user is logged on as {name} ({account.sessions} session(s)); WSL would end when they log off.",
            f"Log {name} off on the host, and do not log on with this account.",
        )


def _task_refusals(facts: HostFacts, accounts: Mapping[str, str]) -> Iterator[Refusal]:
    """Refuse what no step of a plan can restore: a deleted account, and rights that a policy denies."""
    there = {account.key["account"].casefold() for account in facts.all(LocalAccount)}
    distros = facts.answer(WslDistro.resource_type.name)
    lacks_right = isinstance(distros, Unavailable) and distros.unavailable == "AccountRight"
    for task in facts.all(AccountTasks):
        name = task.key["account"]
        if name.casefold() not in accounts:
            continue
        if name.casefold() not in there:
            yield Refusal(
                "wsl.account-gone",
                f"The account {name} no longer exists, but its tasks do. If it was deleted, so was the registration of "
                f"its distro: the disk is still in %ProgramData%\\winhost\\distros\\{name}, but nothing can start it.",
                "If the account was renamed, change its name back. Otherwise use a new account: --set account=NAME",
            )
        elif lacks_right:
            right = facts.find(AccountRight, {"account": name, "right": "SeBatchLogonRight"})
            if right is not None and right.granted:
                yield Refusal(
                    "wsl.batch-denied",
                    f"The tasks of {name} cannot log on as a batch job, although the account has that right.",
                    'A policy denies it: on the host, check who is listed under "Deny log on as a batch job".',
                )


def _distro_refusals(distro: Instance[WslDistro], desired: str) -> Iterator[Refusal]:
    account, name = distro.key["account"], distro.key["distro"]
    if distro.state.image is None:
        yield Refusal(
            "wsl.distro-taken",
            f"{account} already has a distro {name} that winhost did not create.",
            "Choose another name: --set distro=NAME",
        )
    elif name != desired:
        yield Refusal(
            "wsl.distro-taken",
            f"winhost already created the distro {name} of {account}; to WSL, {desired} is the same name.",
            f"Use that spelling: --set distro={name}",
        )


def _bridge_refusals(facts: HostFacts, bridge: Bridge) -> Iterator[Refusal]:
    """Switches that `New-VMSwitch` would refuse, or with which WSL would start without a network."""
    switches = {switch.key["switch"]: switch.state for switch in _available_instances(facts, VmSwitch)}
    known = {guid: switch for guid, switch in switches.items() if switch.name.casefold() == bridge.switch.casefold()}
    if bridge.adapter is None:
        if not any((each.name, each.kind) == (bridge.switch, "external") for each in known.values()):
            yield Refusal(
                "wsl.switch-missing",
                f"The external switch {bridge.switch} does not exist, so WSL would start without any network.",
                "Set the adapter to create it on: --set bridge.adapter=NAME (or auto), or use an existing switch.",
            )
        return
    guid = bridge_adapter(facts, bridge)
    chosen = next(each.state for each in facts.all(NetworkAdapter) if each.key["adapter"] == guid)
    bound = chosen.switch
    for other, switch in known.items():
        if other != bound:
            yield Refusal(
                "wsl.switch-taken",
                f"The switch {switch.name} ({switch.kind}) already exists, but not on {chosen.name}.",
                "Choose another name: --set bridge.switch=NAME",
            )
    if bound in switches and (name := switches[bound].name) != bridge.switch:
        yield Refusal(
            "wsl.adapter-taken",
            f"{chosen.name} already has the switch {name}. An adapter can have only one.",
            f"Use that switch: --set bridge.switch={name}",
        )


# ---- cautions


def cautions(facts: HostFacts, settings: Wsl2Settings, resources: Collection[PlaybookResource]) -> Iterator[Caution]:
    """Yield the cautions from the settings and from the playbook's resources."""
    yield from _memory_cautions(facts, settings)
    yield from sleep_cautions(facts, "wsl2", settings.never_sleep)
    if settings.access.key is None and any(each.resource == "WslAccess" for each in resources):
        yield Caution(
            "wsl.no-way-in",
            Severity.NOTE,
            "Without access.key, the plan ends with the distro: no SSH access, no Docker, no NVIDIA Container Toolkit. "
            'To set them up, now or later, add: --set access.key="$(cat ~/.ssh/id_ed25519.pub)"',
        )
    if settings.administrator:
        yield Caution(
            "wsl.administrator",
            Severity.NOTE,
            f"Account {settings.account} becomes an administrator of this host, and so does all that runs as it.",
        )
    if any(each.resource == "AccountTasks" and each.desired.get("logon") == "s4u" for each in resources):
        yield Caution(
            "wsl.logon-s4u",
            Severity.UNVERIFIED,
            f"The tasks of {settings.account} will log on without a password (S4U).",
        )


def _memory_cautions(facts: HostFacts, settings: Wsl2Settings) -> Iterator[Caution]:
    """Cautions about memory. Where it is unknown or no setting would be large enough, rules report that instead."""
    try:
        gpus = tuple(filter(runs_cuda, facts.gpus))
        total, gpus_have = facts.memory.total, sum(map(gpu_memory, gpus))
        given = wsl_memory(facts, gpus, settings.stated("memory")).given
    except MissingFact:
        return
    if given < gpus_have <= total:
        yield Caution(
            "wsl.memory-below-gpus",
            Severity.DEGRADED,
            f"Linux gets {size(given)} of memory, and the GPUs have {size(gpus_have)}.",
        )
    if total - given < WINDOWS_USABLE:
        yield Caution(
            "wsl.memory-of-windows",
            Severity.DEGRADED,
            f"Linux gets {size(given)} of {about(total)}, which leaves Windows {about(max(0, total - given))}.",
        )
