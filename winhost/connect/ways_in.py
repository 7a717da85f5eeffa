"""The SSH addresses of a Windows host's Linux, as Windows tells them: the distro of its WSL, or a guest of ours."""

import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from winhost.connect.host_keys import HostKeyRefused
from winhost.connect.ssh_logon import not_there
from winhost.connect.wire_errors import NotAvailable, Unreachable, WireError, linux_not_running, one_line
from winhost.core.answers import Json, Record
from winhost.model.errors import UsageError
from winhost.model.facts import Answer
from winhost.model.fleet import Host, LinuxHost, Ssh, timeouts_of

ACCESS = "WslAccess"  # tells where a distro lets winhost in, and which host key it shows
FORWARD = "PortForward"  # tells through which port Windows leads there, where it has to
SEED = "VmSeed"  # tells of a guest what WslAccess tells of a distro: both come from its seed
POWER = "VmPower"
RUNNING = "RunningSystem"
BESIDE = "UbuntuInstaller"  # tells the same of a Linux that takes turns with Windows
TELLING = (ACCESS, FORWARD, SEED, POWER, BESIDE)
_SSH_PORT = 22

T = TypeVar("T")
Answers = Mapping[str, Answer]


def no_linux_key(host: str) -> UsageError:
    """Linux would let winhost in, but neither the fleet file nor the state of winhost has the key."""
    return UsageError(
        "NoLinuxKey",
        what=f"fleet.yaml names no key for the Linux of {host}, and winhost made none for it on this computer",
        hint=f"Name its private key at hosts.{host}.ssh.key in fleet.yaml, as file:~/.ssh/id_ed25519",
        host=host,
    )


class GuestSilent(Unreachable):
    """A guest did not answer in time. From outside, one that hangs looks like one that is slow, and turning a slow one
    off can cost data: so a person reads its boot log and cycles its power.
    """

    def __init__(self, host: str, guest: Record, why: Unreachable) -> None:
        vm = one_line(str(guest.state.get("vm")))
        pipe = f"\\\\.\\pipe\\{vm}"
        super().__init__(
            f"{host}/{one_line(guest.key['name'])}",
            why.detail,
            at=why.at,
            code="GuestSilent",
            problem="runs and did not answer in time",
            meaning="Its Linux has not started, or without its seed, or cannot be reached from here at this address. "
            f"Its boot log is on COM1: on {host}, the named pipe {pipe}, for example with PuTTY's serial mode. "
            "If it hangs, turn its VM off and on there, in an elevated PowerShell, and continue: "
            f"Get-VM -Id {vm} | Stop-VM -TurnOff -Passthru | Start-VM",
        )


def has_way_in(answers: Answers) -> bool:
    """Tell whether a Linux can be entered, or may be at any moment."""
    return bool(_distros(answers) or running_guests(answers))


def running_guests(answers: Answers) -> tuple[Record, ...]:
    """The running guests with a seed of ours. Whether they answer already is known only by trying."""
    running = {each.key["vm"] for each in _records(answers, POWER) if each.state.get("state") == "running"}
    return tuple(
        record
        for record in _records(answers, SEED)
        if record.state.get("stage") in ("attached", "retired", None)
        and _lines(record.state.get("host_keys"))
        and record.state.get("vm") in running
    )


def linux_targets(host: Host, answers: Answers, doing: str) -> tuple[LinuxHost, ...]:
    """The addresses at which a host's one Linux may be found; what answers there must show its key. None where a guest
    has no address yet. Raises NotAvailable, UsageError.
    """
    distros, guests = _distros(answers), running_guests(answers)
    if not distros and not guests:
        if _installed(answers):
            raise linux_not_running(host.name, doing, RUNNING)
        raise NotAvailable(host.name, doing, SEED if _records(answers, SEED) else ACCESS)
    if len(distros) + len(guests) > 1:
        names = [one_line("/".join(record.key.values())) for record in (*distros, *guests)]
        raise UsageError(  # to take the first might change the wrong one
            "SeveralLinuxes",
            what=f"{len(names)} Linuxes of {host.name} have SSH access: {', '.join(names)}",
            hint="winhost manages one distro or guest on each host: remove SSH access to the others.",
            host=host.name,
        )
    ssh = _with_key(host)
    if guests:
        return tuple(_guest(host, ssh, guests[0], _records(answers, FORWARD)))
    return (_distro(host, ssh, distros[0], _records(answers, FORWARD)),)


