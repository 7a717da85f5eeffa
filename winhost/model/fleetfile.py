"""`fleet.yaml`: what people write in it, and the fleet that it means."""

import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import field, fields
from getpass import getuser
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, Field, PlainValidator, WithJsonSchema

from winhost.core.dataclass import dataclass
from winhost.model.files import heed_writers
from winhost.model.fleet import AnyHost, Auth, Fleet, Host, LinuxHost, Login, Ssh, Sudo, Transport, WireKind
from winhost.model.secrets import SecretRef
from winhost.model.written import Duration, Matching, Omittable, Text, Written
from winhost.model.yamlfile import Loaded, Loc, Mistake, load_placed

Part = Literal["transport", "ssh"]
UNVERIFIED = "insecure-skip-verification"
"""The one spelling that switches TLS verification off, for one host."""

# ---- what people write


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        if re.fullmatch(r"\w[\w.-]*", text):
            return text
    raise ValueError("should be a host name or an IP address alone; a port goes to transport.port or ssh.port")


def _verify(value: object) -> bool | Path:
    if value == UNVERIFIED:
        raise ValueError(f"{UNVERIFIED} is said host by host, not in defaults or groups")
    return _verify_of_host(value)


def _verify_of_host(value: object) -> bool | Path:
    if value is True:
        return True
    if value == UNVERIFIED:
        return False
    if isinstance(value, str) and value and value.isprintable():
        return Path(value)
    raise ValueError(f"should be true, or the path of a CA bundle, or on a single host {UNVERIFIED}")


_CHECKED: list[dict[str, Any]] = [{"const": True}, {"type": "string", "minLength": 1, "not": {"const": UNVERIFIED}}]

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
_Address = Annotated[str, AfterValidator(_address)]
_Port = Annotated[int, Field(ge=1, le=65535)]
_Verify = Annotated[bool | Path, PlainValidator(_verify), WithJsonSchema({"anyOf": _CHECKED})]
_VerifyOfHost = Annotated[
    bool | Path, PlainValidator(_verify_of_host), WithJsonSchema({"anyOf": [*_CHECKED, {"const": UNVERIFIED}]})
]


@dataclass(frozen=True, kw_only=True)
class TransportOptions(Written):
    """The connection to hosts. A key that is omitted here comes from the next layer: host, groups, defaults."""

    kind: Omittable[WireKind] = None
    """The protocol over WSMan: psrp (default), PowerShell remoting, or winrs, where only the remote shell is open. Or
    local: the Windows that winhost runs on, or in whose WSL it runs; the default for address: localhost where no option
    of a network is given.
    """
    tls: Omittable[bool] = None
    """Use HTTPS. Default: true."""
    port: Omittable[_Port] = None
    """TCP port. Default: 5986 with TLS, 5985 without."""
    auth: Omittable[Auth] = None
    """The authentication method. Default: negotiate, or ntlm for winrs. Basic needs TLS, except on loopback."""
    user: Omittable[Text] = None
    """Account, as DOMAIN\\user or user@domain. Without quotes, or with \\\\ inside double quotes."""
    password: Omittable[SecretRef] = None
    """A reference to the password, never the password itself: env:NAME, file:/PATH, cmd:PROGRAM ARGUMENTS,
    keyring:SERVICE/USER.
    """
    verify: Omittable[_Verify] = None
    """true (default), or the path of a CA bundle, relative to this file."""
    connect_timeout: Omittable[Duration] = None
    """The longest time to reach the host. Default: 10s."""
    operation_timeout: Omittable[Duration] = None
    """The longest silence of the host before it must give a sign of life. Default: 20s."""
    call_timeout: Omittable[Duration] = None
    """The longest time of one whole call. Default: 10m."""


@dataclass(frozen=True, kw_only=True)
class HostTransportOptions(TransportOptions):
    """The connection to this host."""

    verify: Omittable[_VerifyOfHost] = None
    """true (default), or the path of a CA bundle, relative to this file, or insecure-skip-verification."""


def _key(value: object) -> SecretRef:
    key = SecretRef.parse(value)
    if key.scheme == "cmd":
        raise ValueError("cmd: gives one line, and a private key has several: write file: or env:")
    return key


