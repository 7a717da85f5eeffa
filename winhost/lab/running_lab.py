"""A running lab: simulated hosts, their endpoints on loopback, and the fleet file with which winhost reaches them."""

import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

from winhost.lab.hostfile import expand
from winhost.lab.lab_host import LabHost
from winhost.lab.linux.linuxes import LinuxHost
from winhost.lab.physics.lab_section import LabClock
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.ssh_keys import private_text, public_line
from winhost.lab.wire.wsman_endpoint import Endpoint
from winhost.resources.registry import is_linux

if TYPE_CHECKING:
    from winhost.lab.wire.ssh_endpoint import SshEndpoint

USER = "LAB\\admin"
ALL_HOSTS = ("*",)
SSH_KEY_FILE = "ssh-key"  # in the lab's folder; its public half has .pub
CONTRACT, PWSH = ("contract", "pwsh")


class Lab:
    """Hosts from host files or facts files, each behind its own endpoint until the lab is closed.

    folder: gets fleet.yaml, the certificates, a password file and an SSH key that only their owner can read, and the
    public key. scale: real seconds per lab second. tls: hosts (or ALL_HOSTS) that use HTTPS; the others use HTTP with
    messages encrypted by NTLM. engine: CONTRACT answers as the scripts would, PWSH runs the scripts in a PowerShell of
    this computer (raises UsageError: NoEngine).
    """

    def __init__(
        self,
        files: Sequence[Path],
        folder: Path,
        *,
        scale: float = 0.01,
        tls: Sequence[str] = (),
        engine: str = CONTRACT,
    ) -> None:
        self.folder = folder
        self.hosts: dict[str, LabHost] = {}
        self.endpoints: dict[str, Endpoint] = {}
        self.ssh_endpoints: dict[str, SshEndpoint] = {}
        self.linux_hosts: dict[str, LinuxHost] = {}
        self._running = ExitStack()
        self._password = secrets.token_urlsafe(18)
        self._seed = secrets.token_bytes(32)
        clock = LabClock(scale)
        for file in files:
            facts, section = expand(file)
            # Several files may be about the same host: its later copies are named by their files.
            names = (facts.host, file.stem, *(f"{file.stem}-{number}" for number in range(2, len(files) + 2)))
            name = next(name for name in names if name not in {**self.hosts, **self.linux_hosts})
            if is_linux(facts):
                self.linux_hosts[name] = LinuxHost(facts, section, clock)
            else:
                self.hosts[name] = _make_host(Machine(facts, section, clock), engine)
        self._tls = frozenset(self.hosts if tls == ALL_HOSTS else tls)

    @property
    def public_key(self) -> str:
        """The public half of the SSH key in fleet.yaml, which the Linuxes accept."""
        return f"{public_line(self._seed)} lab"

    @property
    def fleet_file(self) -> Path:
        return self.folder / "fleet.yaml"

    def __enter__(self) -> Self:
        from winhost.lab.wire.ssh_endpoint import SshEndpoint

        with ExitStack() as undo:
            for name, host in self.hosts.items():
                undo.enter_context(host)
                endpoint = Endpoint(host, {USER: self._password}, tls=name in self._tls)
                self.endpoints[name] = undo.enter_context(endpoint)
                self.ssh_endpoints[name] = undo.enter_context(SshEndpoint(host.linux))
            for name, linux in self.linux_hosts.items():
                linux.authorized = (self.public_key,)
                self.ssh_endpoints[name] = undo.enter_context(SshEndpoint(linux))
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write_secret("password", self._password)
            self._write_secret(SSH_KEY_FILE, private_text(self._seed))
            (self.folder / f"{SSH_KEY_FILE}.pub").write_text(f"{self.public_key}\n", encoding="utf-8")
            self.fleet_file.write_text(self.fleet(), encoding="utf-8")
            self._running = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()
        for name in ("password", SSH_KEY_FILE):
            (self.folder / name).unlink(missing_ok=True)

    def _write_secret(self, name: str, text: str) -> None:
        path = self.folder / name
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)

    def fleet(self) -> str:
        """Return the text of the fleet file."""
        lines = ["# Simulated hosts: they exist while the lab runs.", "schema: winhost.fleet/1", "hosts:"]
        for name, endpoint in self.endpoints.items():
            # The address of a simulated Linux does not exist: its SSH server is this endpoint.
            ssh = {**self._ssh(self.ssh_endpoints[name]), "address": "127.0.0.1"}
            lines += _render_fleet_host(name, {"transport": self._transport(endpoint), "ssh": ssh})
        for name, linux in self.linux_hosts.items():
            ssh = {**self._ssh(self.ssh_endpoints[name]), "user": linux.user, "host_key": linux.host_key}
            lines += [*_render_fleet_host(name, {"ssh": ssh}), "    kind: linux"]
        return "\n".join(lines) + "\n"

    def _transport(self, endpoint: Endpoint) -> dict[str, object]:
        certificate = endpoint.certificate_path
        return {
            "port": endpoint.port,
            "tls": certificate is not None,
            "auth": "ntlm",
            "user": USER,
            "password": f"file:{(self.folder / 'password').resolve()}",
            **({"verify": str(certificate)} if certificate else {}),
        }

    def _ssh(self, endpoint: "SshEndpoint") -> dict[str, object]:
        return {"key": f"file:{(self.folder / SSH_KEY_FILE).resolve()}", "port": endpoint.port}


def _render_fleet_host(name: str, sections: Mapping[str, Mapping[str, object]]) -> Iterator[str]:
    """Yield the lines of a host in the fleet file."""
    yield from (f"  {json.dumps(name)}:", "    address: 127.0.0.1", "    groups: [lab]")
    for section, options in sections.items():
        yield f"    {section}:"
        yield from (f"      {key}: {json.dumps(value)}" for key, value in options.items())


def _make_host(machine: Machine, engine: str) -> LabHost:
    if engine == CONTRACT:
        return LabHost(machine)
    from winhost.lab.powershell_host import EngineHost

    return EngineHost(machine)
