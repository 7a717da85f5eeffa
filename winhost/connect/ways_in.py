"""Find the SSH address of a Windows host's Linux in the answers of Windows: a WSL distro, or a guest that
winhost made.
"""

import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from winhost.connect.host_keys import HostKeyRefused
from winhost.connect.ssh_logon import no_sshd_error
from winhost.connect.wire_errors import NotAvailable, Unreachable, WireError, linux_not_running_error, one_line
from winhost.core.answers import Json, Record
from winhost.model.errors import UsageError
from winhost.model.facts import Answer
from winhost.model.fleet import Host, LinuxHost, Ssh, timeouts_of

ACCESS = "WslAccess"  # the SSH address and the host key of a distro
FORWARD = "PortForward"  # a port of Windows that is forwarded to the Linux
SEED = "VmSeed"  # the SSH address and the host keys of a guest
POWER = "VmPower"
RUNNING = "RunningSystem"
INSTALLER = "UbuntuInstaller"  # the SSH address and the host key of a Linux next to Windows
ADDRESS_RESOURCES = (ACCESS, FORWARD, SEED, POWER, INSTALLER)
_SSH_PORT = 22

T = TypeVar("T")
Answers = Mapping[str, Answer]


def no_linux_key_error(host: str) -> UsageError:
    """Make the error for a Linux with SSH access whose private key is neither in the fleet file nor in
    winhost's state.
    """
    return UsageError(
        "NoLinuxKey",
        what=f"fleet.yaml names no key for the Linux of {host}, and winhost made none for it on this computer",
        hint=f"Name its private key at hosts.{host}.ssh.key in fleet.yaml, as file:~/.ssh/id_ed25519",
        host=host,
    )


class GuestSilent(Unreachable):
    """A guest did not answer in time. It may hang or be slow, and turning off a slow one can lose data. So winhost does
    not turn it off, and tells the user how to read its boot log.
    """

    def __init__(self, host: str, guest: Record, why: Unreachable) -> None:
        vm = one_line(str(guest.state.get("vm")))
        pipe = f"\\\\.\\pipe\\{vm}"
        super().__init__(
            f"{host}/{one_line(guest.key['name'])}",
            why.detail,
            endpoint=why.endpoint,
            code="GuestSilent",
            problem="runs and did not answer in time",
            meaning="Its Linux has not started, or without its seed, or cannot be reached from here at this address. "
            f"Its boot log is on COM1: on {host}, the named pipe {pipe}, for example with PuTTY's serial mode. "
            "If it hangs, turn its VM off and on there, in an elevated PowerShell, and continue: "
            f"Get-VM -Id {vm} | Stop-VM -TurnOff -Passthru | Start-VM",
        )


def has_linux_access(answers: Answers) -> bool:
    """Tell whether a Linux has SSH access, or a running guest may have it soon."""
    return bool(_distros(answers) or running_guests(answers))


def running_guests(answers: Answers) -> tuple[Record, ...]:
    """Return the running guests with a seed of winhost. They may not answer yet."""
    running = {each.key["vm"] for each in _records(answers, POWER) if each.state.get("state") == "running"}
    return tuple(
        record
        for record in _records(answers, SEED)
        if record.state.get("stage") in ("attached", "retired", None)
        and _texts(record.state.get("host_keys"))
        and record.state.get("vm") in running
    )


def linux_targets(host: Host, answers: Answers, doing: str) -> tuple[LinuxHost, ...]:
    """Return the possible SSH targets for a host's one Linux, with the host key that it has to show. Empty if a guest
    has no address yet. Raises NotAvailable, UsageError.
    """
    distros, guests = _distros(answers), running_guests(answers)
    if not distros and not guests:
        if _installer_records(answers):
            raise linux_not_running_error(host.name, doing, RUNNING)
        raise NotAvailable(host.name, doing, SEED if _records(answers, SEED) else ACCESS)
    if len(distros) + len(guests) > 1:
        names = [one_line("/".join(record.key.values())) for record in (*distros, *guests)]
        raise UsageError(  # the first one may be the wrong one
            "SeveralLinuxes",
            what=f"{len(names)} Linuxes of {host.name} have SSH access: {', '.join(names)}",
            hint="winhost manages one distro or guest on each host: remove SSH access to the others.",
            host=host.name,
        )
    ssh = _require_key(host)
    if guests:
        return tuple(_guest_targets(host, ssh, guests[0], _records(answers, FORWARD)))
    return (_distro_target(host, ssh, distros[0], _records(answers, FORWARD)),)