_Key = Annotated[SecretRef, PlainValidator(_key, json_schema_input_type=SecretRef)]


def _host_key(text: str) -> str:
    kind, _, data = text.partition(" ")
    if re.fullmatch(r"SHA256:[A-Za-z0-9+/]{43}", text) or (kind.startswith(("ssh-", "ecdsa-")) and data):
        return text
    raise ValueError("should be a fingerprint (SHA256:…), or a public key as in a .pub file")


_HostKey = Annotated[Text, AfterValidator(_host_key)]


@dataclass(frozen=True, kw_only=True)
class LogonOptions(Written):
    """The logon to an sshd, and the keys by which it is known."""

    key: Omittable[_Key] = None
    """A reference to the private key whose public key is let in: file:/PATH, env:NAME, keyring:SERVICE/USER. Default
    for the Linux of a Windows host: one that winhost makes and keeps in its private state.
    """
    passphrase: Omittable[SecretRef] = None
    """A reference to the key's passphrase, if it has one."""
    user: Omittable[Text] = None
    """Account in Linux. Default for a WSL distro: the one that the host tells, which is root."""
    agent: Omittable[bool] = None
    """Use the keys of the ssh-agent of this computer. Default: false. For kind: linux."""
    password: Omittable[SecretRef] = None
    """A reference to the account's password, for an sshd that takes no key. For kind: linux."""
    known_hosts: Omittable[Text] = None
    """A known_hosts file, relative to this one. Default: ~/.ssh/known_hosts. For kind: linux."""


@dataclass(frozen=True, kw_only=True)
class JumpOptions(LogonOptions):
    """The machine through which a host is reached. user, key, agent and known_hosts: where it says none, the host's."""

    address: _Address
    """DNS name or IP address."""
    port: Omittable[_Port] = None
    """TCP port. Default: 22."""
    host_key: Omittable[_HostKey] = None
    """The key that it must show: its fingerprint (SHA256:…), or as in a .pub file."""


@dataclass(frozen=True, kw_only=True)
class SshOptions(LogonOptions):
    """The connection to a Linux: the one in a host's WSL distro, of which Windows says where it listens and which key
    it shows, or a host with kind: linux.
    """

    jump: Omittable[JumpOptions] = None
    """The machine through which it is reached. For kind: linux."""
    sudo: Omittable[bool] = None
    """Become root with sudo. Default: true, unless the user is root. For kind: linux."""
    sudo_password: Omittable[SecretRef] = None
    """A reference to the password that sudo asks for, if it asks for one. For kind: linux."""
    connect_timeout: Omittable[Duration] = None
    """The longest time to reach it. Default: 10s. For kind: linux; else see transport."""
    operation_timeout: Omittable[Duration] = None
    """The longest silence while it works. Default: 20s. For kind: linux; else see transport."""
    call_timeout: Omittable[Duration] = None
    """The longest time of one whole call. Default: 10m. For kind: linux; else see transport."""


@dataclass(frozen=True, kw_only=True)
class HostSshOptions(SshOptions):
    """The connection to the Linux of this host."""

    address: Omittable[_Address] = None
    """The address of a WSL distro, as seen from here. Default: the one on which the host says that it listens, or what
    it forwards.
    """
    port: Omittable[_Port] = None
    """TCP port. Default: likewise; with kind: linux, 22."""
    host_key: Omittable[_HostKey] = None
    """The key that it must show: its fingerprint (SHA256:…), or as in a .pub file. For kind: linux."""


@dataclass(frozen=True, kw_only=True)
class SftpOptions(LogonOptions):
    """The logon to the OpenSSH server of a Windows host, through which large files may be sent."""

    user: Omittable[Text] = None
    """Account in Windows. Default: transport.user."""
    agent: Omittable[bool] = None
    """Use the keys of the ssh-agent of this computer. Default: false."""
    password: Omittable[SecretRef] = None
    """A reference to the account's password. Default: transport.password, where neither a key nor the agent is given.
    """
    known_hosts: Omittable[Text] = None
    """A known_hosts file, relative to this one. Default: ~/.ssh/known_hosts."""
    port: Omittable[_Port] = None
    """TCP port. Default: 22."""
    host_key: Omittable[_HostKey] = None
    """The key that it must show: its fingerprint (SHA256:…), or as in a .pub file."""


