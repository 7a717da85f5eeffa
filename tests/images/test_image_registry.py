"""Digests as registries tell them, and what is refused of what they tell; the registry is on loopback."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.errors import raises
from tests.images.stand_in_registry import INDEX, MANIFEST, OCI, TOKEN, StandInRegistry, blob, serving, sha256
from winhost.images.image_registry import ImageName, resolve

CANARY = "somebody:canary-of-the-registry"
LAYERS = (b"a" * 1000, b"b" * 234)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInRegistry]:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login somebody password else\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("ENTRY", CANARY)
    with serving(StandInRegistry()) as made:
        yield made


def image(registry: StandInRegistry, name: str = ":v1") -> str:
    return f"{registry.host}/org/engine{name}"


def test_a_list_of_platforms_leads_to_the_manifest_of_one(registry: StandInRegistry) -> None:
    amd64, arm64 = registry.put_image(LAYERS), registry.put_image((b"arm",))
    index = registry.put_index({"linux/arm64": arm64, "unknown/unknown": arm64, "linux/amd64": amd64}, "v1")
    found = resolve(image(registry))
    config = found.manifest.config.bytes
    assert (found.digest, found.index, found.size_bytes) == (amd64, index, config + 1234)
    assert found.pinned == f"{registry.host}/org/engine@{amd64}"
    assert resolve(image(registry), platform="linux/arm64").digest == arm64
    with raises("NotResolved", match="not made for linux/riscv64, but for: linux/amd64, linux/arm64"):
        resolve(image(registry), platform="linux/riscv64")


def test_the_tag_is_asked_for_once_and_its_digest_from_then_on(registry: StandInRegistry) -> None:
    digest = registry.put_image(tag="v1")
    assert resolve(image(registry)).index is None
    below = [(method, path.rpartition("/")[2]) for method, path, given in registry.asked if given]
    assert below == [("HEAD", "v1"), ("GET", digest)]
    assert resolve(image(registry, f"@{digest}")).digest == digest


def test_a_registry_that_tells_no_digest_is_read_by_its_tag(registry: StandInRegistry) -> None:
    digest = registry.put_image(tag="v1")
    registry.answers["manifests/v1"] = (200, {}, registry.answers["manifests/v1"][2])
    assert resolve(image(registry)).digest == digest


def test_an_open_registry_wants_no_token(registry: StandInRegistry) -> None:
    registry.put_image(tag="v1")
    registry.open = True
    resolve(image(registry))
    assert {given for _, _, given in registry.asked} == {None}


def test_an_account_is_named_to_the_authority_alone(registry: StandInRegistry) -> None:
    registry.put_image(tag="v1")
    registry.entry = CANARY
    found = resolve(image(registry), credentials="env:ENTRY")
    assert CANARY not in repr(found)
    assert {given for _, path, given in registry.asked if "/token" not in path} == {None, f"Bearer {TOKEN}"}
    with raises("NotResolved", match=r"gives no token \(401\)"):
        resolve(image(registry))
    registry.challenge = "Basic realm=x"
    with raises("NotResolved", match="asks for an account"):
        resolve(image(registry))


def test_what_has_another_hash_is_refused(registry: StandInRegistry) -> None:
    digest = registry.put_image(tag="v1")
    status, headers, data = registry.answers[f"manifests/{digest}"]
    registry.answers[f"manifests/{digest}"] = (status, headers, data + b" ")
    with raises("NotResolved", match=f"and {digest} was asked for"):
        resolve(image(registry))


@pytest.mark.parametrize(
    ("to", "says"),
    [
        ("/v2/org/engine/manifests/v1", "leads on more than 5 times"),
        ("http://example.org/", "leads to example.org without TLS"),
        ("file:///etc/passwd", "which is no address"),
        ("https://somebody@example.org/", "which is no address"),
        ("http://127.0.0.1:99999/", "no answer that can be read"),
    ],
)
def test_where_it_leads_is_looked_at(registry: StandInRegistry, to: str, says: str) -> None:
    registry.answers["manifests/v1"] = (307, {"Location": to}, b"")
    with raises("NotResolved", match=says):
        resolve(image(registry))


def test_a_token_stays_with_its_registry(registry: StandInRegistry) -> None:
    with serving(StandInRegistry(open=True)) as other:
        digest = other.put_image(tag="v1")
        registry.answers["manifests/v1"] = (307, {"Location": f"http://{image(other, '/manifests/v1')}"}, b"")
        registry.answers[f"manifests/{digest}"] = other.answers[f"manifests/{digest}"]
        registry.answers["manifests/v1"][1]["Location"] = f"http://{other.host}/v2/org/engine/manifests/v1"
        assert resolve(image(registry)).digest == digest
        assert other.asked == [("HEAD", "/v2/org/engine/manifests/v1", None)]


@pytest.mark.parametrize("realm", ["http://example.org/token", "https://[", "file:///x"])
def test_a_password_goes_nowhere_without_tls(registry: StandInRegistry, realm: str) -> None:
    registry.challenge = f'Bearer realm="{realm}"'
    with raises("NotResolved", match="authority") as caught:
        resolve(image(registry), credentials="env:ENTRY")
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "headers", "says"),
    [
        (404, {}, "no such image"),
        (403, {}, "private, or does not exist"),
        (401, {}, "private, or does not exist"),
        (429, {"Retry-After": "3600"}, "no more downloads"),
        (500, {}, "answers 500"),
        (200, {"Content-Encoding": "gzip"}, "an encoding"),
    ],
)
def test_each_refusal_is_a_sentence(registry: StandInRegistry, status: int, headers: dict[str, str], says: str) -> None:
    registry.answers["manifests/v1"] = (status, headers, b"")
    with raises("NotResolved", match=says) as caught:
        resolve(image(registry))
    assert caught.value.hint
    assert status != 429 or "in 3600 s" in caught.value.hint


MADE = {
    "schemaVersion": 2,
    "mediaType": MANIFEST,
    "config": blob(b"{}", "config"),
    "layers": [blob(b"x", f"{OCI}layer.v1.tar+gzip")],
}


@pytest.mark.parametrize(
    "hostile",
    [
        b"",
        b"[]",
        b"[" * 200_000,
        b" " * (5 << 20),
        json.dumps(MADE | {"schemaVersion": 1}).encode(),
        json.dumps(MADE | {"layers": []}).encode(),
        json.dumps(MADE | {"layers": [MADE["config"]] * 1001}).encode(),
        json.dumps(MADE | {"layers": [blob(b"x", "x") | {"size": -1}]}).encode(),
        json.dumps(MADE | {"layers": [blob(b"x", "x") | {"size": True}]}).encode(),
        json.dumps(MADE | {"layers": [blob(b"x", "x") | {"digest": "sha256:../../x"}]}).encode(),
        json.dumps(MADE | {"layers": [blob(b"x", "x") | {"urls": ["http://example.org"]}]}).encode(),
        json.dumps(MADE | {"config": None}).encode(),
        json.dumps(MADE | {"mediaType": "application/vnd.docker.distribution.manifest.v1+json"}).encode(),
        json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": "x"}).encode(),
        json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [{"platform": {"os": "\x1b"}}]}).encode(),
    ],
    ids=lambda data: f"{data[:40]!r}",
)
def test_what_is_no_manifest_is_refused(registry: StandInRegistry, hostile: bytes) -> None:
    registry.put(hostile, MANIFEST, "v1")
    with raises("NotResolved") as caught:
        resolve(image(registry))
    assert caught.value.what.isprintable()


def test_nobody_there_is_said_with_what_to_do() -> None:
    with raises("NotResolved", match="cannot be reached") as caught:
        resolve("127.0.0.1:1/org/engine:v1")
    assert "digest" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("text", "whole", "address"),
    [
        ("vllm/vllm-openai:v0.33.0", "docker.io/vllm/vllm-openai:v0.33.0", "https://registry-1.docker.io"),
        ("debian", "docker.io/library/debian:latest", "https://registry-1.docker.io"),
        ("ghcr.io/a/b__c@" + sha256(b""), "ghcr.io/a/b__c@" + sha256(b""), "https://ghcr.io"),
        ("localhost:5000/a", "localhost:5000/a:latest", "http://localhost:5000"),
        ("nas:5000/a", "nas:5000/a:latest", "https://nas:5000"),
        ("localhost.example.org/a:1", "localhost.example.org/a:1", "https://localhost.example.org"),
    ],
)
def test_names_are_read_as_engines_read_them(text: str, whole: str, address: str) -> None:
    name = ImageName.parse(text)
    assert (str(name), name.address) == (whole, address)


@pytest.mark.parametrize("text", ["", "A/b", "a:b:c", "a/../b", "a@sha256:12", "x" * 600, "a b", "a\n", "$(x)/a"])
def test_other_names_are_refused(text: str) -> None:
    with raises("NoImageName"):
        resolve(text)
