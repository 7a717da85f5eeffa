"""What the lab's endpoint answers to bytes that no well-behaved client sends, and what it leaves behind."""

import base64
import http.client
import os
import socket
import ssl
import stat
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest
from pypsrp.wsman import NAMESPACES, WSManAction

from tests.processes import PATIENCE_S
from winhost.lab.wire.connection_logon import ntlm_users
from winhost.lab.wire.wsman_endpoint import Endpoint

BASIC = {"Authorization": f"Basic {base64.b64encode(b'u:p').decode()}"}
SEALED = {"Content-Type": 'multipart/encrypted;protocol="x";boundary="Encrypted Boundary"'}


class Machine:
    boot = 1
    network_epoch = 0

    def accepts_connections(self):
        return True

    def open_runspace(self, user):
        raise AssertionError("nobody should come this far")


@contextmanager
def serve(**options):
    with Endpoint(Machine(), {"u": "p"}, **options) as endpoint:
        yield endpoint


def post(endpoint, body, headers):
    connection = http.client.HTTPConnection(urlsplit(endpoint.url).netloc, timeout=PATIENCE_S)
    connection.putrequest("POST", "/wsman")
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.putheader("Content-Length", str(len(body)))
    connection.endheaders()
    connection.send(body)
    response = connection.getresponse()
    answer = response.status, response.headers.get_all("WWW-Authenticate", []), response.read()
    connection.close()
    return answer


def message(action=WSManAction.RECEIVE, body=""):
    names = " ".join(f'xmlns:{prefix}="{uri}"' for prefix, uri in NAMESPACES.items() if prefix != "xml")
    return (
        f"<s:Envelope {names}><s:Header><wsa:Action>{action}</wsa:Action>"
        "<wsman:OperationTimeout>PT20S</wsman:OperationTimeout><wsman:MaxEnvelopeSize>153600</wsman:MaxEnvelopeSize></s:Header>"
        f"<s:Body>{body}</s:Body></s:Envelope>"
    ).encode()


def fault_of(answer):
    status, _, body = answer
    assert status == 500
    return int(ElementTree.fromstring(body).find(".//wsmanfault:WSManFault", NAMESPACES).get("Code"))


def test_who_is_not_logged_on_is_told_how_to():
    with serve() as endpoint:
        assert post(endpoint, b"", {}) == (401, ["Negotiate", 'Basic realm="WSMAN"'], b"")
        assert endpoint.unencrypted_bodies == 0


@pytest.mark.parametrize(
    "authorization", ["", "Negotiate", "Negotiate ?", "NTLM AAAA", "Negotiate TlRMTVNTUAAB", "Kerberos AAAA"]
)
def test_a_readable_body_without_a_logon_is_refused_and_counted(authorization):
    headers = {"Authorization": authorization} if authorization else {}
    with serve() as endpoint:
        status, _, body = post(endpoint, b"<secret/>", headers)
        assert (status, body) == (401, b"")
        assert endpoint.unencrypted_bodies == 1


@pytest.mark.parametrize(
    "credentials", ["", "?", base64.b64encode(b"u").decode(), base64.b64encode(b"\xff:p").decode()]
)
def test_broken_basic_credentials_are_refused(credentials):
    with serve() as endpoint:
        assert post(endpoint, b"", {"Authorization": f"Basic {credentials}"})[0] == 401


def test_a_body_that_was_sealed_with_no_key_of_this_connection_gets_a_bare_status():
    with serve() as endpoint:
        assert post(endpoint, b"x", {**BASIC, **SEALED}) == (400, [], b"")


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (1359, b"no xml"),
        (1359, message("http://example.org/Unheard")),
        (2150858843, message(WSManAction.RECEIVE)),
        (2150858843, message(WSManAction.DELETE)),
    ],
)
def test_a_message_that_cannot_be_served_gets_a_fault(code, body):
    with serve() as endpoint:
        assert fault_of(post(endpoint, body, BASIC)) == code


def test_a_host_that_breaks_is_answered_for():
    body = message(WSManAction.CREATE, body="<rsp:Shell/>")
    with serve() as endpoint:
        assert fault_of(post(endpoint, body, BASIC)) == 1359


def test_the_certificate_passes_strict_checks():
    with serve(tls=True) as endpoint:
        context = ssl.create_default_context(cafile=endpoint.certificate_path)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        for name in ("localhost", "127.0.0.1"):
            with (
                socket.create_connection(("127.0.0.1", endpoint.port), timeout=PATIENCE_S) as raw,
                context.wrap_socket(raw, server_hostname=name) as wrapped,
            ):
                assert wrapped.version() == "TLSv1.3"


def test_a_silent_client_keeps_nobody_out():
    with (
        serve(tls=True) as endpoint,
        socket.create_connection(("127.0.0.1", endpoint.port)),
        socket.create_connection(("127.0.0.1", endpoint.port), timeout=PATIENCE_S) as raw,
        ssl.create_default_context(cafile=endpoint.certificate_path).wrap_socket(raw, server_hostname="localhost"),
    ):
        pass


def test_an_endpoint_may_be_stopped_twice_or_without_a_start():
    endpoint = Endpoint(Machine(), {"u": "p"})
    endpoint.stop()
    endpoint.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", endpoint.port))


def test_the_key_never_stays_on_disk_and_the_certificate_goes_with_the_endpoint():
    with serve(tls=True) as endpoint:
        folder = endpoint.certificate_path.parent
        assert [path.name for path in folder.iterdir()] == ["certificate.pem"]
    assert not folder.exists()


def test_the_ntlm_users_are_for_their_owner_only_and_go_when_they_were_read(monkeypatch):
    monkeypatch.setenv("NTLM_USER_FILE", "of somebody else")
    with ntlm_users({"CORP\\u": "p", "v": "q"}):
        path = Path(os.environ["NTLM_USER_FILE"])
        assert path.read_text() == "CORP:u:p\n:v:q\n"
        if os.name != "nt":
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.parent.exists()
    assert os.environ["NTLM_USER_FILE"] == "of somebody else"