@dataclass(frozen=True, kw_only=True)
class LayerOptions(Written):
    """The options of several hosts."""

    transport: Omittable[TransportOptions] = None
    """The connection to these hosts."""
    ssh: Omittable[SshOptions] = None
    """The connection to their Linux."""


@dataclass(frozen=True, kw_only=True)
class HostOptions(Written):
    """One host."""

    kind: Omittable[Literal["windows", "linux"]] = None
    """windows (default), or linux: a Linux of its own, on metal or in a VM, which is reached by SSH alone, or without
    it where winhost runs on it (address: localhost, and no option of ssh but sudo).
    """
    address: Omittable[_Address] = None
    """DNS name or IP address. Default: the host's own name."""
    groups: tuple[_GroupName, ...] = ()
    """Groups it belongs to; where two say different things, the first one listed wins."""
    transport: Omittable[HostTransportOptions] = None
    """The connection to this host."""
    ssh: Omittable[HostSshOptions] = None
    """The connection to its Linux."""
    sftp: Omittable[SftpOptions] = None
    """The logon to the OpenSSH server of this Windows, for large files."""


@dataclass(frozen=True, kw_only=True)
class FleetFile(Written):
    """fleet.yaml: the hosts that winhost manages, and how each is reached."""

    schema: Literal["winhost.fleet/1"]
    """The version of this format."""
    defaults: Omittable[LayerOptions] = None
    """Options of all hosts, unless a group or the host says otherwise."""
    groups: dict[_GroupName, LayerOptions | None] = field(default_factory=dict)
    """Options of the hosts of a group. A group that says nothing need not be listed."""
    hosts: dict[_HostName, HostOptions | None]
    """The hosts by name."""


# ---- from what is written to what it means


def load_fleet(path: Path) -> Fleet:
    """Reads a fleet.yaml. Raises UsageError (FileFaults) with all of its faults. Resolves no secret."""
    loaded = load_placed(path, FleetFile, _disagreements)
    return Fleet(path, tuple(_host(loaded, name) for name in loaded.value.hosts))


def _host(loaded: Loaded[FleetFile], name: str) -> AnyHost:
    options = loaded.value.hosts[name] or HostOptions()
    if options.kind == "linux":
        return _linux_host(loaded, name, options)
    given = _given(loaded.value, name)
    values: dict[str, Any] = {key: value for key, (_, value) in given.items()}
    if (options.address or name).lower() == "localhost" and values.keys().isdisjoint(_OF_NETWORKS):
        values["kind"] = WireKind.LOCAL
    if values.get("kind") is WireKind.WINRS:
        values.setdefault("auth", Auth.NTLM)
    values.setdefault("port", 5986 if values.get("tls", True) else 5985)
    if isinstance(bundle := values.get("verify"), Path):
        values["verify"] = loaded.path.absolute().parent / bundle.expanduser()
        heed_writers(values["verify"])
    if values.get("verify") is False:
        values["verify_at"] = loaded.where(given["verify"][0])
    if "password" in given:
        values["password_at"] = loaded.where(given["password"][0])
    transport, address = Transport(**values), options.address or name
    sftp = _sftp(loaded, name, address, transport) if options.sftp else None
    return Host(name, address, transport, options.groups, _ssh(loaded, name), sftp)


def _ssh(loaded: Loaded[FleetFile], name: str) -> Ssh | None:
    given = {key: value for key, value in _given(loaded.value, name, "ssh").items() if key in _OF_DISTROS}
    if not given:
        return None
    key_at = loaded.where(given["key"][0]) if "key" in given else None
    return Ssh(**{key: value for key, (_, value) in given.items()}, key_at=key_at)


def _sftp(loaded: Loaded[FleetFile], name: str, address: str, transport: Transport) -> Login:
    """The SFTP logon: as the account of the transport, unless it says otherwise."""
    options = (loaded.value.hosts[name] or HostOptions()).sftp
    assert options is not None
    said = {key: value for key in _LOGON if (value := getattr(options, key)) is not None}
    if not _proves(said) and transport.password:
        said["password"] = transport.password
    where = loaded.where(("hosts", name, "sftp"))
    return Login(
        address,
        **{"user": transport.user, **{key: getattr(transport, key) for key in _TIMEOUTS}, **said},
        known_hosts=_known_hosts(loaded, options.known_hosts),
        key_at=where,
        host_key_at=where,
    )


