"""`fleet.yaml`: the hosts that winhost manages, and how each is reached.

The classes declare the format of the file; winhost works with the same objects. A host has its own keys of `transport`
and `ssh`, then those of its groups, then the defaults: see `_inherit_options`.
"""

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from fnmatch import fnmatchcase
from getpass import getuser
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, PlainValidator, WithJsonSchema

from winhost.core.dataclass import dataclass
from winhost.model.errors import UsageError, did_you_mean, visible
from winhost.model.files import check_writers
from winhost.model.secrets import SecretRef, is_loopback
from winhost.model.written import NOT_WRITTEN, Duration, Matching, Omittable, Text, Written, WrittenAs, WrittenModel
from winhost.model.yamlfile import Loaded, Loc, Mistake, load_with_positions

SKIP_VERIFICATION = "insecure-skip-verification"
"""The one spelling that switches TLS verification off, for one host."""


class WireKind(StrEnum):
    """The protocol over WSMan: PowerShell remoting, or the older remote shell, where only that is open. local: none,
    because the host is the computer itself.
    """

    PSRP = "psrp"
    WINRS = "winrs"
    LOCAL = "local"


class Auth(StrEnum):
    """The authentication method. Negotiate and NTLM encrypt the messages themselves, Basic does not."""

    NEGOTIATE = "negotiate"
    NTLM = "ntlm"
    BASIC = "basic"


# ---- values


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        if re.fullmatch(r"\w[\w.-]*", text):
            return text
    raise ValueError("should be a host name or an IP address alone; a port goes to transport.port or ssh.port")


def _verify(value: object) -> bool | Path:
    if value == SKIP_VERIFICATION:
        raise ValueError(f"{SKIP_VERIFICATION} is said host by host, not in defaults or groups")
    return _verify_of_host(value)


def _verify_of_host(value: object) -> bool | Path:
    if value is True:
        return True
    if value == SKIP_VERIFICATION:
        return False
    if isinstance(value, str) and value and value.isprintable():
        return Path(value)
    raise ValueError(f"should be true, or the path of a CA bundle, or on a single host {SKIP_VERIFICATION}")


def _key(value: object) -> SecretRef:
    key = SecretRef.parse(value)
    if key.scheme == "cmd":
        raise ValueError("cmd: gives one line, and a private key has several: write file: or env:")
    return key


def _host_key(text: str) -> str:
    if re.fullmatch(r"SHA256:[A-Za-z0-9+/]{43}", text):
        return text
    for line in text.splitlines() or [""]:
        kind, _, data = line.partition(" ")
        if not (kind.startswith(("ssh-", "ecdsa-")) and data and line.isprintable()):
            raise ValueError("should be a fingerprint (SHA256:…), or a public key as in a .pub file")
    return text


_VERIFY_SCHEMAS: list[dict[str, Any]] = [
    {"const": True},
    {"type": "string", "minLength": 1, "not": {"const": SKIP_VERIFICATION}},
]

# Names become file names and words of a command line. A group is in lower case, because `DDA` beside `dda` would
# quietly be a second group without its options.
_HOST_NAME = Matching(
    r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9_-])?",
    "a host name: letters, digits, '.', '_' and '-', starting with a letter or digit",
)
_GROUP_NAME = Matching(
    r"[a-z0-9_](?:[a-z0-9._-]{0,61}[a-z0-9_-])?", "a group name: lower case letters, digits, '.', '_' and '-'"
)


def host_name(text: str) -> str:
    """Check the name of a host. Raises ValueError."""
    return _HOST_NAME.check(text)


