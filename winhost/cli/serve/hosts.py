"""The hosts that serve by the journals of this computer, their endpoints, and lines to paste that ask them."""

import http.client
import json
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from functools import cached_property
from pathlib import Path

from winhost.cli import named_hosts
from winhost.cli.shells import Shell, command_line, command_to_show_key, detect_shell, post_with_key
from winhost.cli.up.first_completion import ENDPOINT_ADDRESS, planned_deployment, reachable_address
from winhost.connect.tunnel import SshWay
from winhost.core.answers import identity
from winhost.core.checks import Check
from winhost.core.dataclass import dataclass
from winhost.engine.journal import read_journal
from winhost.engine.run_state import RunNeverBegan, RunState, has_ended, replay
from winhost.engine.store import Store
from winhost.model.errors import UsageError, WinhostError, did_you_mean, visible
from winhost.model.fleet import AnyHost, Fleet, LinuxHost
from winhost.model.path import path_of
from winhost.model.secrets import SecretRef
from winhost.serving.deployed import PATH, Deployed

_SSH = 22
_ANSWERS_WITHIN_S = 2  # on the same machine
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class ServingRun:
    """A run that left an endpoint, and what its journal has of it. host: as the fleet has it, None if it does not;
    found: the address of the endpoint for this computer, found by the session at the end of the run.
    """

    record: RunState
    deployed: Deployed
    host: AnyHost | None
    found: str | None = None

    @property
    def run(self) -> str:
        return self.record.run

    @property
    def since(self) -> str:
        """The time at which the run ended."""
        return self.record.last

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(each.model for each in self.deployed.published)

    @property
    def key(self) -> str | None:
        """The reference of the plan to an API key, if it had one."""
        return self.record.plan.request.asks_with

    @cached_property
    def url(self) -> str | None:
        """The URL at which this computer reaches the endpoint without a tunnel; None if it needs one."""
        return self.deployed.gateway.url(self.address) if self.address else None

    @cached_property
    def address(self) -> str | None:
        """The address of the endpoint for this computer, as far as it is known without a logon. A distro or guest with
        its own address has to be asked for it.
        """
        gateway = self.deployed.gateway
        if gateway.address in LOOPBACK:
            here = is_this_linux(self.host) or self._is_passed_on(gateway.address, gateway.port)
            return gateway.address if here else None
        if self.found:
            return self.found
        reached = self.host.address if self.host else None

        def way() -> SshWay | None:
            if not isinstance(self.host, LinuxHost):
                return None
            jump = self.host.jump.address if self.host.jump else None
            return SshWay(self.host.user, self.host.address, self.host.port, None, jump)

        return reachable_address(self.record, gateway, reached, way)

    def _is_passed_on(self, address: str, port: int) -> bool:
        """Tell whether the loopback of the Windows below this Linux leads to its distro. .wslconfig decides that, port
        by port, so this asks the gateway there, without a key.
        """
        wsl = path_of(self.record.plan.request.path) == "wsl2" and not self.deployed.gateway.tls
        if not wsl or self.host is None or not named_hosts.is_local(self.host):
            return False
        try:
            with closing(http.client.HTTPConnection(address, port, timeout=_ANSWERS_WITHIN_S)) as connection:
                connection.request("GET", "/health")
                return connection.getresponse().getheader("Server") == "winhost"
        except (OSError, http.client.HTTPException):
            return False


def is_this_linux(host: AnyHost | None) -> bool:
    """Tell whether a host's loopback is that of this machine. A port other than 22 may be forwarded to another machine,
    and for a WSL distro .wslconfig decides.
    """
    if not isinstance(host, LinuxHost) or host.jump is not None:
        return False
    return host.address.lower() in LOOPBACK and host.port == _SSH


def served_by(record: RunState, host: AnyHost | None, checks: Iterable[Check] = ()) -> ServingRun | None:
    """Return the endpoint that a run made on its host; None if it made none. checks: those at its end."""
    deployed = planned_deployment(record)
    found = next(
        (each.found for each in checks if each.property == ENDPOINT_ADDRESS and isinstance(each.found, dict)), {}
    )
    address = found.get("address")
    return ServingRun(record, deployed, host, str(address) if address else None) if deployed else None


def hosts_by_name(fleet: Fleet | None) -> dict[str, AnyHost]:
    """Return the hosts of a fleet, and this machine by its own name where the fleet has none of that name."""
    hosts = {each.name: each for each in fleet.hosts} if fleet else {}
    hosts.setdefault(named_hosts.this_machine_name(), named_hosts.this_machine())
    return hosts