_OF_NETWORKS = ("kind", "tls", "port", "auth", "user", "password", "verify")
_OF_DISTROS = ("key", "passphrase", "user", "address", "port")
_LOGON = ("user", "port", "host_key", "key", "passphrase", "agent", "password")
_OF_SSHD = (*_LOGON, "known_hosts", "jump")
_TIMEOUTS = ("connect_timeout", "operation_timeout", "call_timeout")


def _linux_host(loaded: Loaded[FleetFile], name: str, options: HostOptions) -> LinuxHost:
    given = _given(loaded.value, name, "ssh")
    said: dict[str, Any] = {key: value for key, (_, value) in given.items()}
    here = _is_here(options, name, said)
    if here:
        said["user"] = getuser()

    def where(*keys: str) -> str:
        found = next((given[key][0] for key in keys if key in given), ("hosts", name, "ssh", keys[0]))
        return loaded.where(found)

    login = Login(
        options.address or name,
        **{key: said[key] for key in (*_LOGON, *_TIMEOUTS) if key in said},
        known_hosts=_known_hosts(loaded, said.get("known_hosts")),
        key_at=where("key", "password", "agent"),
        host_key_at=where("host_key", "known_hosts"),
    )
    jump = _jump(loaded, login, said["jump"], where("jump")) if "jump" in said else None
    becomes_root = said.get("sudo", login.user != "root")
    sudo = Sudo(said.get("sudo_password"), where("sudo_password")) if becomes_root else None
    return LinuxHost(name, login, options.groups, jump, sudo, here)


def _is_here(options: HostOptions, name: str, said: Mapping[str, Any]) -> bool:
    """A Linux without SSH: the one that winhost runs on."""
    return (options.address or name).lower() == "localhost" and said.keys().isdisjoint(_OF_SSHD)


def _jump(loaded: Loaded[FleetFile], login: Login, options: JumpOptions, where: str) -> Login:
    """The logon to a jump host. Omitted keys are as on the host; a password is never shown to both."""
    said = _said(options)
    inherited = () if _proves(said) else ("key", "passphrase", "agent")
    known_hosts = said.get("known_hosts")
    values = {key: getattr(login, key) for key in ("user", *inherited, *_TIMEOUTS)}
    return Login(
        options.address,
        **values | {key: said[key] for key in _LOGON if key in said},
        known_hosts=_known_hosts(loaded, known_hosts) if known_hosts else login.known_hosts,
        key_at=where,
        host_key_at=where,
    )


def _proves(said: Mapping[str, Any]) -> bool:
    """Tell whether options of a logon name something to show: a key, the agent, a password."""
    return any(map(said.get, ("key", "agent", "password")))


def _known_hosts(loaded: Loaded[FleetFile], said: str | None) -> Path:
    return loaded.path.absolute().parent / Path(said or "~/.ssh/known_hosts").expanduser()


def _said(options: Written) -> dict[str, Any]:
    """The options that are set, in alphabetical order."""
    values = {each.name: getattr(options, each.name) for each in fields(cast(Any, options))}
    return {name: value for name, value in sorted(values.items()) if value is not None}


def _given(file: FleetFile, name: str, part: Part = "transport") -> dict[str, tuple[Loc, Any]]:
    """Each option of a part that is set for a host, by the strongest layer that sets it, and where."""
    given: dict[str, tuple[Loc, Any]] = {}
    for layer, options in _layers(file, name, part):
        for key, value in _said(options).items():
            given.setdefault(key, ((*layer, key), value))
    return given


def _layers(file: FleetFile, name: str, part: Part) -> Iterator[tuple[Loc, TransportOptions | SshOptions]]:
    host = file.hosts[name] or HostOptions()
    layers: list[tuple[Loc, HostOptions | LayerOptions | None]] = [
        (("hosts", name), host),
        *((("groups", group), file.groups.get(group)) for group in host.groups),
        (("defaults",), file.defaults),
    ]
    for loc, layer in layers:
        options: TransportOptions | SshOptions | None = getattr(layer, part, None)
        if options is not None:
            yield (*loc, part), options