_HostName = Annotated[str, _HOST_NAME]
_GroupName = Annotated[str, _GROUP_NAME]
_Key = Annotated[SecretRef, PlainValidator(_key, json_schema_input_type=SecretRef)]
_HostKey = Annotated[str, AfterValidator(_host_key), Field(min_length=1)]
_KnownHosts = Annotated[Path, WrittenAs(Text, Path)]
_Address = Annotated[str, AfterValidator(_address)]
_Port = Annotated[int, Field(ge=1, le=65535)]
_Verify = Annotated[bool | Path, PlainValidator(_verify), WithJsonSchema({"anyOf": _VERIFY_SCHEMAS})]
_VerifyOfHost = Annotated[
    bool | Path,
    PlainValidator(_verify_of_host),
    WithJsonSchema({"anyOf": [*_VERIFY_SCHEMAS, {"const": SKIP_VERIFICATION}]}),
]


# ---- the file


_P = TypeVar("_P", bound="_Options")
_L = TypeVar("_L", bound="Login")


class _Options(WrittenModel):
    """A mapping of a host that inherits missing keys from its groups, the defaults, or another logon."""

    written_at: Annotated[Mapping[str, str], NOT_WRITTEN] = Field(default={}, repr=False)
    """The position of each key in the file: `hosts.gpu-01.transport.password (fleet.yaml:14)`."""

    def position_of(self, *keys: str) -> str | None:
        """Return the position of the first of these keys that is set; else that where the first of them would be."""
        positions = (self.written_at[key] for key in keys if key in self.model_fields_set and key in self.written_at)
        return next(positions, self.written_at.get(keys[0]))

    def with_defaults(self: _P, **values: Any) -> _P:
        """Return a copy with these values for keys that are not set."""
        return self.model_copy(update={key: value for key, value in values.items() if key not in self.model_fields_set})


class _Timeouts(_Options):
    """Timeouts in seconds."""

    connect_timeout: Duration = 10
    """The longest time to reach the host. Default: 10s."""
    operation_timeout: Duration = 20
    """The longest silence of the host before it must give a sign of life. Default: 20s."""
    call_timeout: Duration = 600
    """The longest time of one whole call. Default: 10m."""


class SharedTransport(_Timeouts):
    """The connection to hosts over WSMan. A key that a host omits comes from its groups, then from the defaults."""

    kind: WireKind = WireKind.PSRP
    """The protocol over WSMan: psrp (default), PowerShell remoting, or winrs, where only the remote shell is open. Or
    local: the Windows that winhost runs on, or in whose WSL it runs; the default for address: localhost where no option
    of a network is given.
    """
    tls: bool = True
    """Use HTTPS. Default: true."""
    port: _Port = 5986
    """TCP port. Default: 5986 with TLS, 5985 without."""
    auth: Auth = Auth.NEGOTIATE
    """The authentication method. Default: negotiate, or ntlm for winrs. Basic needs TLS, except on loopback."""
    user: Omittable[Text] = None
    """Account, as DOMAIN\\user or user@domain. Without quotes, or with \\\\ inside double quotes."""
    password: Omittable[SecretRef] = None
    """A reference to the password, never the password itself: env:NAME, file:/PATH, cmd:PROGRAM ARGUMENTS,
    keyring:SERVICE/USER.
    """
    verify: _Verify = True
    """true (default), or the path of a CA bundle, relative to this file."""


class Transport(SharedTransport):
    """The connection to this host over WSMan. A key that is omitted here comes from its groups, then from defaults."""

    verify: _VerifyOfHost = True
    """true (default), or the path of a CA bundle, relative to this file, or insecure-skip-verification."""


class SharedLogon(_Timeouts):
    """The logon to an sshd."""

    key: Omittable[_Key] = None
    """A reference to the private key whose public key is let in: file:/PATH, env:NAME, keyring:SERVICE/USER. Default
    for the Linux of a Windows host: one that winhost makes and keeps in its private state.
    """
    passphrase: Omittable[SecretRef] = None
    """A reference to the key's passphrase, if it has one."""
    user: Text = ""
    """Account. Default for a WSL distro: the one that the host tells, which is root."""
    agent: bool = False
    """Use the keys of the ssh-agent of this computer. Default: false. Not for the Linux of a Windows host."""
    password: Omittable[SecretRef] = None
    """A reference to the account's password, for an sshd that takes no key. Not for the Linux of a Windows host."""
    known_hosts: _KnownHosts = Path("~/.ssh/known_hosts")
    """A known_hosts file, relative to this one. Default: ~/.ssh/known_hosts. Not for the Linux of a Windows host."""


