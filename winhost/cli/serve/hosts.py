"""Find the hosts that serve according to this computer's journals, and their endpoints; make lines to paste into a
shell that send a request.
"""

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
from winhost.connect.tunnel import SshRoute
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

_SSH_PORT = 22
_LOCAL_TIMEOUT_S = 2  # on the same machine
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class ServingRun:
    """A run that deployed an endpoint. record: its state by the journal; host: the host in the fleet file, if it is
    there; found_address: the address of the endpoint for this computer, as the run found it at its end.
    """

    record: RunState
    deployed: Deployed
    host: AnyHost | None
    found_address: str | None = None

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
        """The reference to an API key in the plan, if it has one."""
        return self.record.plan.request.asks_with

    @cached_property
    def url(self) -> str | None:
        """The URL at which this computer reaches the endpoint without a tunnel; None if it needs one."""
        return self.deployed.gateway.url(self.address) if self.address else None

    @cached_property
    def address(self) -> str | None:
        """The address of the endpoint for this computer. None if only a logon could find it: a distro or guest with an
        address of its own has to report it.
        """
        gateway = self.deployed.gateway
        if gateway.address in LOOPBACK:
            is_local = is_this_linux(self.host) or self._is_forwarded_loopback(gateway.address, gateway.port)
            return gateway.address if is_local else None
        if self.found_address:
            return self.found_address
        host_address = self.host.address if self.host else None

        def ssh_way() -> SshRoute | None:
            if not isinstance(self.host, LinuxHost):
                return None
            jump = self.host.jump.address if self.host.jump else None
            return SshRoute(self.host.user, self.host.address, self.host.port, None, jump)

        return reachable_address(self.record, gateway, host_address, ssh_way)

    def _is_forwarded_loopback(self, address: str, port: int) -> bool:
        """Return whether Windows forwards this loopback port to its distro. .wslconfig decides that for each port, so
        this sends the gateway a request without a key.
        """
        is_wsl = path_of(self.record.plan.request.path) == "wsl2" and not self.deployed.gateway.tls
        if not is_wsl or self.host is None or not named_hosts.is_local(self.host):
            return False
        try:
            with closing(http.client.HTTPConnection(address, port, timeout=_LOCAL_TIMEOUT_S)) as connection:
                connection.request("GET", "/health")
                return connection.getresponse().getheader("Server") == "winhost"
        except (OSError, http.client.HTTPException):
            return False


def is_this_linux(host: AnyHost | None) -> bool:
    """Return whether a host is this machine itself. A port other than 22 may be forwarded to another machine, and a WSL
    distro may not share the loopback of its Windows.
    """
    if not isinstance(host, LinuxHost) or host.jump is not None:
        return False
    return host.address.lower() in LOOPBACK and host.port == _SSH_PORT


def find_serving_run(record: RunState, host: AnyHost | None, checks: Iterable[Check] = ()) -> ServingRun | None:
    """Return the run with the endpoint that it deployed; None if it deployed none. checks: the checks at its end."""
    deployed = planned_deployment(record)
    details = next(
        (each.found for each in checks if each.property == ENDPOINT_ADDRESS and isinstance(each.found, dict)), {}
    )
    address = details.get("address")
    return ServingRun(record, deployed, host, str(address) if address else None) if deployed else None


def hosts_by_name(fleet: Fleet | None) -> dict[str, AnyHost]:
    """Return the hosts of a fleet by name, and this machine unless the fleet has a host of that name."""
    hosts = {each.name: each for each in fleet.hosts} if fleet else {}
    hosts.setdefault(named_hosts.this_machine_name(), named_hosts.this_machine())
    return hosts