def _disagreements(file: FleetFile) -> Iterator[Mistake]:
    """Find faults that show only when parts of the file are seen together."""
    first: dict[str, str] = {}
    for name, options in file.hosts.items():
        if (known := first.setdefault(name.lower(), name)) != name:
            yield ("hosts", name), f"is the same name as '{known}': Windows names know no case"
        ssh = {key: value for key, (_, value) in _given(file, name, "ssh").items()}
        transport = {key: value for key, (_, value) in _given(file, name).items()}
        checks = _of_linux(name, options or HostOptions(), ssh)
        if options is None or options.kind != "linux":
            checks = _of_windows(name, options or HostOptions(), transport, ssh)
        for loc, message in checks:
            yield ("hosts", name, *loc), message


_Faults = Iterator[tuple[tuple[str, ...], str]]  # keys below a host, and what is wrong there


def _of_windows(name: str, options: HostOptions, given: Mapping[str, Any], ssh: Mapping[str, Any]) -> _Faults:
    """given, ssh: the values of `transport` and `ssh`, of whatever layer."""
    address = options.address or name
    yield from _windows_logon(address, given)
    if given.get("kind") is WireKind.LOCAL:
        yield from _this_computer(address, options)
    if "key" not in ssh and "passphrase" in ssh:  # of hosts with kind: linux, layers may say it
        yield ("ssh", "key"), "is missing: the passphrase is that of a key"
    for key in sorted(_said(options.ssh).keys() - {*_OF_DISTROS}) if options.ssh else ():
        yield ("ssh", key), "is for a host with kind: linux"  # Windows says where a distro is and what it shows
    if options.sftp:
        said = _said(options.sftp)
        # The transport may name neither: the Windows session of this computer is no logon over SSH.
        if "user" not in {**said, **given}:
            yield ("sftp", "user"), "is missing: which account to log on with"
        if not _proves(said) and "password" not in given:
            yield ("sftp", "key"), "is missing: give it a key, agent: true, or a password"


def _windows_logon(address: str, given: Mapping[str, Any]) -> _Faults:
    basic, winrs = given.get("auth") is Auth.BASIC, given.get("kind") is WireKind.WINRS
    if basic and given.get("tls") is False and not _is_loopback(address):
        message = "basic without TLS would send the password readable: set tls: true, or auth: negotiate"
        yield ("transport", "auth"), message
    if winrs and given.get("auth") is Auth.NEGOTIATE:
        yield ("transport", "auth"), "winrs logs on by ntlm or basic: negotiate is for psrp"
    for key in ("user", "password") if basic or winrs else ():  # neither can log on as the user of this computer
        if key not in given:
            yield ("transport", key), f"is missing: {'basic' if basic else 'winrs'} needs it"


def _this_computer(address: str, options: HostOptions) -> _Faults:
    if address.lower() != "localhost":
        yield ("address",), "should be localhost: kind: local is the computer that winhost runs on"
    said = _said(options.transport) if options.transport else {}
    for key in sorted(said.keys() & ({*_OF_NETWORKS} - {"kind"})):
        yield ("transport", key), "is for a host over the network: kind: local logs on nowhere"


def _of_linux(name: str, options: HostOptions, given: Mapping[str, Any]) -> _Faults:
    """given: the values of `ssh`, of whatever layer."""
    for part in ("transport", "sftp"):
        if getattr(options, part) is not None:
            yield (part,), "is for Windows: a host with kind: linux is reached by ssh alone"
    if "address" in given:
        yield ("ssh", "address"), f"belongs to hosts.{name}.address: a host with kind: linux has one"
    if not _is_here(options, name, given):
        if "user" not in given:
            yield ("ssh", "user"), "is missing: which account to log on with"
        if not _proves(given):
            yield ("ssh", "key"), "is missing: give it a key, agent: true, or a password"
    if given.get("sudo") is False and "sudo_password" in given:
        yield ("ssh", "sudo_password"), "contradicts sudo: false"


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address.lower() == "localhost"
