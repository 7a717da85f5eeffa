"""The completion at the address for other machines, which is requested if this computer may use it."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.test_first_completion import GOOD, KEY, Session
from tests.gateway.test_gateway_start import certificate
from tests.serving.test_deployed import DEPLOYED
from winhost.cli.up.first_completion import ENDPOINT_ADDRESS, completion_checks
from winhost.connect.tunnel import SshRoute
from winhost.core.checks import Check
from winhost.core.steps import DesiredResource
from winhost.engine.progress import ProgressEvent
from winhost.serving.deployed import PATH
from winhost.web.server import run_server as running

HERE, ELSEWHERE = ["127.0.0.0/8"], ["198.51.100.0/24"]


class Endpoint(ThreadingHTTPServer):
    asked: list[str]

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Answers(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append(self.headers["Authorization"])
        self.send_response(200)
        self.send_header("Content-Length", str(len(GOOD)))
        self.end_headers()
        self.wfile.write(GOOD.encode())

    def log_message(self, *_: object) -> None: ...


@contextmanager
def serving(tls: Path | None = None) -> Iterator[Endpoint]:
    with Endpoint(("127.0.0.1", 0), _Answers) as server:
        server.asked = []
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls / "cert.pem", tls / "key.pem")
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        with running(server):
            yield server


def ended(
    port: int,
    *resources: tuple[str, dict[str, str], dict[str, Any]],
    listen: str = "0.0.0.0",
    tls: bool = False,
    own: str | None = "127.0.0.1",
    reached: str | None = "192.0.2.1",
) -> tuple[tuple[Check, ...], list[ProgressEvent]]:
    """Return the checks after the one through SSH. own: the address of the Linux; reached: that of the plan's host."""
    deployed = replace(DEPLOYED, gateway=replace(DEPLOYED.gateway, listen=f"{listen}:{port}", tls=tls))
    desired = [("LinuxFile", {"path": PATH}, {"text": deployed.text()}), *resources]
    stage = SimpleNamespace(desired=[DesiredResource(name, key, state, "", "") for name, key, state in desired])
    plan = SimpleNamespace(request=SimpleNamespace(asks_with="env:ALICE"))
    record: Any = SimpleNamespace(host="llm-01", plan=plan, stages=[stage])
    session: Any = Session(*[(200, GOOD)] * len(DEPLOYED.engines))
    session.ssh_route = lambda: SshRoute("root", own or "192.0.2.9", 22, jump=None if own else "me@192.0.2.8")
    events: list[ProgressEvent] = []
    checks = completion_checks(events.append, lambda: False, reached)(record, session)
    *others, place = checks
    assert place.property == ENDPOINT_ADDRESS
    return tuple(others[len(DEPLOYED.engines) :]), events


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALICE", KEY)


def firewall(port: int, networks: list[str]) -> tuple[str, dict[str, str], dict[str, Any]]:
    return "FirewallPort", {"port": str(port)}, {"allowed": networks}


def forward(port: int, networks: list[str]) -> tuple[str, dict[str, str], dict[str, Any]]:
    return "PortForward", {"port": str(port)}, {"allowed": networks}


def test_it_is_asked_as_other_machines_do() -> None:
    with serving() as endpoint:
        (check,), events = ended(endpoint.port, firewall(endpoint.port, HERE))
    assert (check.holds, check.title) == (True, f"A completion of org/model, at http://127.0.0.1:{endpoint.port}")
    assert endpoint.asked == [f"Bearer {KEY}"]
    assert events[-1].kind == "done"


def test_a_computer_that_may_not_come_does_not_ask_and_says_so() -> None:
    with serving() as endpoint:
        checks, events = ended(endpoint.port, firewall(endpoint.port, ELSEWHERE))
    assert (checks, endpoint.asked) == ((), [])
    assert events[-1].kind == "note"
    assert "this computer (127.0.0.1) is in none of the allowed networks: 198.51.100.0/24" in events[-1].text


def test_an_endpoint_that_nobody_reaches_is_no_success() -> None:
    with serving() as endpoint:
        port = endpoint.port
    (check,), _ = ended(port, firewall(port, HERE))
    assert (check.holds, "ConnectionRefusedError" in str(check.found)) == (False, True)


def test_no_key_goes_to_a_certificate_that_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate(tmp_path)
    monkeypatch.setattr(
        "winhost.cli.up.first_completion._ask_through_ssh", lambda *_: SimpleNamespace(status=200, text="")
    )
    with serving(tmp_path) as endpoint:
        checks, events = ended(endpoint.port, firewall(endpoint.port, HERE), tls=True)
        assert (checks, endpoint.asked) == ((), [])
        assert "its certificate is for other names, or is not trusted here" in events[-1].text
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        (check,), _ = ended(endpoint.port, firewall(endpoint.port, HERE), tls=True)
    assert (check.holds, endpoint.asked) == (True, [f"Bearer {KEY}"])


def test_an_endpoint_for_its_own_machine_is_asked_through_ssh_alone() -> None:
    for listen in ("127.0.0.1", "[::1]"):
        assert ended(8443, firewall(8443, HERE), listen=listen)[0] == ()


def test_one_within_windows_is_reached_at_windows() -> None:
    with serving() as endpoint:
        port = endpoint.port
        within_nat = (firewall(port, ["172.20.0.1/32"]), forward(port, HERE))
        mirrored = (firewall(port, HERE), ("HyperVFirewall", {"creator": "x"}, {"ports": [22, port]}))
        for resources in (within_nat, mirrored):
            (check,), _ = ended(port, *resources, own="192.0.2.7", reached="127.0.0.1")
            assert check.holds
    assert len(endpoint.asked) == 2


def test_one_behind_a_jump_host_is_not_asked() -> None:
    assert ended(8443, firewall(8443, HERE), own=None)[0] == ()