def open_first(host: str, targets: Iterable[LinuxHost], open_session: Callable[[LinuxHost], T]) -> T:
    """Open a session at the first address that shows the Linux's host key. Another machine may have one of the
    addresses by now. Raises WireError.
    """
    last_error: WireError | None = None
    for target in targets:
        try:
            return open_session(target)
        except (Unreachable, HostKeyRefused) as error:
            last_error = error
    raise last_error or no_sshd_error(host, "the host has seen no address of its guest yet")


def _require_key(host: Host) -> Ssh:
    if host.ssh is None or host.ssh.key is None:
        raise no_linux_key_error(host.name)
    return host.ssh


def _installer_records(answers: Answers) -> list[Record]:
    return [each for each in _records(answers, INSTALLER) if isinstance(each.state.get("host_key"), str)]


def dual_boot_target(host: Host, answers: Answers) -> LinuxHost | None:
    """Return the SSH target of the Linux next to Windows, if one was or is being installed. Raises UsageError."""
    records = _installer_records(answers)
    if not records:
        return None
    name, state = records[0].key["name"], records[0].state
    address = str(state.get("address") or "").partition("/")[0] or host.address
    return _make_target(host, _require_key(host), name, state.get("user"), str(state["host_key"]), (address, _SSH_PORT))


def _records(answers: Answers, resource: str) -> tuple[Record, ...]:
    answer = answers.get(resource, ())
    return answer if isinstance(answer, tuple) else ()


def _make_target(
    host: Host, ssh: Ssh, name: str, user: Json, host_key: str, default_endpoint: tuple[str, int]
) -> LinuxHost:
    """Make an SSH target from the fleet file and the answers of Windows. default_endpoint: address and port. The
    answers of Windows are not validated here; a wrong one makes the logon fail.
    """
    user_name = ssh.user or str(user)
    return LinuxHost.model_construct(
        name=f"{host.name}/{name}",
        address=ssh.address or default_endpoint[0],
        port=ssh.port if "port" in ssh.model_fields_set else default_endpoint[1],
        host_key=host_key,
        key=ssh.key,
        passphrase=ssh.passphrase,
        user=user_name,
        sudo=user_name != "root",
        timeouts="transport",
        written_at=ssh.written_at,
        **timeouts_of(host.transport),
    )


# ---- a guest


def _guest_targets(host: Host, ssh: Ssh, guest: Record, forwards: Sequence[Record]) -> list[LinuxHost]:
    """Return the targets of a guest, which behind NAT is reached through a port of the host."""
    state = guest.state
    own_address = str(state.get("address") or "").partition("/")[0]
    addresses = [own_address] if own_address else _texts(state.get("neighbours"))
    endpoints = [_reachable_address(host.address, each, _SSH_PORT, forwards) for each in addresses if _is_address(each)]
    if ssh.address:
        endpoints = [(ssh.address, _SSH_PORT)]
    host_keys = "\n".join(_texts(state.get("host_keys")))
    return [
        _make_target(host, ssh, guest.key["name"], state.get("user"), host_keys, endpoint) for endpoint in endpoints
    ]


def _texts(value: Json) -> list[str]:
    """Return the texts in a list; empty if it could not be read."""
    return [each for each in value if isinstance(each, str)] if isinstance(value, list | tuple) else []


# ---- a distro


def _distros(answers: Answers) -> tuple[Record, ...]:
    """Return the distros whose sshd accepts winhost's key, and whose address, port and host key are known."""
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
    """Tell whether a value is an IP address. It may be unread, and a host may answer anything."""
    try:
        ipaddress.ip_address(str(text))
    except ValueError:
        return False
    return True


def _distro_target(host: Host, ssh: Ssh, way_in: Record, forwards: Sequence[Record]) -> LinuxHost:
    state = way_in.state
    # The address of the distro, or that of Windows.
    address = state["address"] if _is_address(state.get("address")) else host.address
    endpoint = _reachable_address(address, str(state["listen"]), state["port"], forwards)
    return _make_target(host, ssh, way_in.key["distro"], state["user"], state["host_key"], endpoint)


def _reachable_address(host: str, listen: str, port: int, forwards: Sequence[Record]) -> tuple[str, int]:
    """Return the address and port that can be reached from here: those of Windows if it forwards the port or shares its
    addresses, else those of the Linux.
    """
    address = ipaddress.ip_address(listen)
    is_shared = address.is_unspecified or address.is_loopback
    for forward in forwards:
        matches = is_shared or forward.state.get("target") == listen
        if matches and forward.state.get("connect_port") == port and forward.key["port"].isdecimal():
            return host, int(forward.key["port"])
    return (host if is_shared else listen), port
