"""Conflicts on the host that rule out a WSL 2 plan with these settings."""

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address, ip_network
from typing import TypeVar

from winhost.core.answers import MissingFact, Unavailable
from winhost.core.steps import DesiredResource
from winhost.model.facts import Instance
from winhost.model.refusal import Refusal
from winhost.model.units import about, size
from winhost.paths.wsl2_network import adapter, allowed
from winhost.paths.wsl2_settings import Bridge, Wsl2Settings
from winhost.resources.base import State
from winhost.resources.host import HostFacts
from winhost.resources.linux.linux_gpu_driver.resource import LinuxGpuDriver
from winhost.resources.windows.account_right.resource import AccountRight
from winhost.resources.windows.account_tasks.resource import AccountTasks
from winhost.resources.windows.local_account.resource import LocalAccount
from winhost.resources.windows.network_adapter.resource import NetworkAdapter
from winhost.resources.windows.vm_switch.resource import VmSwitch
from winhost.resources.windows.wsl_distro.resource import WslDistro

S = TypeVar("S", bound=State)
_OWNED = ("LocalAccount", "AccountTasks", "WslConfig", "WslVm", "WslDistro")  # resources of what is ours alone


def refusals(facts: HostFacts, settings: Wsl2Settings, desired: Iterable[DesiredResource]) -> Iterator[Refusal]:
    """Of the settings, and of what is wanted, whoever wrote it.

    Raises MissingFact where accounts, distros or the network could not be read, and NotOnHost.
    """
    ours = [each.key for each in desired if each.resource in _OWNED]
    # Windows and WSL do not tell such names apart by their case.
    accounts = {name.casefold(): name for name in (settings.account, *(key["account"] for key in ours))}
    distros = {key["distro"].casefold(): key["distro"] for key in ours if "distro" in key}
    distros[settings.distro.casefold()] = settings.distro
    for account in facts.all(LocalAccount):
        if name := accounts.get(account.key["account"].casefold()):
            yield from _of_account(account.state, account.key["account"], name)
    yield from _of_tasks(facts, accounts)
    for distro in _seen(facts, WslDistro):
        if distro.key["account"].casefold() in accounts and (name := distros.get(distro.key["distro"].casefold())):
            yield from _of_distro(distro, name)
    yield from _of_memory(facts, settings)
    if settings.bridge:
        yield from _of_bridge(facts, settings.bridge)
    if settings.access.key is not None:
        yield from _of_access(facts, settings)
    yield from _of_linux(facts)


def _of_access(facts: HostFacts, settings: Wsl2Settings) -> Iterator[Refusal]:
    """Whoever let the whole world but the controller in would find out when all but the last is done.

    Not refused is what is not known: that a session comes by IPv6 does not tell where this computer is in IPv4.
    """
    try:
        peers = [ip_address(peer) for peer in facts.session.peers]
        may = allowed(facts, settings)
    except MissingFact:
        return
    if peers and not any(peer.version == 6 or any(peer in ip_network(each) for each in may) for peer in peers):
        found = ", ".join(map(str, peers))
        yield Refusal(
            "wsl.controller-outside",
            f"You come to the host from {found}, and only {', '.join(may)} may come into the distro.",
            f"Name all networks that may: --set access.allow=[{','.join((*may, f'{peers[0]}/32'))}]",
        )


def _of_memory(facts: HostFacts, settings: Wsl2Settings) -> Iterator[Refusal]:
    stated, total = settings.stated("memory"), facts.memory.total
    if stated is not None and stated > total:
        told = size if about(stated) == about(total) else about
        yield Refusal(
            "wsl.memory-beyond-host",
            f"Linux cannot have {told(stated)}: the host has {told(total)}.",
            "Let it be computed, --set memory=auto, or name a size.",
        )


def _seen(facts: HostFacts, state: type[S]) -> tuple[Instance[S], ...]:
    """The instances; none where what they depend on is missing, such as Hyper-V."""
    try:
        return facts.all(state)
    except MissingFact as missing:
        if isinstance(missing.missing, Unavailable):
            return ()
        raise


def _of_linux(facts: HostFacts) -> Iterator[Refusal]:
    """Nothing until there is SSH access, by which the distro is read."""
    try:
        driver = facts.the(LinuxGpuDriver)
    except MissingFact as missing:
        if isinstance(missing.missing, Unavailable):
            return
        raise
    if driver.packages:
        yield Refusal(
            "wsl.linux-driver",
            f"The distro has a Linux GPU driver: {', '.join(driver.packages)}.",
            f"Remove it there: apt-get purge {' '.join(driver.packages)}",
        )


