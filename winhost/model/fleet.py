"""A fleet: the hosts that winhost manages, how each is reached, and where their file is."""

import os
from collections.abc import Sequence
from dataclasses import field
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path

from winhost.core.dataclass import dataclass
from winhost.model.errors import UsageError, did_you_mean, visible
from winhost.model.secrets import SecretRef


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


@dataclass(frozen=True)
class Transport:
    """The connection to a Windows over WSMan. Timeouts in seconds."""

    port: int
    kind: WireKind = WireKind.PSRP
    tls: bool = True
    auth: Auth = Auth.NEGOTIATE
    user: str | None = None
    password: SecretRef | None = None
    verify: bool | Path = True
    """True if the certificate is checked, or the CA bundle that it is checked against."""
    connect_timeout: int = 10
    operation_timeout: int = 20
    call_timeout: int = 600
    password_at: str | None = field(default=None, compare=False)
    """The position of the password's reference: `hosts.gpu-01.transport.password (fleet.yaml:14)`."""
    verify_at: str | None = field(default=None, compare=False)
    """Likewise, where it is said that the certificate is not checked."""


@dataclass(frozen=True)
class Ssh:
    """The connection to the Linux in a host's WSL distro, as far as the host does not tell it itself.

    key: left out, the one that winhost makes; user, address, port: left out, as Windows says.
    """

    key: SecretRef | None = None
    passphrase: SecretRef | None = None
    user: str | None = None
    address: str | None = None
    port: int | None = None
    key_at: str | None = field(default=None, compare=False)
    """The position of the key's reference: `hosts.gpu-01.ssh.key (fleet.yaml:18)`."""


@dataclass(frozen=True)
class Login:
    """The logon to one sshd: its address, the key that it must show, and what is shown to it. Timeouts in seconds.

    host_key: a fingerprint (`SHA256:…`), or keys as in .pub files, one a line; without it `known_hosts` must know the
    machine. key, agent, password: what of these there is, in this order.
    """

    address: str
    user: str
    port: int = 22
    host_key: str | None = None
    known_hosts: Path | None = None
    key: SecretRef | None = None
    passphrase: SecretRef | None = None
    agent: bool = False
    password: SecretRef | None = None
    connect_timeout: int = 10
    operation_timeout: int = 20
    call_timeout: int = 600
    key_at: str | None = field(default=None, compare=False)
    """The position in fleet.yaml that says how to log on: `hosts.llm-01.ssh.key (fleet.yaml:18)`."""
    host_key_at: str | None = field(default=None, compare=False)
    """Likewise, by what the machine is known."""


@dataclass(frozen=True)
class Sudo:
    """Becoming root with sudo. password: none where sudoers asks for none."""

    password: SecretRef | None = None
    password_at: str | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Host:
    """A Windows machine that winhost manages. ssh: None where winhost does not enter its Linux; sftp: the logon to its
    own OpenSSH server, where files may be sent through that.
    """

    name: str
    address: str
    transport: Transport
    groups: tuple[str, ...] = ()
    ssh: Ssh | None = None
    sftp: Login | None = None


@dataclass(frozen=True)
class LinuxHost:
    """A Linux that winhost manages by itself, on metal or in a VM. jump: the machine through which it is reached;
    sudo: None where the user is root, or is not to become root; here: winhost runs on it, so that no logon is needed.
    """

    name: str
    login: Login
    groups: tuple[str, ...] = ()
    jump: Login | None = None
    sudo: Sudo | None = None
    here: bool = False

    @property
    def address(self) -> str:
        return self.login.address


AnyHost = Host | LinuxHost


@dataclass(frozen=True)
class Fleet:
    """The hosts of one fleet.yaml, in its order."""

    file: Path
    hosts: tuple[AnyHost, ...]

    def select(self, words: Sequence[str]) -> list[AnyHost]:
        """The hosts meant by names, patterns (`gpu-*`) and groups (`@dda`), each once, in the order of the words.

        Raises UsageError: UnknownHost, for a word that means no host.
        """
        chosen: dict[str, AnyHost] = {}
        for word in words:
            chosen.update((host.name, host) for host in self._meant(word))
        return list(chosen.values())

    def _meant(self, word: str) -> list[AnyHost]:
        if word.startswith("@"):
            found = [host for host in self.hosts if word[1:].lower() in host.groups]
            known = {f"@{group}" for host in self.hosts for group in host.groups}
        else:
            found = [host for host in self.hosts if fnmatchcase(host.name.lower(), word.lower())]
            known = {host.name for host in self.hosts}
        if not found:
            raise self._unknown(word, sorted(known))
        return found

    def _unknown(self, word: str, known: Sequence[str]) -> UsageError:
        kind, name = ("group", word[1:]) if word.startswith("@") else ("host", word)
        more = f" and {len(known) - _MOST_KNOWN:,} more" if len(known) > _MOST_KNOWN else ""
        return UsageError(
            "UnknownHost",
            what=f"no {kind} '{visible(name)}' in {visible(self.file.name)}{did_you_mean(word, known)}",
            hint=f"known: {', '.join(known[:_MOST_KNOWN])}{more}" if known else None,
        )


_MOST_KNOWN = 40

_SMALLEST_FLEET = r"""Add a host, which asks for its password and writes it: winhost host add USER@ADDRESS
Or write one:
  schema: winhost.fleet/1
  hosts:
    gpu-01:
      address: gpu-01.example.com
      transport:
        user: EXAMPLE\svc-gpu
        password: env:GPU01_PASSWORD"""


def in_url(address: str) -> str:
    """The address as URLs and USER@ADDRESS have it: one of IPv6 within brackets."""
    return f"[{address}]" if ":" in address else address


def find_fleet(path: Path | None) -> Path:
    """The file that is named, else in WINHOST_FLEET, else ./fleet.yaml, else the user's own.

    Raises UsageError: NoFleet.
    """
    named = path or os.environ.get("WINHOST_FLEET")
    places = (Path(named),) if named else (Path("fleet.yaml"), config_folder() / "fleet.yaml")
    if named and places[0].is_dir():
        places = (places[0] / "fleet.yaml",)  # of a lab's folder
    for place in places:
        if place.exists():
            return place
    looked = ", then ".join(visible(str(path)) for path in places)
    raise UsageError("NoFleet", what=f"no fleet.yaml: looked for {looked}", hint=_SMALLEST_FLEET)


def config_folder() -> Path:
    from platformdirs import user_config_path

    return user_config_path("winhost", appauthor=False)
