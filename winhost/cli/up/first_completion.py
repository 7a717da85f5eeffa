"""The end of a plan with an endpoint: ask each model for a completion, from the computer that runs winhost.

One more is asked for at the address for other machines, if this computer may use it.
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

_ANY = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
_CONNECT = 15  # seconds


class NotForUs(Exception):
    """This computer cannot ask an endpoint that may well serve others. The message says why."""


@dataclass(frozen=True)
class LanEndpoint:
    """An endpoint on the network. address: where other machines connect to; allowed: networks that may."""

    address: str
    gateway: DeployedGateway
    allowed: tuple[str, ...]

    @property
    def url(self) -> str:
        return self.gateway.url(self.address)

    @property
    def not_from_here(self) -> str | None:
        """Say in a sentence why this computer cannot ask there."""
        try:
            here = local_address(self.address)
        except OSError:
            return f"nothing leads from this computer to {self.address}"
        if any(ip_address(here) in ip_network(each) for each in self.allowed):
            return None
        return f"this computer ({here}) is in none of the networks that may: {', '.join(self.allowed)}"

    def connected(self, within: float) -> http.client.HTTPConnection:
        """Connect, and check the certificate before any key is sent. Raises NotForUs, OSError."""
        kind = http.client.HTTPSConnection if self.gateway.tls else http.client.HTTPConnection
        connection = kind(self.address, self.gateway.port, timeout=_CONNECT)
        try:
            with ExitStack() as failing:
                failing.callback(connection.close)
                connection.connect()
                failing.pop_all()
        except ssl.SSLCertVerificationError as error:
            raise NotForUs(f"its certificate is for other names, or not known here: {error.verify_message}") from None
        connection.sock.settimeout(within)
        return connection


def allowed_networks(record: RunState, port: int) -> tuple[str, ...]:
    """The networks that the plan lets in to this port."""
    return _allowed(record, "PortForward", port) or _allowed(record, "FirewallPort", port)


def socket_through_ssh(tunnel: Callable[[str, int], socket.socket], gateway: DeployedGateway) -> socket.socket:
    """Connect to a gateway on the machine that SSH leads to, wherever it listens. tunnel: opens a connection through
    SSH.

    The certificate is not checked, because it has the names for clients, and SSH has proved which machine this is.
    Raises WinhostError, OSError.
    """
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(gateway.address, gateway.address)  # noqa: S104 - compared, not bound
    made = tunnel(here, gateway.port)
    if not gateway.tls:
        return made
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    with ExitStack() as failing:
        failing.callback(made.close)
        wrapped = unchecked.wrap_socket(made)
        failing.pop_all()
    return wrapped


def connection_through_ssh(
    tunnel: Callable[[str, int], socket.socket], gateway: DeployedGateway, within: float
) -> http.client.HTTPConnection:
    """Connect as `socket_through_ssh` does. within: seconds that an answer may take."""
    connection = http.client.HTTPConnection("localhost", timeout=within)
    connection.sock = socket_through_ssh(tunnel, gateway)
    connection.sock.settimeout(within)
    return connection


def reached_address(
    record: RunState, gateway: DeployedGateway, host: str | None, way: Callable[[], SshRoute | None]
) -> str | None:
    """The address at which this computer reaches an endpoint that listens beyond its own machine; None behind a jump
    host. host: the address of the plan's host; way: the SSH connection to the Linux that serves.
    """
    mirrored = any(each.resource == "HyperVFirewall" for stage in record.stages for each in stage.desired)
    if mirrored or _allowed(record, "PortForward", gateway.port):
        return host
    if gateway.address not in _ANY:
        return gateway.address
    found = way()
    return found.address if found and not found.jump else None


def _allowed(record: RunState, resource: str, port: int) -> tuple[str, ...]:
    """The networks that resources of this type let in to a port."""
    desired = (each for stage in record.stages for each in stage.desired if each.resource == resource)
    found = (each.desired.get("allowed") for each in desired if each.key.get("port") == str(port))
    return tuple(str(network) for networks in found if isinstance(networks, list | tuple) for network in networks)


ASKED, PLACE = "ServingReady", "place"
_WITHIN = 180  # seconds for one answer: the gateway itself holds a request for 120
_BUSY, _TURN, _PAUSE = 503, 900, 5  # seconds: as long as the gateway gives an engine to start
_TOKENS, _SHOWN, _MOST = 16, 80, 1_000_000


@dataclass(frozen=True)
class ModelAnswer:
    """An answer. status: of HTTP, or why there is none; text: what the model said."""

    status: int | str
    text: str = ""


def check_key(plan: Plan) -> None:
    """Check before anything is changed that the key can be read. Raises UsageError: SecretUnreadable."""
    if plan.request.asks_with is not None:
        SecretRef.parse(plan.request.asks_with).resolve()


def completions(
    tell: Callable[[ProgressEvent], None],
    stop: Callable[[], bool],
    reached: str | None = None,
    answered: Callable[[], None] = lambda: None,
) -> Callable[[RunState, HostSession], tuple[Check, ...]]:
    """The checks at the end of a run; none if its plan makes no endpoint or names no key. stop: tells whether to stop
    waiting for the turn of a model; reached: the address of the host; answered: called once each model has answered.
    """

    def ask(record: RunState, session: HostSession) -> tuple[Check, ...]:
        deployed = deployed_by(record)
        if deployed is None:
            return ()
        place = tuple(_place_of(record, deployed, session, reached))
        if record.plan.request.asks_with is None:
            return place
        key = SecretRef.parse(record.plan.request.asks_with).resolve().reveal()
        asking = _Asking(record, deployed, session, key, tell)
        within = tuple(asking.each_model(stop))
        if not all(each.holds for each in within):
            return within
        with session.interruptible():
            answered()
        return (*within, *asking.at_its_address(reached), *place)

    return ask


def _place_of(record: RunState, deployed: Deployed, session: HostSession, reached: str | None) -> Iterator[Check]:
    """The address of the endpoint, and how SSH leads to its machine, for `served_by`."""
    try:
        way = session.ssh_route()
    except WinhostError:
        return  # everything is as planned all the same
    address = reached_address(record, deployed.gateway, reached, lambda: way)
    found: dict[str, Json] = {"address": address, "ssh": list(way.arguments) if way else None}
    yield Check("Where the endpoint is reached", ASKED, PLACE, found, found, holds=True)


@dataclass(frozen=True)
class _Asking:
    record: RunState
    deployed: Deployed
    session: HostSession
    key: str
    tell: Callable[[ProgressEvent], None]

    def each_model(self, stop: Callable[[], bool]) -> Iterator[Check]:
        for engine in self.deployed.published:
            title = f"A completion of {engine.model}, from this computer"
            self._say("at", title)
            over = monotonic() + (_TURN if engine.turns else 0)
            with self.session.interruptible():
                answer = _asked(self.deployed, self.session, engine.model, self.key)
                if answer.status == _BUSY and engine.turns:
                    self._say("waiting", f"{title}: waiting for its turn")
                while answer.status == _BUSY and monotonic() < over and not stop():
                    sleep(_PAUSE)
                    answer = _asked(self.deployed, self.session, engine.model, self.key)
            yield self._judged(title, answer)

    def at_its_address(self, reached: str | None) -> Iterator[Check]:
        """Ask the first model at its address as other machines do, if this computer may."""
        gateway = self.deployed.gateway
        if gateway.address not in _ANY and ip_address(gateway.address).is_loopback:
            return  # its own machine alone reaches it
        allowed = allowed_networks(self.record, gateway.port)
        address = reached_address(self.record, gateway, reached, self.session.ssh_route)
        if not address or not allowed:
            return
        endpoint = LanEndpoint(address, gateway, allowed)
        model = self.deployed.engines[0].model
        title = f"A completion of {model}, at {endpoint.url}"
        self._say("at", title)
        with self.session.interruptible():
            why = endpoint.not_from_here
            if why is None:
                try:
                    answer = _completion(lambda: endpoint.connected(_WITHIN), model, self.key)
                except NotForUs as not_for_us:
                    why = str(not_for_us)
                else:
                    yield self._judged(title, answer)
                    return
        self._say("note", f"not asked at {endpoint.url}: {why}")

    def _judged(self, title: str, answer: ModelAnswer) -> Check:
        good = answer.status == 200
        said = visible(masked(answer.text.replace(self.key, "***")).strip()[:_SHOWN])
        if good:
            self._say("done", f'{title}: "{said}"')
        found = answer.status if good or not said else f"{answer.status}: {said}"
        return Check(title, ASKED, "status", 200, found, good)

    def _say(self, kind: str, text: str) -> None:
        self.tell(ProgressEvent(self.record.host, kind, text))


def deployed_by(record: RunState) -> Deployed | None:
    """The deployment that the plan wrote into the serving file."""
    desired = (each for stage in record.stages for each in stage.desired)
    texts = [each.desired.get("text") for each in desired if (each.resource, each.key) == _SERVING_FILE]
    try:
        return Deployed.parse(str(texts[-1])) if texts else None
    except NotDeployed:
        return None


_SERVING_FILE = ("LinuxFile", {"path": PATH})


def _asked(deployed: Deployed, session: HostSession, model: str, key: str) -> ModelAnswer:
    """Ask through the SSH of the Linux that serves, so that nobody in between reads the key."""
    return _completion(lambda: connection_through_ssh(session.tunnel, deployed.gateway, _WITHIN), model, key)


def _completion(connect: Callable[[], http.client.HTTPConnection], model: str, key: str) -> ModelAnswer:
    """Raises NotForUs."""
    body = {"model": model, "prompt": "One two three", "max_tokens": _TOKENS, "temperature": 0}
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    try:
        with closing(connect()) as connection:
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            status, text = answer.status, answer.read(_MOST).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        return ModelAnswer(f"no answer: {type(error).__name__}: {error}")
    except WinhostError as error:
        return ModelAnswer(f"no answer: {error.what}")
    try:
        found = json.loads(text)
        return ModelAnswer(status, str(found["choices"][0]["text"] if status == 200 else found["error"]["message"]))
    except (ValueError, LookupError, TypeError):
        return ModelAnswer("an answer that is no completion" if status == 200 else status, text)