class Login(SharedLogon):
    """The logon to one sshd, and the key by which that is known."""

    address: _Address = ""
    """DNS name or IP address, as seen from here. Default: the one of the host. For a WSL distro: the one on which the
    host says that it listens, or what it forwards.
    """
    port: _Port = 22
    """TCP port. Default: 22. For a WSL distro: as for address."""
    host_key: Omittable[_HostKey] = None
    """The key that it must show: its fingerprint (SHA256:…), or as in a .pub file; several, one a line. Default: those
    of known_hosts. Not for the Linux of a Windows host.
    """


class Jump(Login):
    """The machine through which a host is reached. user, key, agent and known_hosts: where it says none, the host's."""

    address: _Address
    """DNS name or IP address."""


class SharedSsh(SharedLogon):
    """The connection to a Linux: the one in a host's WSL distro, of which Windows says where it listens and which key
    it shows, or a host with kind: linux. Timeouts and all about jump and sudo are for kind: linux.
    """

    jump: Omittable[Jump] = None
    """The machine through which it is reached. For kind: linux."""
    sudo: Omittable[bool] = None
    """Become root with sudo. Default: true, unless the user is root. For kind: linux."""
    sudo_password: Omittable[SecretRef] = None
    """A reference to the password that sudo asks for, if it asks for one. For kind: linux."""


class Ssh(SharedSsh, Login):
    """The connection to the Linux of this host. A key that is omitted comes from its groups, then from defaults."""


@dataclass(frozen=True, kw_only=True)
class Layer(Written):
    """The options of several hosts."""

    transport: Omittable[SharedTransport] = None
    """The connection to these hosts."""
    ssh: Omittable[SharedSsh] = None
    """The connection to their Linux."""


# After `load_fleet`, a Host is always Windows: an entry with kind: linux becomes a LinuxHost.
class Host(_Options):
    """One host."""

    name: Annotated[str, NOT_WRITTEN] = ""
    kind: Literal["windows", "linux"] = "windows"
    """windows (default), or linux: a Linux of its own, on metal or in a VM, which is reached by SSH alone, or without
    it where winhost runs on it (address: localhost, and no option of ssh but sudo).
    """
    address: _Address = ""
    """DNS name or IP address. Default: the host's own name."""
    groups: tuple[_GroupName, ...] = ()
    """Groups it belongs to; where two say different things, the first one listed wins."""
    transport: Transport = Field(default_factory=Transport)
    """The connection to this host."""
    ssh: Omittable[Ssh] = None
    """The connection to its Linux."""
    sftp: Omittable[Login] = None
    """The logon to the OpenSSH server of this Windows, for large files. Defaults: user and timeouts of transport; its
    password, where neither a key nor the agent is given.
    """


class LinuxHost(Ssh):
    """A Linux that is reached by SSH: a host of its own, on metal or in a VM, or the Linux of a Windows host.

    host_key: one or several, as in .pub files, one on each line. timeouts: the key of the host in fleet.yaml that has
    them. is_this_computer: winhost runs on it, so that SSH is not needed.
    """

    name: Annotated[str, NOT_WRITTEN] = ""
    groups: Annotated[tuple[str, ...], NOT_WRITTEN] = ()
    timeouts: Annotated[str, NOT_WRITTEN] = "ssh"
    is_this_computer: Annotated[bool, NOT_WRITTEN] = False


AnyHost = Host | LinuxHost


