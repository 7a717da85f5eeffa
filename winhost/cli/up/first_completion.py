"""The last checks of a run with an endpoint: ask each model for a completion, from the computer that runs winhost.

One more completion is requested at the address for other machines, if this computer may use it.
"""

import http.client
import json
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from ipaddress import ip_address, ip_network
from time import monotonic, sleep

from winhost.connect.guard import local_address
from winhost.connect.tunnel import SshRoute
from winhost.core.answers import Json
from winhost.core.checks import Check
from winhost.core.dataclass import dataclass
from winhost.engine.host_session import HostSession
from winhost.engine.progress import ProgressEvent
from winhost.engine.run_state import RunState
from winhost.model.errors import WinhostError, visible
from winhost.model.masking import masked
from winhost.model.plan import Plan
from winhost.model.secrets import SecretRef
from winhost.serving.deployed import PATH, Deployed, DeployedGateway, NotDeployed

_ALL_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
_CONNECT_S = 15  # seconds


class AccessRefused(Exception):
    """This computer cannot use an endpoint, which other machines may still reach. The message says why."""


@dataclass(frozen=True)
class LanEndpoint:
    """An endpoint on the network. address: where other machines connect; allowed: the networks that may connect."""

    address: str
    gateway: DeployedGateway
    allowed: tuple[str, ...]

    @property
    def url(self) -> str:
        return self.gateway.url(self.address)

    @property
    def refusal(self) -> str | None:
        """Why this computer may not use the endpoint, as a clause; None if it may."""
        try:
            own_ip = local_address(self.address)
        except OSError:
            return f"this computer has no route to {self.address}"
        if any(ip_address(own_ip) in ip_network(each) for each in self.allowed):
            return None
        return f"this computer ({own_ip}) is in none of the allowed networks: {', '.join(self.allowed)}"

    def connect(self, timeout: float) -> http.client.HTTPConnection:
        """Connect, and check the certificate before any key is sent. timeout: seconds that an answer may take. Raises
        AccessRefused, OSError.
        """
        connection_class = http.client.HTTPSConnection if self.gateway.tls else http.client.HTTPConnection
        connection = connection_class(self.address, self.gateway.port, timeout=_CONNECT_S)
        try:
            with ExitStack() as failing:
                failing.callback(connection.close)
                connection.connect()
                failing.pop_all()
        except ssl.SSLCertVerificationError as error:
            raise AccessRefused(
                f"its certificate is for other names, or is not trusted here: {error.verify_message}"
            ) from None
        connection.sock.settimeout(timeout)
        return connection


def allowed_networks(record: RunState, port: int) -> tuple[str, ...]:
    """Return the networks to which the plan opens this port."""
    return _allowed(record, "PortForward", port) or _allowed(record, "FirewallPort", port)


def socket_through_ssh(tunnel: Callable[[str, int], socket.socket], gateway: DeployedGateway) -> socket.socket:
    """Connect to the gateway of a machine through SSH, at whichever address it listens. tunnel: opens a connection
    through SSH.

    The certificate is not checked: it has the names that clients use, and SSH has already proved which machine this is.
    Raises WinhostError, OSError.
    """
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(gateway.address, gateway.address)  # noqa: S104 - compared, not bound
    plain = tunnel(address, gateway.port)
    if not gateway.tls:
        return plain
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with ExitStack() as failing:
        failing.callback(plain.close)
        wrapped = context.wrap_socket(plain)
        failing.pop_all()
    return wrapped


def connection_through_ssh(
    tunnel: Callable[[str, int], socket.socket], gateway: DeployedGateway, timeout: float
) -> http.client.HTTPConnection:
    """Connect as `socket_through_ssh` does. timeout: seconds that an answer may take."""
    connection = http.client.HTTPConnection("localhost", timeout=timeout)
    connection.sock = socket_through_ssh(tunnel, gateway)
    connection.sock.settimeout(timeout)
    return connection


