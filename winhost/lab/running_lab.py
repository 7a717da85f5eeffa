"""Simulated hosts, served: endpoints on loopback and the fleet file that leads to them."""

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
ALL = ("*",)
KEY = "ssh-key"  # in the lab's folder; its public half has .pub
CONTRACT, PWSH = ("contract", "pwsh")


class Lab:
    """Hosts from host files or facts files, each behind its own endpoint until the lab is closed.

    `folder` gets fleet.yaml, the certificates, the password's file and an SSH key (both the owner's alone; the public
    half lies beside it). `scale`: real seconds per lab second. Hosts in `tls` (or ALL) answer on HTTPS, the others on
    HTTP, where NTLM encrypts the messages. `engine`: CONTRACT answers as the scripts would, PWSH runs them in a
    PowerShell of this computer (raises UsageError: NoEngine).
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
        self.linuxes: dict[str, SshEndpoint] = {}
        self.linux_hosts: dict[str, LinuxHost] = {}
        self._running = ExitStack()
        self._password = secrets.token_urlsafe(18)
        self._seed = secrets.token_bytes(32)
        clock = LabClock(scale)
        for file in files:
            facts, section = expand(file)
            # Situations are often of one machine: then the file's name tells them apart.
            names = (facts.host, file.stem, *(f"{file.stem}-{number}" for number in range(2, len(files) + 2)))
            name = next(name for name in names if name not in {**self.hosts, **self.linux_hosts})
            if is_linux(facts):
                self.linux_hosts[name] = LinuxHost(facts, section, clock)
            else:
                self.hosts[name] = _host(Machine(facts, section, clock), engine)
        self._tls = frozenset(self.hosts if tls == ALL else tls)

    @property
    def public_key(self) -> str:
        """The public part of the key that fleet.yaml names for the Linuxes: a way into one lets it in."""
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
                self.linuxes[name] = undo.enter_context(SshEndpoint(host.linux))
            for name, linux in self.linux_hosts.items():
                linux.authorized = (self.public_key,)
                self.linuxes[name] = undo.enter_context(SshEndpoint(linux))
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write_secret("password", self._password)
            self._write_secret(KEY, private_text(self._seed))
            (self.folder / f"{KEY}.pub").write_text(f"{self.public_key}\n", encoding="utf-8")
            self.fleet_file.write_text(self.fleet(), encoding="utf-8")
            self._running = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()
        for name in ("password", KEY):
            (self.folder / name).unlink(missing_ok=True)

    def _write_secret(self, name: str, text: str) -> None:
        path = self.folder / name
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)

    def fleet(self) -> str:
        """The fleet file that leads to these hosts."""
        lines = ["# Simulated hosts: they are there as long as the lab runs.", "schema: winhost.fleet/1", "hosts:"]
        for name, endpoint in self.endpoints.items():
            # Where the host says that its Linux listens, there is none: it is simulated.
            ssh = {**self._ssh(self.linuxes[name]), "address": "127.0.0.1"}
            lines += _listed(name, {"transport": self._transport(endpoint), "ssh": ssh})
        for name, linux in self.linux_hosts.items():
            ssh = {**self._ssh(self.linuxes[name]), "user": linux.user, "host_key": linux.host_key}
            lines += [*_listed(name, {"ssh": ssh}), "    kind: linux"]
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
        return {"key": f"file:{(self.folder / KEY).resolve()}", "port": endpoint.port}


def _listed(name: str, parts: Mapping[str, Mapping[str, object]]) -> Iterator[str]:
    """A host of the fleet file."""
    yield from (f"  {json.dumps(name)}:", "    address: 127.0.0.1", "    groups: [lab]")
    for part, options in parts.items():
        yield f"    {part}:"
        yield from (f"      {key}: {json.dumps(value)}" for key, value in options.items())


def _host(machine: Machine, engine: str) -> LabHost:
    if engine == CONTRACT:
        return LabHost(machine)
    from winhost.lab.powershell_host import EngineHost

    return EngineHost(machine)