@dataclass(frozen=True, kw_only=True)
class FleetFile(Written):
    """fleet.yaml: the hosts that winhost manages, and how each is reached."""

    schema: Literal["winhost.fleet/1"]
    """The version of this format."""
    defaults: Omittable[Layer] = None
    """Options of all hosts, unless a group or the host says otherwise."""
    groups: dict[_GroupName, Layer | None] = field(default_factory=dict)
    """Options of the hosts of a group. A group that says nothing need not be listed."""
    hosts: dict[_HostName, Host | None]
    """The hosts by name."""


@dataclass(frozen=True)
class Fleet:
    """The hosts of one fleet.yaml, in its order."""

    file: Path
    hosts: tuple[AnyHost, ...]

    def select(self, names: Sequence[str]) -> list[AnyHost]:
        """Return the hosts that match names, patterns (`gpu-*`) and groups (`@dda`), each once and in this order.

        Raises UsageError: UnknownHost, for a name that matches no host.
        """
        chosen: dict[str, AnyHost] = {}
        for name in names:
            chosen.update((host.name, host) for host in self._match(name))
        return list(chosen.values())

    def _match(self, name: str) -> list[AnyHost]:
        if name.startswith("@"):
            found = [host for host in self.hosts if name[1:].lower() in host.groups]
            known = {f"@{group}" for host in self.hosts for group in host.groups}
        else:
            found = [host for host in self.hosts if fnmatchcase(host.name.lower(), name.lower())]
            known = {host.name for host in self.hosts}
        if found:
            return found
        listed, kind = sorted(known), "group" if name.startswith("@") else "host"
        more = f" and {len(listed) - _MAX_LISTED:,} more" if len(listed) > _MAX_LISTED else ""
        requested = f"{kind} '{visible(name.removeprefix('@'))}'"
        raise UsageError(
            "UnknownHost",
            what=f"no {requested} in {visible(self.file.name)}{did_you_mean(name, listed)}",
            hint=f"known: {', '.join(listed[:_MAX_LISTED])}{more}" if listed else None,
        )


_MAX_LISTED = 40


def bracket_ipv6(address: str) -> str:
    """Return the address for a URL or USER@ADDRESS, where an IPv6 address is in brackets."""
    return f"[{address}]" if ":" in address else address


# ---- from the file to its hosts


def load_fleet(path: Path) -> Fleet:
    """Read a fleet.yaml. Raises UsageError (FileFaults) with all of its faults. Resolves no secret."""
    loaded = load_with_positions(path, FleetFile, _find_mistakes)
    hosts: list[AnyHost] = []
    for name, options in loaded.value.hosts.items():
        host = options or Host()
        hosts.append(
            _make_linux_host(loaded, name, host) if host.kind == "linux" else _make_windows_host(loaded, name, host)
        )
    return Fleet(path, tuple(hosts))


def _inherit_options(
    kind: type[_P], file: FleetFile, name: str, part: str, where: Callable[[Loc], str] = lambda loc: ""
) -> _P:
    """Collect the keys of a part of a host: each from the host, else its first group that sets it, else the
    defaults.
    """
    values: dict[str, Any] = {}
    written_at: dict[str, str] = {}
    host = file.hosts[name] or Host()
    groups = ((("groups", group), file.groups.get(group)) for group in host.groups)
    layers: Iterable[tuple[Loc, object]] = ((("hosts", name), host), *groups, (("defaults",), file.defaults))
    for loc, layer in layers:
        options: _Options | None = getattr(layer, part, None)
        for key in options.model_fields_set - values.keys() if options else ():
            values[key] = getattr(options, key)
            written_at[key] = where((*loc, part, key))
    return kind.model_construct({*values}, **values, written_at=written_at)


_NETWORK_KEYS = {"kind", "tls", "port", "auth", "user", "password", "verify"}
_DISTRO_KEYS = {"key", "passphrase", "user", "address", "port"}
_SSHD_KEYS = {"user", "port", "host_key", "key", "passphrase", "agent", "password", "known_hosts", "jump"}


