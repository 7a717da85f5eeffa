"""A logon is sent to the host that fleet.yaml names, and to nobody that this host or the environment names instead."""

import datetime
import ipaddress
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509

from tests.connect.conftest import Serve
from tests.connect.served import OVER_NETWORKS
from tests.connect.slow import answering, listening
from tests.connect.test_refusals import session
from tests.errors import raises
from winhost.cli.output import error_text
from winhost.lab.wire import wsman_endpoint
from winhost.model.fleet import Auth, WireKind

both = pytest.mark.parametrize("kind", OVER_NETWORKS)
BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")


@contextmanager
def trap() -> Iterator[tuple[int, list[bytes]]]:
    """A port where nobody should come; and what was said there."""
    heard: list[bytes] = []

    def says(connection: socket.socket) -> None:
        heard.append(connection.recv(65536))

    with listening(says) as port:
        yield port, heard


# ---- redirects


def redirect(status: int, to: str) -> bytes:
    return f"HTTP/1.1 {status} Elsewhere\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode()


CHALLENGE = b"HTTP/1.1 401 No\r\nWWW-Authenticate: Negotiate\r\nWWW-Authenticate: NTLM\r\nContent-Length: 0\r\n\r\n"


@both
@pytest.mark.parametrize("auth", [Auth.NTLM, Auth.BASIC])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(serve: Serve, kind: WireKind, auth: Auth, status: int) -> None:
    served = serve()
    with (
        trap() as (elsewhere, heard),
        listening(answering(redirect(status, f"http://127.0.0.1:{elsewhere}/wsman"))) as port,
        raises("Redirected") as caught,
    ):
        served.open(kind=kind, auth=auth, port=port)
    assert heard == []
    text = error_text(caught.value)
    assert f"gpu-03 at 127.0.0.1 port {port} answers, but opens no session" in text
    assert f"a redirect (HTTP {status}) to http://127.0.0.1:{elsewhere}/wsman" in text
    assert "winhost follows no redirect" in text


@both
def test_a_redirect_in_the_middle_of_the_logon_gets_no_answer_of_ours(serve: Serve, kind: WireKind) -> None:
    served = serve()
    with (
        trap() as (elsewhere, heard),
        listening(answering(CHALLENGE, redirect(307, f"http://127.0.0.1:{elsewhere}/wsman"))) as port,
        raises("Redirected"),
    ):
        served.open(kind=kind, auth=Auth.NTLM, port=port)
    assert heard == []


@both
def test_a_redirect_with_hostile_words_is_shown_and_not_obeyed(serve: Serve, kind: WireKind) -> None:
    to = "http://x/\x1b[2J" + "y" * 5000
    with listening(answering(redirect(302, to))) as port, raises("Redirected") as caught:
        serve().open(kind=kind, port=port)
    assert "\x1b" not in error_text(caught.value)
    assert len(error_text(caught.value)) < 1500


# ---- proxies


@both
@pytest.mark.parametrize("tls", [False, True])
def test_a_proxy_of_the_environment_hears_nothing(
    serve: Serve, kind: WireKind, tls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(tls=tls)
    with trap() as (port, heard):
        for name in PROXIES:
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        with session(served, kind=kind) as agent:
            assert agent.get("Boot", {})["logon_ready"] is True
    assert heard == []


@both
def test_a_netrc_is_not_read(serve: Serve, kind: WireKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login somebody password else\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with session(serve(), kind=kind, auth=Auth.BASIC) as agent:
        assert agent.get("Boot", {})["logon_ready"] is True


# ---- certificates


@both
@pytest.mark.parametrize("name", BUNDLES)
def test_a_bundle_of_the_environment_is_trusted(
    serve: Serve, kind: WireKind, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in BUNDLES:
        monkeypatch.delenv(each, raising=False)
    served = serve(tls=True)
    with raises("CertificateRefused"):
        served.open(kind=kind, verify=True)
    monkeypatch.setenv(name, str(served.endpoint.certificate_path))
    with session(served, kind=kind, verify=True) as agent:
        assert agent.get("Boot", {})["logon_ready"] is True


@both
def test_a_bundle_of_the_fleet_file_comes_first(serve: Serve, kind: WireKind, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve(tls=True)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere.pem")
    with session(served, kind=kind) as agent:
        assert agent.get("Boot", {})["logon_ready"] is True


@both
def test_a_bundle_of_the_environment_that_is_none_is_named(
    serve: Serve, kind: WireKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere.pem")
    with raises("BundleUnusable") as caught:
        serve(tls=True).open(kind=kind, verify=True)
    assert "REQUESTS_CA_BUNDLE names it" in error_text(caught.value)


LATER = datetime.timedelta(days=30)
CERTIFICATES: dict[str, tuple[dict[str, Any], str, str]] = {
    "expired": ({"_LIFETIME": -datetime.timedelta(minutes=1)}, "a certificate that has expired", "HTTPS listener"),
    "not valid yet": ({"_CLOCK_SKEW": -LATER, "_LIFETIME": 2 * LATER}, "not valid yet", "Compare the clocks"),
}


@both
@pytest.mark.parametrize(("changes", "what", "hint"), CERTIFICATES.values(), ids=CERTIFICATES.keys())
def test_what_is_wrong_with_a_certificate_is_told(
    serve: Serve, kind: WireKind, changes: dict[str, Any], what: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in changes.items():
        monkeypatch.setattr(wsman_endpoint, name, value)
    with raises("CertificateRefused") as caught:
        serve(tls=True).open(kind=kind)
    assert what in error_text(caught.value)
    assert hint in error_text(caught.value)


@both
def test_a_certificate_for_another_name_is_told(serve: Serve, kind: WireKind, monkeypatch: pytest.MonkeyPatch) -> None:
    other = SimpleNamespace(IPv4Address=lambda _: ipaddress.ip_address("192.0.2.1"))
    monkeypatch.setattr(wsman_endpoint, "ipaddress", other)
    served = serve(tls=True)
    assert served.endpoint.certificate_path is not None
    shown = x509.load_pem_x509_certificate(served.endpoint.certificate_path.read_bytes())
    assert "127.0.0.1" not in str(shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    with raises("CertificateRefused") as caught:
        served.open(kind=kind)
    assert "a certificate for another name" in error_text(caught.value)
    assert "hosts.gpu-03.address" in error_text(caught.value)