@dataclass(frozen=True)
class Targets:
    """The hosts that words on the command line may name: those of the fleet, and those of this computer's journals.

    serving: by host, the newest run that left an endpoint and was not rolled back, the latest first; unfinished: runs
    that neither ended nor were rolled back; unreadable: why a journal cannot be read, though the changes of its run may
    stand.
    """

    fleet: Fleet | None
    serving: Mapping[str, ServingRun]
    unfinished: tuple[RunState, ...]
    unreadable: tuple[WinhostError, ...] = ()

    @classmethod
    def read(cls, fleet_file: Path | None) -> "Targets":
        return cls.read_with(named_hosts.load_fleet_if_any(fleet_file))

    @classmethod
    def read_with(cls, fleet: Fleet | None) -> "Targets":
        """Read the journals of this computer."""
        store, hosts = Store(), hosts_by_name(fleet)
        serving: dict[str, ServingRun] = {}
        unfinished: list[RunState] = []
        unreadable: list[WinhostError] = []
        for name in reversed(store.runs()):
            try:
                lines = read_journal(store.existing(name))
                if has_ended(lines) and name.rpartition(".")[0] in {store.file_name(each) for each in serving}:
                    continue  # an older one of a host whose state is known
                record = replay(name, lines)
            except RunNeverBegan:
                continue
            except WinhostError as error:
                unreadable.append(error)
                continue
            if record.outcome is None and not record.unchanged:
                unfinished.append(record)
            served = served_by(record, hosts.get(record.host)) if _left(record) else None
            if served and record.host not in serving:
                serving[record.host] = served
        return cls(fleet, serving, tuple(unfinished), tuple(unreadable))

    @property
    def _hosts(self) -> Mapping[str, AnyHost]:
        return {each.name: each for each in self.fleet.hosts} if self.fleet else {}

    @property
    def names(self) -> tuple[str, ...]:
        unfinished = (each.host for each in self.unfinished)
        return tuple(dict.fromkeys((*self.serving, *unfinished, *self._hosts)))

    def named(self, word: str) -> str:
        """The host that a word means. Raises UsageError."""
        if found := self.meant(word):
            return found
        raise UsageError(
            "NoSuchHost",
            what=f"no host '{visible(word)}' serves here, and fleet.yaml has none{did_you_mean(word, self.names)}",
            hint=f"There are: {', '.join(self.names)}" if self.names else "Add it: winhost host add USER@ADDRESS",
        )

    def meant(self, word: str) -> str | None:
        if word.lower() == named_hosts.LOCALHOST:
            word = next(
                (name for name, host in self._hosts.items() if named_hosts.is_local(host)),
                named_hosts.this_machine_name(),
            )
        return next((each for each in self.names if each.lower() == word.lower()), None)

    @property
    def only(self) -> str:
        """The one host that serves. Raises UsageError, WinhostError."""
        serving = sorted(self.serving)
        if not serving:
            named = next(iter(self._hosts), None)
            raise WinhostError(
                "NothingHere",
                what="nothing is served, by the journals of this computer",
                meaning="Another computer may have set up an endpoint: then name its host, and --api-key.",
                hint=f"Serve a model on it: winhost up --on {named}"
                if named
                else "Serve a model on this machine: winhost up",
            )
        if len(serving) > 1:
            what = f"{len(serving)} hosts serve: {', '.join(serving)}"
            raise UsageError("WhichHost", what=what, hint="Name one of them.")
        return serving[0]

    def host(self, name: str) -> AnyHost | None:
        run = self.serving.get(name)
        return run.host if run else self._hosts.get(name)


def _left(record: RunState) -> bool:
    """Tell by the journal whether the deployment of a run is still there."""
    if record.outcome in ("applied", "differs"):
        return True
    file = record.touched.get(identity("LinuxFile", {"path": PATH}))
    partly = record.outcome in ("partly rolled back", "not all rolled back")
    return partly and file is not None and not file.is_restored


def paste_lines(url: str, model: str, key: str | None, shell: Shell | None = None) -> Iterator[str]:
    """Yield the values for a client, and a request for the user's shell. url: as this computer reaches the gateway."""
    shell = shell or detect_shell()
    reference = SecretRef.parse(key) if key else None
    read = str(reference) if reference else "the one that you named with --api-key; put it into API_KEY"
    if reference and shell is Shell.CMD and reference.scheme != "env":
        read += "; put it into API_KEY for the line below"
    yield f"Base URL: {url}/v1"
    yield f"Model:    {model}"
    yield f"API key:  {read}"
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Say hello"}]})
    yield "  " + post_with_key(f"{url}/v1/chat/completions", body, shell, reference)


def lines_of_served(served: ServingRun, shell: Shell | None = None) -> Iterator[str]:
    """Tell at the end of a run how to use what it serves, from this computer."""
    shell, host = shell or detect_shell(), served.record.host
    yield f"Served:   {', '.join(served.models)}, each after a completion of its own"
    if served.address:
        address, gateway = served.address, served.deployed.gateway
        if address in LOOPBACK and gateway.address not in LOOPBACK:
            address = socket.gethostname()  # the name of this computer, which other machines use
        url = gateway.url(address)
        yield from paste_lines(url, served.models[0], served.key, shell)
    else:
        key = SecretRef.parse(served.key) if served.key else None
        yield f"API key:  {key or 'the one that you named with --api-key'}"
        if key and (see := command_to_show_key(key, shell)):
            yield f"  {see}"
        listen = served.deployed.gateway.listen
        yield f"The endpoint listens on {listen} of {host}. A tunnel with its base URL, until Ctrl-C:"
        yield "  " + command_line(("winhost", "open", host), shell)
    yield "Or talk to it here, or see how it is:"
    yield "  " + command_line(("winhost", "chat", host, "Say hello"), shell)
    yield "  " + command_line(("winhost", "serve", "status", host), shell)