def _make_windows_host(loaded: Loaded[FleetFile], name: str, host: Host) -> Host:
    address = host.address or name
    transport = _set_transport_defaults(
        _inherit_options(Transport, loaded.value, name, "transport", loaded.describe_position), address
    )
    if isinstance(transport.verify, Path):
        bundle = _resolve_path(loaded, transport.verify)
        check_writers(bundle)
        transport = transport.model_copy(update={"verify": bundle})
    ssh = _inherit_options(Ssh, loaded.value, name, "ssh", loaded.describe_position)
    sftp = host.sftp
    if sftp:
        inherited: dict[str, Any] = {"address": address, "user": transport.user, **timeouts_of(transport)}
        if not _has_credentials(sftp):
            inherited["password"] = transport.password
        sftp = _complete_logon(loaded, sftp, loaded.describe_position(("hosts", name, "sftp")), inherited)
    own_ssh = None if ssh.model_fields_set.isdisjoint(_DISTRO_KEYS) else ssh
    return host.model_copy(
        update={"name": name, "address": address, "transport": transport, "ssh": own_ssh, "sftp": sftp}
    )


def _set_transport_defaults(transport: Transport, address: str) -> Transport:
    """Return the transport with the defaults that depend on its other keys."""
    if address.lower() == "localhost" and transport.model_fields_set.isdisjoint(_NETWORK_KEYS):
        transport = transport.with_defaults(kind=WireKind.LOCAL)
    auth = Auth.NTLM if transport.kind is WireKind.WINRS else Auth.NEGOTIATE
    return transport.with_defaults(port=5986 if transport.tls else 5985, auth=auth)


def _make_linux_host(loaded: Loaded[FleetFile], name: str, host: Host) -> LinuxHost:
    linux = _inherit_options(LinuxHost, loaded.value, name, "ssh", loaded.describe_position)
    is_local = _is_this_computer(host, name, linux)
    unset = {key: loaded.describe_position(("hosts", name, "ssh", key)) for key in ("key", "host_key", "sudo_password")}
    user = getuser() if is_local else linux.user
    linux = linux.model_copy(
        update={
            "name": name,
            "address": host.address or name,
            "groups": host.groups,
            "is_this_computer": is_local,
            "user": user,
            "sudo": user != "root" if linux.sudo is None else linux.sudo,
            "known_hosts": _resolve_path(loaded, linux.known_hosts),
            "written_at": {**unset, **linux.written_at},
        }
    )
    if linux.jump is None:
        return linux
    inherited = {"user": user, "known_hosts": linux.known_hosts, **timeouts_of(linux)}
    if not _has_credentials(linux.jump):  # a password is never shown to both
        inherited |= {"key": linux.key, "passphrase": linux.passphrase, "agent": linux.agent}
    jump = _complete_logon(loaded, linux.jump, linux.written_at["jump"], inherited)
    return linux.model_copy(update={"jump": jump})


def _complete_logon(loaded: Loaded[FleetFile], logon: _L, position: str, inherited: Mapping[str, Any]) -> _L:
    """Return the logon to a second sshd, with inherited keys. position: of the logon in the file."""
    logon = logon.with_defaults(**inherited)
    known_hosts = _resolve_path(loaded, logon.known_hosts)
    return logon.model_copy(update={"known_hosts": known_hosts, "written_at": {"key": position, "host_key": position}})


def timeouts_of(options: _Timeouts) -> dict[str, Any]:
    """Return the timeouts of a connection by name, for another one that shares them."""
    return {key: getattr(options, key) for key in _Timeouts.__annotations__}


def _is_this_computer(host: Host, name: str, ssh: Ssh) -> bool:
    """Tell whether a Linux is the computer that winhost runs on, so that it needs no SSH."""
    return (host.address or name).lower() == "localhost" and ssh.model_fields_set.isdisjoint(_SSHD_KEYS)


def _has_credentials(logon: SharedLogon) -> bool:
    """Tell whether a logon has credentials: a key, the agent or a password."""
    return bool(logon.key or logon.agent or logon.password)


