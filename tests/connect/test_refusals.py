"""Each error of the wire from the situation that raises it, and what the user reads then."""

import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.cases import read_cases
from tests.connect.conftest import Serve
from tests.connect.served import OVER_NETWORKS, Served
from tests.errors import raises
from tests.processes import PATIENCE_S
from winhost.cli.output import error_text
from winhost.connect import wire_errors
from winhost.connect.libraries import read_fault
from winhost.core.answers import RemoteFault
from winhost.lab.wire.served_host import PipelineError, drop, exceed_quota, refuse
from winhost.lab.wire.wsman import Action, WSManFault
from winhost.model.errors import WinhostError
from winhost.model.fleet import Auth, WireKind
from winhost.model.secrets import SecretRef

CASES = read_cases(Path(__file__).parent.parent / "data" / "connect" / "refusals.yaml")
KEYS = {"tls", "transport", "strikes", "says", "ends", "error", "exit", "tells", "kinds"}


def deny() -> None:
    raise WSManFault(5, "AccessDenied", "Access is denied.")


def no_configuration() -> None:
    raise WSManFault(0x80338000, "InvalidResourceURI", "There is no such configuration, or no such configuration here.")


TROUBLES: dict[Any, Callable[[], None]] = {
    "drop": drop,
    "quota": exceed_quota,
    "denied": deny,
    "no-configuration": no_configuration,
    **{status: refuse(status) for status in (302, 404, 503)},
}


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def meant(folder: Path, name: str, word: Any) -> Any:
    """What a word of a case stands for."""
    if name == "auth":
        return Auth(word)
    if word == "closed-port":
        return closed_port()
    if word == "missing-file":
        return folder / "missing.pem"
    if word == "empty-folder":
        return folder
    if word == "text-file":
        (folder / "text.pem").write_text("no certificate", encoding="utf-8")
        return folder / "text.pem"
    if word == "wrong-secret":
        (folder / "wrong").write_text("wrong", encoding="utf-8")
        (folder / "wrong").chmod(0o600)
        return SecretRef("file", str(folder / "wrong"))
    return word


def ending_with(code: str, category: str) -> Callable[[], Iterable[object]]:
    def end() -> Iterable[object]:
        raise PipelineError("Invoke-Winhost is not known here.", code, category)

    return end


EACH = [(name, kind) for name, case in CASES.items() for kind in case.get("kinds", ["psrp", "winrs"])]


@pytest.mark.costly
@pytest.mark.parametrize(("name", "kind"), EACH)
def test_the_user_reads_what_stands_in_the_way(serve: Serve, tmp_path: Path, name: str, kind: str) -> None:
    case = CASES[name]
    assert set(case) <= KEYS
    served = serve(tls=case.get("tls", False))
    if "says" in case:
        served.host.says = lambda: list(case["says"])
    if "ends" in case:
        served.host.says = ending_with(*case["ends"])
    if "strikes" in case:
        trouble, action = case["strikes"]
        served.endpoint.faults.plan(TROUBLES[trouble], Action[action.upper()])
    transport = {name: meant(tmp_path, name, word) for name, word in case.get("transport", {}).items()}
    transport["kind"] = WireKind(kind)
    with pytest.raises(WinhostError) as caught, session(served, **transport) as agent:
        agent.get("Boot", {})
    assert caught.value.code == case["error"]
    assert int(caught.value.exit_code) == case.get("exit", 5)
    text = error_text(caught.value)
    assert [part for part in case["tells"] if part not in text] == [], text


@contextmanager
def session(served: Served, **transport: Any) -> Iterator[Any]:
    agent = served.open(**transport)
    try:
        yield agent
    finally:
        agent.close()


WAYS_IN: dict[str, tuple[bool, dict[str, Any]]] = {
    "ntlm over http": (False, {}),
    "negotiate over http": (False, {"auth": Auth.NEGOTIATE}),
    "basic over http on loopback": (False, {"auth": Auth.BASIC}),
    "ntlm inside tls": (True, {}),
    "basic inside tls": (True, {"auth": Auth.BASIC}),
    "tls without verification, spelled out": (True, {"verify": False}),
    "the remote shell, by ntlm over http": (False, {"kind": WireKind.WINRS}),
    "the remote shell, by basic over http on loopback": (False, {"kind": WireKind.WINRS, "auth": Auth.BASIC}),
    "the remote shell, by ntlm inside tls": (True, {"kind": WireKind.WINRS}),
    "the remote shell, by basic inside tls": (True, {"kind": WireKind.WINRS, "auth": Auth.BASIC}),
    "the remote shell, tls without verification": (True, {"kind": WireKind.WINRS, "verify": False}),
}


@pytest.mark.parametrize(("tls", "transport"), WAYS_IN.values(), ids=WAYS_IN.keys())
def test_every_way_in_of_the_fleet_file_leads_in(serve: Serve, tls: bool, transport: dict[str, Any]) -> None:
    served = serve(tls=tls)
    with session(served, **transport) as agent:
        assert agent.get("Boot", {})["logon_ready"] is True
    assert served.endpoint.unencrypted_bodies == 0