def _of_account(account: LocalAccount, name: str, desired: str) -> Iterator[Refusal]:
    if not account.ours:
        yield Refusal(
            "wsl.account-taken",
            f"There is an account {name} already that winhost did not make: its password would be changed.",
            "Choose another name: --set account=NAME",
        )
    elif name != desired:
        yield Refusal(
            "wsl.account-taken",
            f"There is an account {name} already, which winhost made; to Windows, {desired} is the same name.",
            f"Write it as it is: --set account={name}",
        )
    elif not account.enabled:
        yield Refusal(
            "wsl.account-disabled",
            f"The account {name} was disabled: its tasks cannot log on.",
            f"Enable it on the host: Enable-LocalUser -Name {name}",
        )
    if account.sessions:
        yield Refusal(
            "wsl.account-logged-on",
            f"Somebody is logged on as {name} ({account.sessions} session(s)): with their logoff its WSL would end.",
            f"Log {name} off on the host, and let nobody log on with it.",
        )


def _of_tasks(facts: HostFacts, accounts: Mapping[str, str]) -> Iterator[Refusal]:
    """What no step of a plan can restore: a deleted account, and rights that a policy denies."""
    there = {account.key["account"].casefold() for account in facts.all(LocalAccount)}
    for task in facts.all(AccountTasks):
        name = task.key["account"]
        if name.casefold() not in accounts:
            continue
        if name.casefold() not in there:
            yield Refusal(
                "wsl.account-gone",
                f"The account {name} is gone, and its tasks are still there. If it was deleted, all that Windows knew "
                f"of its distro went with it: the disk stays in %ProgramData%\\winhost\\distros\\{name}, and nothing "
                "can start it.",
                "If it was renamed, give it its name back. Else begin anew beside it: --set account=NAME",
            )
        elif _missing(facts, WslDistro) == "AccountRight" and _granted(facts, name):
            yield Refusal(
                "wsl.batch-denied",
                f"The tasks of {name} may not log on as a batch job, though the account has the right to.",
                'A policy denies it: see who is listed on the host under "Deny log on as a batch job".',
            )


def _missing(facts: HostFacts, state: type[State]) -> str | None:
    """The resource that must exist before this one can be read, if it does not."""
    answer = facts.document.answer(state.resource_type.name)
    return answer.unavailable if isinstance(answer, Unavailable) else None


def _granted(facts: HostFacts, account: str) -> bool:
    right = facts.of(AccountRight, {"account": account, "right": "SeBatchLogonRight"})
    return right is not None and right.granted


def _of_distro(distro: Instance[WslDistro], desired: str) -> Iterator[Refusal]:
    account, name = distro.key["account"], distro.key["distro"]
    if distro.state.image is None:
        yield Refusal(
            "wsl.distro-taken",
            f"{account} has a distro {name} already that winhost did not make.",
            "Choose another name: --set distro=NAME",
        )
    elif name != desired:
        yield Refusal(
            "wsl.distro-taken",
            f"{account} has a distro {name} already, which winhost made; to WSL, {desired} is the same name.",
            f"Write it as it is: --set distro={name}",
        )


def _of_bridge(facts: HostFacts, bridge: Bridge) -> Iterator[Refusal]:
    """Switches that `New-VMSwitch` would refuse, or with which WSL would start without a network."""
    switches = {switch.key["switch"]: switch.state for switch in _seen(facts, VmSwitch)}
    known = {guid: switch for guid, switch in switches.items() if switch.name.casefold() == bridge.switch.casefold()}
    if bridge.adapter is None:
        if not any((each.name, each.kind) == (bridge.switch, "external") for each in known.values()):
            yield Refusal(
                "wsl.switch-missing",
                f"There is no external switch {bridge.switch}: WSL would start without any network.",
                "Name the adapter to make it on: --set bridge.adapter=NAME (or auto), or a switch that is there.",
            )
        return
    guid = adapter(facts, bridge)
    chosen = next(each.state for each in facts.all(NetworkAdapter) if each.key["adapter"] == guid)
    bound = chosen.switch
    for other, switch in known.items():
        if other != bound:
            yield Refusal(
                "wsl.switch-taken",
                f"There is a switch {switch.name} already ({switch.kind}), and not on {chosen.name}.",
                "Choose another name: --set bridge.switch=NAME",
            )
    if bound in switches and (name := switches[bound].name) != bridge.switch:
        yield Refusal(
            "wsl.adapter-taken",
            f"{chosen.name} has a switch already: {name}. An adapter can have only one.",
            f"Take that one: --set bridge.switch={name}",
        )