def first_found(host: str, targets: Iterable[LinuxHost], open_there: Callable[[LinuxHost], T]) -> T:
    """Open a session at the first address that shows the Linux's key: another machine may have a former address by now.
    Raises WireError.
    """
    lost: WireError | None = None
    for target in targets:
        try:
            return open_there(target)
        except (Unreachable, HostKeyRefused) as error:
            lost = error
    raise lost or not_there(host, "the host has seen no address of its guest yet")


def _with_key(host: Host) -> Ssh:
    if host.ssh is None or host.ssh.key is None:
        raise no_linux_key(host.name)
    return host.ssh


def _installed(answers: Answers) -> list[Record]:
    return [each for each in _records(answers, BESIDE) if isinstance(each.state.get("host_key"), str)]


def target_beside(host: Host, answers: Answers) -> LinuxHost | None:
    """The Linux that takes turns with Windows, where one was or is being installed. Raises UsageError."""
    made = _installed(answers)
    if not made:
        return None
    name, state = made[0].key["name"], made[0].state
    address = str(state.get("address") or "").partition("/")[0] or host.address
    return _target(host, _with_key(host), name, state.get("user"), str(state["host_key"]), (address, _SSH_PORT))


def _records(answers: Answers, resource: str) -> tuple[Record, ...]:
    answer = answers.get(resource, ())
    return answer if isinstance(answer, tuple) else ()


def _target(host: Host, ssh: Ssh, name: str, user: Json, host_key: str, at: tuple[str, int]) -> LinuxHost:
    """The Linux as the fleet file has it, else as Windows tells. at: address and port. Nothing that Windows tells is
    validated: the logon judges it.
    """
    known_as = ssh.user or str(user)
    return LinuxHost.model_construct(
        name=f"{host.name}/{name}",
        address=ssh.address or at[0],
        port=ssh.port if "port" in ssh.model_fields_set else at[1],
        host_key=host_key,
        key=ssh.key,
        passphrase=ssh.passphrase,
        user=known_as,
        sudo=known_as != "root",
        timeouts="transport",
        written_at=ssh.written_at,
        **timeouts_of(host.transport),
    )


# ---- a guest


def _guest(host: Host, ssh: Ssh, guest: Record, forwards: Sequence[Record]) -> list[LinuxHost]:
    """Behind NAT through a port of the host."""
    state = guest.state
    stated = str(state.get("address") or "").partition("/")[0]
    seen = [stated] if stated else _lines(state.get("neighbours"))
    reached = [_reached(host.address, each, _SSH_PORT, forwards) for each in seen if _is_address(each)]
    if ssh.address:
        reached = [(ssh.address, _SSH_PORT)]
    host_keys = "\n".join(_lines(state.get("host_keys")))
    return [_target(host, ssh, guest.key["name"], state.get("user"), host_keys, at) for at in reached]


def _lines(value: Json) -> list[str]:
    """A list of texts; empty if it could not be read."""
    return [each for each in value if isinstance(each, str)] if isinstance(value, list | tuple) else []


# ---- a distro


def _distros(answers: Answers) -> tuple[Record, ...]:
    """The distros whose sshd knows a key of ours and whose address, port and host key Windows can tell."""
    return tuple(
        record
        for record in _records(answers, ACCESS)
        if record.state.get("active") is True
        and record.state.get("authorized")
        and isinstance(record.state.get("host_key"), str)
        and isinstance(record.state.get("port"), int)
        and _is_address(record.state.get("listen"))
    )


def _is_address(text: Json) -> bool:
    """Tell whether a value is an address: it may be unread, and a host may answer anything."""
    try:
        ipaddress.ip_address(str(text))
    except ValueError:
        return False
    return True


def _distro(host: Host, ssh: Ssh, way_in: Record, forwards: Sequence[Record]) -> LinuxHost:
    state = way_in.state
    # An address of its own, or that of Windows.
    own = state["address"] if _is_address(state.get("address")) else host.address
    at = _reached(own, str(state["listen"]), state["port"], forwards)
    return _target(host, ssh, way_in.key["distro"], state["user"], state["host_key"], at)


def _reached(host: str, listen: str, port: int, forwards: Sequence[Record]) -> tuple[str, int]:
    """Address and port as they are reached from here: through Windows where it forwards, or shares its addresses."""
    address = ipaddress.ip_address(listen)
    everywhere = address.is_unspecified or address.is_loopback
    for forward in forwards:
        leads_there = everywhere or forward.state.get("target") == listen
        if leads_there and forward.state.get("connect_port") == port and forward.key["port"].isdecimal():
            return host, int(forward.key["port"])
    return (host if everywhere else listen), port