def reachable_address(
    record: RunState, gateway: DeployedGateway, host_address: str | None, find_way: Callable[[], SshRoute | None]
) -> str | None:
    """Return the address at which this computer reaches an endpoint that listens beyond its own machine; None behind a
    jump host. host_address: the address of the plan's host; find_way: returns how SSH reaches the Linux that serves.
    """
    is_mirrored = any(each.resource == "HyperVFirewall" for stage in record.stages for each in stage.desired)
    if is_mirrored or _allowed(record, "PortForward", gateway.port):
        return host_address
    if gateway.address not in _ALL_ADDRESSES:
        return gateway.address
    ssh_route = find_way()
    return ssh_route.address if ssh_route and not ssh_route.jump else None


def _allowed(record: RunState, resource: str, port: int) -> tuple[str, ...]:
    """Return the networks to which the desired resources of this type open a port."""
    desired = (each for stage in record.stages for each in stage.desired if each.resource == resource)
    values = (each.desired.get("allowed") for each in desired if each.key.get("port") == str(port))
    return tuple(str(network) for networks in values if isinstance(networks, list | tuple) for network in networks)


READY_RESOURCE, ENDPOINT_ADDRESS = "ServingReady", "place"
_ANSWER_S = 180  # for one answer; the gateway itself holds a request for 120 seconds
_BUSY, _TURN_S, _PAUSE_S = 503, 900, 5  # the gateway gives an engine 900 seconds to start
_MAX_TOKENS, _SHOWN_CHARACTERS, _MAX_BYTES = 16, 80, 1_000_000


@dataclass(frozen=True)
class ModelAnswer:
    """An answer. status: the HTTP status, or why there is no answer; text: the completion, or the error message."""

    status: int | str
    text: str = ""


def check_key(plan: Plan) -> None:
    """Check, before the run changes anything, that the API key for the completions can be read. Raises UsageError:
    SecretUnreadable.
    """
    if plan.request.asks_with is not None:
        SecretRef.parse(plan.request.asks_with).resolve()


def completion_checks(
    report: Callable[[ProgressEvent], None],
    stop: Callable[[], bool],
    host_address: str | None = None,
    on_answered: Callable[[], None] = lambda: None,
) -> Callable[[RunState, HostSession], tuple[Check, ...]]:
    """Return the function that makes the checks at the end of a run; it makes none if the plan has no endpoint or names
    no key.

    stop: returns whether to stop waiting for the turn of a model; on_answered: called when every model has answered.
    """

    def check(record: RunState, session: HostSession) -> tuple[Check, ...]:
        deployed = planned_deployment(record)
        if deployed is None:
            return ()
        address_check = tuple(_endpoint_check(record, deployed, session, host_address))
        if record.plan.request.asks_with is None:
            return address_check
        key = SecretRef.parse(record.plan.request.asks_with).resolve().reveal()
        completions = _Completions(record, deployed, session, key, report)
        model_checks = tuple(completions.ask_models(stop))
        if not all(each.holds for each in model_checks):
            return model_checks
        with session.interruptible():
            on_answered()
        return (*model_checks, *completions.ask_on_network(host_address), *address_check)

    return check


def _endpoint_check(
    record: RunState, deployed: Deployed, session: HostSession, host_address: str | None
) -> Iterator[Check]:
    """Yield a check that carries the address of the endpoint, and how SSH reaches its machine: `find_serving_run` reads
    them.
    """
    try:
        ssh_route = session.ssh_route()
    except WinhostError:
        return  # the run is still as planned
    address = reachable_address(record, deployed.gateway, host_address, lambda: ssh_route)
    endpoint: dict[str, Json] = {"address": address, "ssh": list(ssh_route.arguments) if ssh_route else None}
    yield Check("Where the endpoint is reached", READY_RESOURCE, ENDPOINT_ADDRESS, endpoint, endpoint, holds=True)


