"""What the lab's endpoint answers to bytes that no well-behaved client sends, and what it leaves behind."""

import base64
import errno
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
from winhost.lab.wire.connection_logon import known_users
from winhost.lab.wire.served_host import PipelineError
from winhost.lab.wire.wsman import read_request
from winhost.lab.wire.wsman_endpoint import Endpoint

BASIC = {"Authorization": f"Basic {base64.b64encode(b'u:p').decode()}"}
SEALED = {"Content-Type": 'multipart/encrypted;protocol="x";boundary="Encrypted Boundary"'}


class Machine:
    boot = 1
    wire = 0

    def accepting(self):
        return True

    def open_runspace(self, user):
        raise AssertionError("nobody should come this far")


@contextmanager
def serve(**options):
    with Endpoint(Machine(), {"u": "p"}, **options) as endpoint:
        yield endpoint


def post(endpoint, body, headers, path="/wsman"):
    connection = http.client.HTTPConnection(urlsplit(endpoint.url).netloc, timeout=PATIENCE_S)
    connection.putrequest("POST", path)
    for name, value in headers.items():
        connection.putheader(name, value)
    if "Content-Length" not in headers:
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders()
    connection.send(body)
    response = connection.getresponse()
    answer = response.status, response.headers.get_all("WWW-Authenticate", []), response.read()
    connection.close()
    return answer


def message(action=WSManAction.RECEIVE, headers="", body=""):
    names = " ".join(f'xmlns:{prefix}="{uri}"' for prefix, uri in NAMESPACES.items() if prefix != "xml")
    return (
        f"<s:Envelope {names}><s:Header><wsa:Action>{action}</wsa:Action>{headers}</s:Header>"
        f"<s:Body>{body}</s:Body></s:Envelope>"
    ).encode()


def fault_of(answer):
    status, _, body = answer
    assert status == 500
    return int(ElementTree.fromstring(body).find(".//wsmanfault:WSManFault", NAMESPACES).get("Code"))


@pytest.mark.parametrize("allow_basic", [True, False])
def test_who_is_not_logged_on_is_told_how_to(allow_basic):
    expected = ["Negotiate", 'Basic realm="WSMAN"'] if allow_basic else ["Negotiate"]
    with serve(allow_basic=allow_basic) as endpoint:
        assert post(endpoint, b"", {}) == (401, expected, b"")
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


@pytest.mark.parametrize(
    ("status", "headers", "path"),
    [
        (404, BASIC, "/elsewhere"),
        (411, {**BASIC, "Content-Length": "many"}, "/wsman"),
        (413, {**BASIC, "Content-Length": "100000000"}, "/wsman"),
        (400, {**BASIC, **SEALED}, "/wsman"),
    ],
)
def test_a_request_that_is_no_wsman_gets_a_bare_status(status, headers, path):
    with serve() as endpoint:
        assert post(endpoint, b"x", headers, path) == (status, [], b"")


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (87, b"no xml"),
        (87, b"<xml/>"),
        (87, message(WSManAction.CREATE)),
        (2150858769, message("http://example.org/Unheard")),
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


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("PT20S", 20), ("PT1.5S", 1.5), ("PT1M30S", 90), ("PT2H", 7200), ("PT", 60), ("soon", 60), ("", 60)],
)
def test_operation_timeouts_are_read_in_every_form(text, seconds):
    header = f"<wsman:OperationTimeout>{text}</wsman:OperationTimeout>"
    assert read_request(message(headers=header)).operation_timeout == seconds


@pytest.mark.parametrize(
    ("text", "size"), [("153600", 153_600), ("512000", 512_000), ("9999999", 512_000), ("", 512_000)]
)
def test_an_envelope_is_never_larger_than_windows_allows(text, size):
    header = f"<wsman:MaxEnvelopeSize>{text}</wsman:MaxEnvelopeSize>"
    assert read_request(message(headers=header)).max_envelope_bytes == size


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


def test_a_port_that_is_taken_is_said_at_once():
    with serve() as endpoint, pytest.raises(OSError, match=str(errno.EADDRINUSE)):
        Endpoint(Machine(), {"u": "p"}, tls=True, port=endpoint.port)


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
    with known_users({"CORP\\u": "p", "v": "q"}):
        path = Path(os.environ["NTLM_USER_FILE"])
        assert path.read_text() == "CORP:u:p\n:v:q\n"
        if os.name != "nt":
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not path.parent.exists()
    assert os.environ["NTLM_USER_FILE"] == "of somebody else"


@pytest.mark.parametrize(("name", "password"), [("", "p"), ("a:b", "p"), ("a", "p:q"), ("a", "p\nq")])
def test_users_that_the_user_file_cannot_hold_are_refused(name, password):
    with pytest.raises(ValueError, match="the lab cannot serve user"):
        Endpoint(Machine(), {name: password})


def test_a_pipeline_error_needs_a_category_that_powershell_knows():
    with pytest.raises(ValueError, match="no error category 'Bad'"):
        PipelineError("m", "id", "Bad")
