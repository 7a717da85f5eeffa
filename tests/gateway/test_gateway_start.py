"""The start of the gateway, and its message if it cannot start."""

import http.client
import json
import re
import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.cases import read_cases
from tests.gateway.running import KEY, MODEL, SOURCE, gateway, read_to_end, settings_for
from tests.processes import PATIENCE_S
from tests.rows import each_row
from winhost.gateway import program
from winhost.gateway.api_keys import ApiKeys, new_key
from winhost.gateway.gateway_settings import Limits, parse_settings
from winhost.gateway.key_lines import WrongKeys
from winhost.gateway.settings_values import WrongSettings

DATA = Path(__file__).parents[1] / "data/gateway"
GOOD: dict[str, Any] = {
    "listen": {"address": "127.0.0.1", "port": 8000},
    "models": [{"name": "a", "engine": {"socket": "/run/e.sock"}}],
}


@each_row("case", read_cases(DATA / "settings.yaml"), ids=lambda case: case["says"])
def test_wrong_settings_are_named(case: dict[str, Any]) -> None:
    changed = {name: value for name, value in {**GOOD, **case["change"]}.items() if value is not None}
    with pytest.raises(WrongSettings) as caught:
        parse_settings(json.dumps(changed))
    assert case["says"] in str(caught.value)


@pytest.mark.parametrize("text", ["", "[", "[]", "[" * 100_000, '"\\ud800"'])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(WrongSettings):
        parse_settings(text)


EVERYWHERE = {"address": "0.0.0.0", "port": 1}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"listen": {"address": "::1", "port": 1}},
        {"listen": EVERYWHERE, "tls": {"certificate": "c", "key": "k"}},
        {"listen": EVERYWHERE, "plain_http_beyond_this_machine": True},
    ],
)
def test_beyond_this_machine_it_takes_tls_or_somebodys_word(change: dict[str, Any]) -> None:
    assert parse_settings(json.dumps({**GOOD, **change})).models["a"].served_as == "a"


def test_a_key_is_known_by_its_hash() -> None:
    (alice, line), (bob, other) = new_key("alice"), new_key("bob")
    keys = ApiKeys(f"# comment\n\n{line}\n{other}\n")
    assert [keys.find_name(f"Bearer {key}") for key in (alice, bob, new_key("x")[0])] == ["alice", "bob", None]
    assert alice not in line


@pytest.mark.parametrize(
    "text", ["", "# nobody\n", "alice", "alice sha256:12", "alice md5:" + "0" * 64, "a b sha256:" + "0" * 64,
             f"a sha256:{'0' * 64}\na sha256:{'1' * 64}"]
)  # fmt: skip
def test_a_wrong_file_of_keys_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(WrongKeys) as caught:
        ApiKeys(text)
    assert not text or text not in str(caught.value)


@pytest.fixture
def error_of(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that runs the program, which must not start, and returns its message."""
    monkeypatch.setattr(program.logging, "basicConfig", lambda **options: None)

    def run(*words: str | Path, **environment: Path) -> str:
        monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, str(value))
        assert program.main([str(word) for word in words]) == 2
        output = capsys.readouterr().err
        assert (output[:7], output.count("\n")) == ("error: ", 1)
        return output

    return run


def test_why_it_does_not_start_is_said_in_a_line(short: Path, error_of: Callable[..., str]) -> None:
    settings = short / "settings.json"
    assert "give the file" in error_of()
    assert "cannot read /nowhere" in error_of("/nowhere")
    assert "up to 64 letters" in error_of("new-key", "two words")
    settings.write_text("{}")
    assert "listen, models is missing" in error_of(settings)
    settings.write_text(json.dumps({**GOOD, "tls": {"certificate": "c", "key": "k"}}))
    assert "CREDENTIALS_DIRECTORY" in error_of(settings)
    assert "cannot read" in error_of(settings, CREDENTIALS_DIRECTORY=short)
    (short / "keys").write_text("\n")
    assert "no key is in it" in error_of(settings, CREDENTIALS_DIRECTORY=short)
    (short / "keys").write_text(new_key("a")[1])
    assert "certificate c" in error_of(settings, CREDENTIALS_DIRECTORY=short)
    settings.write_text(json.dumps({**GOOD, "per_key": {"keys": {"b": {"concurrent": 1}}}}))
    assert "per_key.keys: b has no API key; there are a\n" in error_of(settings, CREDENTIALS_DIRECTORY=short)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = {"address": "127.0.0.1", "port": taken.getsockname()[1]}
        settings.write_text(json.dumps({**GOOD, "listen": place}))
        assert "cannot listen on 127.0.0.1" in error_of(settings, CREDENTIALS_DIRECTORY=short)


def test_a_new_key_is_one_that_lets_in(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["new-key", "carol"]) == 0
    key, line = capsys.readouterr().out.split("\n")[:2]
    assert ApiKeys(line).find_name(f"Bearer {key}") == "carol"


def test_the_unit_has_room_for_what_the_settings_allow() -> None:
    lines = (SOURCE / "winhost-gateway.service").read_text("utf-8").splitlines()
    unit = dict(line.split("=", 1) for line in lines if re.match(r"(LimitNOFILE|MemoryMax|CPUWeight|OOMPolicy)=", line))
    limits = Limits()
    assert int(unit["LimitNOFILE"]) > 2 * (limits.connections + limits.requests)
    # Bodies once, once more on their way, and as much for all the rest.
    assert int(unit["MemoryMax"].removesuffix("G")) << 30 > 3 * limits.bodies_bytes
    assert (unit["CPUWeight"], unit["OOMPolicy"]) == ("1000", "continue")


def certificate(folder: Path) -> None:
    """Create a certificate for 127.0.0.1 and gateway.test, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    names = [x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("gateway.test")]
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gateway")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(key.private_bytes(*private))


def tls_settings(folder: Path, **limits: int) -> tuple[int, dict[str, Any]]:
    """Write a certificate. Return a free port, and settings with both."""
    certificate(folder)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    tls = {"certificate": "cert.pem", "key": "key.pem"}
    listen = {"address": "127.0.0.1", "port": port}
    return port, {**settings_for(folder, tls=tls, limits=limits), "listen": listen}


def test_connections_without_a_handshake_are_counted_and_closed(short: Path, python: str) -> None:
    port, settings = tls_settings(short, connections=100, per_address=4, head=1)
    with gateway(short, settings, python), ExitStack() as opened:
        silent = [opened.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_S)) for _ in range(4)]
        fifth = opened.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE_S))
        assert read_to_end(fifth) == b""  # at once: as many as an address may have are open
        assert [read_to_end(each) for each in silent] == [b""] * 4  # in a second
        context = ssl.create_default_context(cafile=str(short / "cert.pem"))
        later = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=PATIENCE_S)
        later.request("GET", "/health")
        assert later.getresponse().status == 200
        later.close()


def test_with_a_certificate_it_speaks_tls_alone(short: Path, python: str) -> None:
    port, settings = tls_settings(short)
    body = json.dumps({"model": MODEL, "prompt": "a", "stream": True})
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    with gateway(short, settings, python):
        plain = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        plain.request("GET", "/health")
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            plain.getresponse()
        plain.close()
        context = ssl.create_default_context(cafile=str(short / "cert.pem"))
        asked = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=PATIENCE_S)
        for _ in range(2):  # by one connection
            asked.request("POST", "/v1/completions", body, headers)
            answer = asked.getresponse()
            assert (answer.status, answer.read()[-8:]) == (200, b"[DONE]\n\n")
        asked.close()