@dataclass(frozen=True)
class _Completions:
    record: RunState
    deployed: Deployed
    session: HostSession
    key: str
    report: Callable[[ProgressEvent], None]

    def ask_models(self, stop: Callable[[], bool]) -> Iterator[Check]:
        """Ask each model through SSH. A model that takes turns is asked again until its turn comes."""
        for engine in self.deployed.published:
            title = f"A completion of {engine.model}, from this computer"
            self._say("at", title)
            deadline = monotonic() + (_TURN_S if engine.turns else 0)
            with self.session.interruptible():
                answer = _ask_through_ssh(self.deployed, self.session, engine.model, self.key)
                if answer.status == _BUSY and engine.turns:
                    self._say("waiting", f"{title}: waiting for its turn")
                while answer.status == _BUSY and monotonic() < deadline and not stop():
                    sleep(_PAUSE_S)
                    answer = _ask_through_ssh(self.deployed, self.session, engine.model, self.key)
            yield self._check(title, answer)

    def ask_on_network(self, host_address: str | None) -> Iterator[Check]:
        """Ask the first model at the address for other machines, if this computer may use it."""
        gateway = self.deployed.gateway
        if gateway.address not in _ALL_ADDRESSES and ip_address(gateway.address).is_loopback:
            return  # only its own machine reaches it
        allowed = allowed_networks(self.record, gateway.port)
        address = reachable_address(self.record, gateway, host_address, self.session.ssh_route)
        if not address or not allowed:
            return
        endpoint = LanEndpoint(address, gateway, allowed)
        model = self.deployed.engines[0].model
        title = f"A completion of {model}, at {endpoint.url}"
        self._say("at", title)
        with self.session.interruptible():
            refusal = endpoint.refusal
            if refusal is None:
                try:
                    answer = _completion(lambda: endpoint.connect(_ANSWER_S), model, self.key)
                except AccessRefused as error:
                    refusal = str(error)
                else:
                    yield self._check(title, answer)
                    return
        self._say("note", f"not asked at {endpoint.url}: {refusal}")

    def _check(self, title: str, answer: ModelAnswer) -> Check:
        is_completion = answer.status == 200
        text = visible(masked(answer.text.replace(self.key, "***")).strip()[:_SHOWN_CHARACTERS])
        if is_completion:
            self._say("done", f'{title}: "{text}"')
        found = answer.status if is_completion or not text else f"{answer.status}: {text}"
        return Check(title, READY_RESOURCE, "status", 200, found, is_completion)

    def _say(self, kind: str, text: str) -> None:
        self.report(ProgressEvent(self.record.host, kind, text))


def planned_deployment(record: RunState) -> Deployed | None:
    """Return the deployment that the plan writes into the serving file; None if it writes none."""
    desired = (each for stage in record.stages for each in stage.desired)
    texts = [each.desired.get("text") for each in desired if (each.resource, each.key) == _SERVING_FILE]
    try:
        return Deployed.parse(str(texts[-1])) if texts else None
    except NotDeployed:
        return None


_SERVING_FILE = ("LinuxFile", {"path": PATH})


def _ask_through_ssh(deployed: Deployed, session: HostSession, model: str, key: str) -> ModelAnswer:
    """Ask through the SSH connection to the Linux that serves, which hides the key from the network."""
    return _completion(lambda: connection_through_ssh(session.tunnel, deployed.gateway, _ANSWER_S), model, key)


def _completion(connect: Callable[[], http.client.HTTPConnection], model: str, key: str) -> ModelAnswer:
    """Request a completion. Raises AccessRefused."""
    body = {"model": model, "prompt": "One two three", "max_tokens": _MAX_TOKENS, "temperature": 0}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    try:
        with closing(connect()) as connection:
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            status, text = answer.status, answer.read(_MAX_BYTES).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        return ModelAnswer(f"no answer: {type(error).__name__}: {error}")
    except WinhostError as error:
        return ModelAnswer(f"no answer: {error.what}")
    try:
        document = json.loads(text)
        return ModelAnswer(
            status, str(document["choices"][0]["text"] if status == 200 else document["error"]["message"])
        )
    except (ValueError, LookupError, TypeError):
        return ModelAnswer("an answer that is no completion" if status == 200 else status, text)