def test_a_name_that_nobody_knows_is_unreachable(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: Any, **__: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(
        wire_errors.Unreachable, match=r"gpu-03 at .* cannot be reached: no address for .*Name or service not known"
    ):
        served.connector(address="gpu-03.example.invalid").open()


def test_a_host_that_does_not_take_the_connection_in_time_is_unreachable(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*_: Any, **__: Any) -> None:
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket.socket, "connect", connect)
    with pytest.raises(wire_errors.Unreachable, match=r"gpu-03 at .* cannot be reached: .*timed out"):
        served.open()


def test_a_host_whose_certificate_is_refused_hears_nothing_of_us(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve(tls=True)
    caplog.set_level("DEBUG", logger="winhost.lab.wire")
    with raises("CertificateRefused"):
        served.open(verify=True, auth=Auth.BASIC)
    assert "POST" not in caplog.text
    with session(served, auth=Auth.BASIC):
        assert "POST" in caplog.text


def test_a_host_that_restarts_is_unreachable_until_it_is_back(served: Served) -> None:
    served.clock.hold(served.host.machine.lab.reboot_seconds)
    served.host.machine.restart_computer()
    assert served.clock.reached.wait(PATIENCE_S)
    with pytest.raises(wire_errors.Unreachable):
        served.open()
    served.clock.release_all()
    served.host.machine.wait_until_ready()
    with session(served) as agent:
        assert agent.get("Boot", {}) is not None


OTHER_SERVICES = {
    "a page": (200, "text/html", b"<html><p>It works!</html>"),
    "xml that is no envelope": (200, "text/xml", b"<a/>"),
    "not found": (404, "text/html", b"<html><p>Not found"),
    "not found, as xml": (404, "text/xml", b"<a/>"),
    "a logon by other means": (401, "text/html", b"who are you?"),
    "nothing": (200, "text/plain", b""),
    "something sealed with no key": (200, 'multipart/encrypted;boundary="Encrypted Boundary"', b"--Encrypted"),
}


@pytest.mark.costly
@pytest.mark.parametrize("kind", OVER_NETWORKS)
@pytest.mark.parametrize("auth", [Auth.NTLM, Auth.BASIC])
@pytest.mark.parametrize("answer", OTHER_SERVICES.values(), ids=OTHER_SERVICES.keys())
def test_a_service_that_is_no_remoting_is_a_wire_error_and_no_crash(
    served: Served, answer: tuple[int, str, bytes], auth: Auth, kind: WireKind
) -> None:
    with other_service(*answer) as port, pytest.raises(wire_errors.WireError) as caught:
        served.open(port=port, auth=auth, kind=kind)
    assert caught.value.code in ("NoSession", "Redirected", "NoShell", "AuthenticationFailed", "KeyRefused")
    assert "gpu-03" in caught.value.what


@pytest.mark.parametrize("kind", OVER_NETWORKS)
@pytest.mark.parametrize(
    ("offers", "auth"),
    [
        ('Basic realm="WSMAN"', Auth.NEGOTIATE),
        ("Kerberos", Auth.NEGOTIATE),
        ("CredSSP", Auth.NTLM),
        ("Negotiate, Kerberos", Auth.BASIC),
    ],
)
def test_a_listener_that_offers_no_method_of_ours_is_told_by_what_it_offers(
    served: Served, offers: str, auth: Auth, kind: WireKind
) -> None:
    service = other_service(401, "text/plain", b"", {"WWW-Authenticate": offers})
    with service as port, pytest.raises(wire_errors.AuthenticationFailed) as caught:
        served.open(port=port, auth=auth, kind=kind)
    said = error_text(caught.value)
    assert caught.value.code == "NoCommonMethod"
    assert offers.partition(" ")[0].strip(",") in said
    assert "No logon was tried" in said
    assert ("auth: basic" in said) is offers.startswith("Basic")
    assert "another service" not in said.lower()


@pytest.mark.parametrize("code", [0x803381A5, 0x803381A6, 0x803381E8])
def test_each_quota_of_the_table_is_waited_for(code: int) -> None:
    assert read_fault("", fault=code, status=500).failure is wire_errors.Failure.BUSY


@contextmanager
def other_service(
    status: int, content_type: str, body: bytes, headers: Mapping[str, str] = MappingProxyType({})
) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()
            thread.join(PATIENCE_S)


def test_what_a_host_says_cannot_command_the_terminal() -> None:
    fault = RemoteFault("NotSpecified", message="Fehler:\r\n\x1b[2Jweg")
    error = wire_errors.RemoteError("gpu-03", fault, "get Vm")
    assert error.what == r"gpu-03: get Vm: Fehler: \x1b[2Jweg (NotSpecified)"