@dataclass(frozen=True)
class Targets:
    """The hosts that arguments may name: those of the fleet, and those in this computer's journals.

    serving: by host, the newest run that deployed an endpoint and was not rolled back, the latest first; unfinished:
    runs that neither ended nor were rolled back; unreadable: the errors of journals that cannot be read, although the
    changes of their runs may still be in force.
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
                lines = read_journal(store.existing_journal(name))
                if has_ended(lines) and name.rpartition(".")[0] in {store.file_name(each) for each in serving}:
                    continue  # an older run of a host whose state is known
                record = replay(name, lines)
            except RunNeverBegan:
                continue
            except WinhostError as error:
                unreadable.append(error)
                continue
            if record.outcome is None and not record.unchanged:
                unfinished.append(record)
            serving_run = find_serving_run(record, hosts.get(record.host)) if _has_deployment(record) else None
            if serving_run and record.host not in serving:
                serving[record.host] = serving_run
        return cls(fleet, serving, tuple(unfinished), tuple(unreadable))

    @property
    def _hosts(self) -> Mapping[str, AnyHost]:
        return {each.name: each for each in self.fleet.hosts} if self.fleet else {}

    @property
    def names(self) -> tuple[str, ...]:
        unfinished = (each.host for each in self.unfinished)
        return tuple(dict.fromkeys((*self.serving, *unfinished, *self._hosts)))

    def resolve(self, name: str) -> str:
        """Return the host that an argument names. Raises UsageError (NoSuchHost)."""
        if host := self.find(name):
            return host
        raise UsageError(
            "NoSuchHost",
            what=f"no host '{visible(name)}' serves here, and fleet.yaml has none{did_you_mean(name, self.names)}",
            hint=f"There are: {', '.join(self.names)}" if self.names else "Add it: winhost host add USER@ADDRESS",
        )

    def find(self, name: str) -> str | None:
        if name.lower() == named_hosts.LOCALHOST:
            name = next(
                (name for name, host in self._hosts.items() if named_hosts.is_local(host)),
                named_hosts.this_machine_name(),
            )
        return next((each for each in self.names if each.lower() == name.lower()), None)

    @property
    def only_serving(self) -> str:
        """The only host that serves. Raises UsageError (WhichHost), WinhostError (NothingHere)."""
        serving = sorted(self.serving)
        if not serving:
            host = next(iter(self._hosts), None)
            raise WinhostError(
                "NothingHere",
                what="according to the journals of this computer, nothing is served",
                meaning="If another computer set up an endpoint, name its host and --api-key.",
                hint=f"Serve a model on it: winhost up --on {host}"
                if host
                else "Serve a model on this machine: winhost up",
            )
        if len(serving) > 1:
            what = f"{len(serving)} hosts serve: {', '.join(serving)}"
            raise UsageError("WhichHost", what=what, hint="Name one of them.")
        return serving[0]

    def host(self, name: str) -> AnyHost | None:
        run = self.serving.get(name)
        return run.host if run else self._hosts.get(name)


def _has_deployment(record: RunState) -> bool:
    """Return whether the deployment of a run still exists, according to the journal."""
    if record.outcome in ("applied", "differs"):
        return True
    file = record.touched.get(identity("LinuxFile", {"path": PATH}))
    is_partly_undone = record.outcome in ("partly rolled back", "not all rolled back")
    return is_partly_undone and file is not None and not file.is_restored


def client_lines(url: str, model: str, key: str | None, shell: Shell | None = None) -> Iterator[str]:
    """Yield the settings of a client, and a request for the user's shell. url: the gateway's, for this computer."""
    shell = shell or detect_shell()
    reference = SecretRef.parse(key) if key else None
    key_text = str(reference) if reference else "the one that you named with --api-key; put it into API_KEY"
    if reference and shell is Shell.CMD and reference.scheme != "env":
        key_text += "; put it into API_KEY for the line below"
    yield f"Base URL: {url}/v1"
    yield f"Model:    {model}"
    yield f"API key:  {key_text}"
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Say hello"}]})
    yield "  " + post_with_key(f"{url}/v1/chat/completions", body, shell, reference)


def describe_endpoint(serving_run: ServingRun, shell: Shell | None = None) -> Iterator[str]:
    """Yield lines for the end of a run that say how to use its endpoint from this computer."""
    shell, host = shell or detect_shell(), serving_run.record.host
    yield f"Served:   {', '.join(serving_run.models)}, each after a completion of its own"
    if serving_run.address:
        address, gateway = serving_run.address, serving_run.deployed.gateway
        if address in LOOPBACK and gateway.address not in LOOPBACK:
            address = socket.gethostname()  # the name of this computer, which other machines use
        url = gateway.url(address)
        yield from client_lines(url, serving_run.models[0], serving_run.key, shell)
    else:
        key = SecretRef.parse(serving_run.key) if serving_run.key else None
        yield f"API key:  {key or 'the one that you named with --api-key'}"
        if key and (show_command := command_to_show_key(key, shell)):
            yield f"  {show_command}"
        listen = serving_run.deployed.gateway.listen
        yield f"The endpoint listens on {listen} of {host}. A tunnel with its base URL, until Ctrl-C:"
        yield "  " + command_line(("winhost", "open", host), shell)
    yield "To send it a prompt from here, and to see its state:"
    yield "  " + command_line(("winhost", "chat", host, "Say hello"), shell)
    yield "  " + command_line(("winhost", "serve", "status", host), shell)