def _resolve_path(loaded: Loaded[FleetFile], path: Path) -> Path:
    return loaded.path.absolute().parent / path.expanduser()


# ---- checks of keys that depend on each other


def _find_mistakes(file: FleetFile) -> Iterator[Mistake]:
    first: dict[str, str] = {}
    for name, options in file.hosts.items():
        if (known := first.setdefault(name.lower(), name)) != name:
            yield ("hosts", name), f"is the same name as '{known}': Windows names know no case"
        host, ssh = options or Host(), _inherit_options(Ssh, file, name, "ssh")
        if host.kind == "linux":
            checks = _check_linux(name, host, ssh)
        else:
            checks = _check_windows(
                host.address or name, host, _inherit_options(Transport, file, name, "transport"), ssh
            )
        for loc, message in checks:
            yield ("hosts", name, *loc), message


_Faults = Iterator[tuple[tuple[str, ...], str]]  # keys below a host, and the fault there


def _check_windows(address: str, host: Host, transport: Transport, ssh: Ssh) -> _Faults:
    """Check a Windows host. transport, ssh: with inherited keys."""
    yield from _windows_logon(address, transport)
    yield from _sftp_logon(host.sftp, transport) if host.sftp else ()
    if transport.kind is WireKind.LOCAL:
        if address.lower() != "localhost":
            yield ("address",), "should be localhost: kind: local is the computer that winhost runs on"
        for key in sorted(host.transport.model_fields_set & _NETWORK_KEYS - {"kind"}):
            yield ("transport", key), "is for a host over the network: kind: local logs on nowhere"
    if ssh.key is None and ssh.passphrase:  # for hosts with kind: linux, layers may set it
        yield ("ssh", "key"), "is missing: the passphrase is that of a key"
    for key in sorted(host.ssh.model_fields_set - _DISTRO_KEYS) if host.ssh else ():
        yield ("ssh", key), "is for a host with kind: linux"  # Windows reports the address and host key of a distro


def _sftp_logon(sftp: Login, transport: Transport) -> _Faults:
    # The transport may have neither: it can use the Windows session of this computer, which is no logon over SSH.
    if not (sftp.user or transport.user):
        yield ("sftp", "user"), "is missing: which account to log on with"
    if not _has_credentials(sftp) and transport.password is None:
        yield ("sftp", "key"), "is missing: give it a key, agent: true, or a password"


def _windows_logon(address: str, transport: Transport) -> _Faults:
    basic, winrs = transport.auth is Auth.BASIC, transport.kind is WireKind.WINRS
    if basic and not transport.tls and not is_loopback(address):
        message = "basic without TLS would send the password readable: set tls: true, or auth: negotiate"
        yield ("transport", "auth"), message
    if winrs and transport.auth is Auth.NEGOTIATE and "auth" in transport.model_fields_set:
        yield ("transport", "auth"), "winrs logs on by ntlm or basic: negotiate is for psrp"
    for key in (
        ("user", "password") if basic or winrs else ()
    ):  # neither can log on as the current user of this computer
        if key not in transport.model_fields_set:
            yield ("transport", key), f"is missing: {'basic' if basic else 'winrs'} needs it"


def _check_linux(name: str, host: Host, ssh: Ssh) -> _Faults:
    """Check a Linux host. ssh: with inherited keys."""
    for part in ("transport", "sftp"):
        if part in host.model_fields_set:
            yield (part,), "is for Windows: a host with kind: linux is reached by ssh alone"
    if ssh.address:
        yield ("ssh", "address"), f"belongs to hosts.{name}.address: a host with kind: linux has one"
    if not _is_this_computer(host, name, ssh):
        if not ssh.user:
            yield ("ssh", "user"), "is missing: which account to log on with"
        if not _has_credentials(ssh):
            yield ("ssh", "key"), "is missing: give it a key, agent: true, or a password"
    if ssh.sudo is False and ssh.sudo_password:
        yield ("ssh", "sudo_password"), "contradicts sudo: false"
