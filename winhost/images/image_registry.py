"""Container images: their names and manifests, and requests to their registry.

The distribution API: https://github.com/opencontainers/distribution-spec. Data that was requested by its hash is used
only if it has that hash.
"""

import base64
import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field, replace
from typing import Any
from urllib.parse import urlencode

from winhost.core.dataclass import dataclass
from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.secrets import Secret, SecretRef, is_loopback
from winhost.model.units import Bytes, MiB
from winhost.web.http_client import (
    NotAnswered,
    OpenAnswer,
    WebAnswer,
    fetch,
    open_url,
    parse_json,
    retry_after_s,
    split_url,
)

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_HOST = r"localhost(?::\d{1,5})?|\[[0-9a-f:]+\]:\d{1,5}|[a-z0-9-]+(?:\.[a-z0-9-]+)+(?::\d{1,5})?|[a-z0-9-]+:\d{1,5}"
_NAME = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:({_HOST})/)?({_NAME}(?:/{_NAME})*)(?::([A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}}))?(?:@(sha256:[0-9a-f]{{64}}))?"
)
_MAX_NAME_LENGTH = 512
DOCKER_HUB = "docker.io"


@dataclass(frozen=True)
class ImageName:
    """registry: HOST or HOST:PORT; repository: the name below it, without the tag."""

    registry: str
    repository: str
    tag: str | None = None
    digest: str | None = None

    @classmethod
    def parse(cls, text: str) -> "ImageName":
        """Parse the name of an image. Raises UsageError (NoImageName)."""
        found = _IMAGE.fullmatch(text) if len(text) <= _MAX_NAME_LENGTH else None
        if found is None:
            hint = "Write REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:…, for example docker.io/vllm/vllm-openai:v0.33.0"
            raise UsageError(
                "NoImageName", what=f"'{visible(text[:_MAX_NAME_LENGTH])}' is not the name of an image", hint=hint
            )
        registry, repository, tag, digest = found.groups()
        if registry in (None, "index.docker.io", "registry-1.docker.io"):
            registry, repository = DOCKER_HUB, repository if "/" in repository else f"library/{repository}"
        return cls(registry, repository, tag or (None if digest else "latest"), digest)

    @property
    def address(self) -> str:
        """The URL of its registry."""
        host = "registry-1.docker.io" if self.registry == DOCKER_HUB else self.registry
        loopback = re.fullmatch(r"(localhost|127\.[0-9.]+|\[::1\])(:\d+)?", self.registry)
        return f"{'http' if loopback else 'https'}://{host}"

    @property
    def reference(self) -> str:
        """The reference of its manifest: the digest, or else the tag."""
        return self.digest or str(self.tag)

    @property
    def pinned(self) -> str:
        """The name by digest, without a tag, which may move. Container engines pull it by this name."""
        return f"{self.registry}/{self.repository}@{self.digest}"

    def with_digest(self, digest: str) -> "ImageName":
        return replace(self, digest=digest)

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.registry}/{self.repository}{tag}" + (f"@{self.digest}" if self.digest else "")


MAX_MANIFEST_BYTES: Bytes = 4 * MiB  # what registries accept at most
_MAX_LAYERS = 1000
_MAX_BLOB_BYTES = 1 << 44
INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")


class Unusable(Exception):
    """Data that is not a manifest, or not the requested one. The text continues a sentence about the image."""


@dataclass(frozen=True)
class Blob:
    """An entry of a manifest: a layer, the configuration, another manifest."""

    kind: str
    digest: str
    bytes: Bytes


@dataclass(frozen=True)
class Manifest:
    """The manifest of an image for one platform. data: the received bytes, whose hash is the digest."""

    digest: str
    kind: str
    config: Blob
    layers: tuple[Blob, ...]
    data: bytes

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """The configuration and then the layers, each once."""
        return tuple(dict.fromkeys((self.config, *self.layers)))

    @property
    def bytes(self) -> Bytes:
        """The bytes of a download of the image."""
        return sum(blob.bytes for blob in self.blobs)


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def manifest_document(data: bytes) -> dict[str, Any]:
    """Parse a manifest. Raises Unusable."""
    try:
        document = parse_json(data)
    except ValueError:
        raise Unusable("is no JSON") from None
    if not isinstance(document, dict):
        raise Unusable("is no manifest")
    return document


def is_index(document: dict[str, Any], kind: str | None) -> bool:
    """Tell whether a document is a list of manifests, one for each platform."""
    return (document.get("mediaType") or kind) in INDEXES or ("manifests" in document and "config" not in document)


def select_platform(document: dict[str, Any], platform: str) -> Blob:
    """Select the manifest of a list for a platform, such as linux/amd64. Raises Unusable."""
    listed = document.get("manifests")
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise Unusable("is no list of manifests")
    by_platform = {_platform(each): each for each in reversed(listed)}
    if platform not in by_platform:
        names = ", ".join(sorted(name for name in by_platform if "unknown" not in name)) or "none that is named"
        raise Unusable(f"is not made for {platform}, but for: {names[:300]}")
    return _blob(by_platform[platform], (*MANIFESTS, *INDEXES))


def _platform(entry: dict[str, Any]) -> str:
    platform = entry.get("platform")
    parts = [platform.get("os"), platform.get("architecture")] if isinstance(platform, dict) else ["unknown"]
    return "/".join(str(part) if str(part).isprintable() else "unknown" for part in parts)


def manifest_of(data: bytes, kind: str | None = None) -> Manifest:
    """Parse the manifest of an image. kind: its media type, if the document does not state it. Raises Unusable."""
    document = manifest_document(data)
    kind = document.get("mediaType") or kind or MANIFESTS[0]
    if kind not in MANIFESTS or document.get("schemaVersion") != 2:
        raise Unusable("has a manifest of a kind that winhost does not read")
    layers = document.get("layers")
    if not isinstance(layers, list) or not 0 < len(layers) <= _MAX_LAYERS:
        raise Unusable("has a manifest without layers")
    return Manifest(digest_of(data), kind, _blob(document.get("config")), tuple(map(_blob, layers)), data)


def _blob(entry: Any, kinds: tuple[str, ...] = ()) -> Blob:
    if not isinstance(entry, dict) or entry.get("urls"):
        raise Unusable("has a manifest that names what lies elsewhere")
    kind, digest, length = (entry.get(name) for name in ("mediaType", "digest", "size"))
    if (
        not isinstance(kind, str)
        or not isinstance(digest, str)
        or DIGEST.fullmatch(digest) is None
        or type(length) is not int
        or not 0 <= length <= _MAX_BLOB_BYTES
        or (kinds and kind not in kinds)
    ):
        raise Unusable("has a manifest with parts that cannot be read")
    return Blob(kind, digest, length)


PLATFORM = "linux/amd64"
_ACCEPT = ", ".join((*INDEXES, *MANIFESTS))
_CHALLENGE = re.compile(r'([a-z]+)="([^"]*)"')
_OFFLINE_HINT = "Without this registry: name an image with its digest (NAME@sha256:…), or an archive (winhost fetch)"
_TRUST_HINT = "A registry with a certificate of your own authority: export REQUESTS_CA_BUNDLE=FILE"
_COMPARE_HINT = "Compare name and tag with the registry"
_ACCOUNT_HINT = "Name an account that may read it: a secret reference to USER:PASSWORD"


@dataclass(frozen=True)
class Resolved:
    """The image that a name meant when the registry was asked. index: the digest of the list of platforms, if there is
    one; size_bytes: of the download, which takes more once it is unpacked.
    """

    name: ImageName
    platform: str
    manifest: Manifest = field(repr=False)
    index: str | None = None

    @property
    def digest(self) -> str:
        """The digest of the manifest for the platform."""
        return self.manifest.digest

    @property
    def size_bytes(self) -> Bytes:
        return self.manifest.bytes

    @property
    def pinned(self) -> str:
        """REGISTRY/NAME@sha256:…, the form that `ContainerImage` requires."""
        return self.name.with_digest(self.digest).pinned


def resolve(image: str, *, platform: str = PLATFORM, credentials: str | None = None) -> Resolved:
    """Ask the registry of an image for its manifest. credentials: a secret reference to USER:PASSWORD.

    Raises UsageError (NoImageName, SecretUnreadable) and WinhostError (NotResolved).
    """
    name = ImageName.parse(image)
    entry = SecretRef.parse(credentials).resolve() if credentials else None
    return Registry(name, entry).resolve(platform)


def resolve_error(name: ImageName, why: str, hint: str) -> WinhostError:
    return WinhostError("NotResolved", what=f"{name}: {visible(why)}", hint=hint)


@dataclass
class Registry:
    """A repository of a registry. entry: USER:PASSWORD; token: that the registry issued, used until it is refused."""

    name: ImageName
    entry: Secret | None = field(default=None, repr=False)
    token: tuple[str, Secret] | None = field(default=None, repr=False)

    def resolve(self, platform: str) -> Resolved:
        reference = self.name.reference
        if not self.name.digest:
            # HEAD does not count as a download. The body is then requested by its digest, and checked.
            digest = self.ask(f"manifests/{reference}", 0, method="HEAD").headers.get("docker-content-digest", "")
            reference = digest if DIGEST.fullmatch(digest) else reference
        data, kind = self._manifest(reference)
        try:
            document = manifest_document(data)
            if not is_index(document, kind):
                return Resolved(self.name, platform, manifest_of(data, kind))
            chosen = select_platform(document, platform)
            inner, kind = self._manifest(chosen.digest)
            return Resolved(self.name, platform, manifest_of(inner, kind), digest_of(data))
        except Unusable as unusable:
            raise resolve_error(self.name, str(unusable), _COMPARE_HINT) from None

    def _manifest(self, reference: str) -> tuple[bytes, str | None]:
        answer = self.ask(f"manifests/{reference}", MAX_MANIFEST_BYTES)
        received = digest_of(answer.body)
        if DIGEST.fullmatch(reference) and received != reference:
            why = f"{self.name.registry} sent a manifest with {received}, and {reference} was asked for"
            raise resolve_error(self.name, why, "Do not use this registry, or what stands between it and you")
        return answer.body, answer.headers.get("content-type", "").partition(";")[0].strip() or None

    def ask(self, path: str, most: Bytes, *, method: str = "GET") -> WebAnswer:
        """Request a path of this repository. Returns an answer with status 200. Raises WinhostError (NotResolved)."""
        url = f"{self.name.address}/v2/{self.name.repository}/{path}"
        answer = self._ask(url, most, method)
        if answer.status == 401:
            self.token = self._token(answer.headers.get("www-authenticate", ""))
            answer = self._ask(url, most, method)
        if answer.status != 200:
            raise self._refusal(answer)
        return answer

    @contextmanager
    def blob(self, digest: str, begin: Bytes) -> Iterator[OpenAnswer]:
        """Request a layer or configuration from a byte on. Raises NotAnswered, WinhostError (NotResolved)."""
        url = f"{self.name.address}/v2/{self.name.repository}/blobs/{digest}"
        headers = {"Range": f"bytes={begin}-"} if begin else {}
        for last in (False, True):
            with open_url(url, headers=headers, credentials=self.token) as answer:
                if answer.status != 401 or last:
                    yield answer
                    return
                challenge = answer.headers.get("www-authenticate", "")
            self.token = self._token(challenge)  # a token is valid for minutes, and a layer takes longer

    def _ask(self, url: str, most: Bytes, method: str) -> WebAnswer:
        try:
            return fetch(url, most, method=method, headers={"Accept": _ACCEPT}, credentials=self.token)
        except NotAnswered as error:
            hint = _TRUST_HINT if "certificate" in str(error) else _OFFLINE_HINT
            raise resolve_error(self.name, f"{self.name.registry} {error}", hint) from None

    def _refusal(self, answer: WebAnswer) -> WinhostError:
        status = answer.status
        if status == 429:
            seconds = retry_after_s(answer.headers)
            wait = " later" if seconds is None else f" in {seconds} s"
            hint = f"Run the command again{wait}. {_ACCOUNT_HINT}: registries allow it more"
            return resolve_error(self.name, f"{self.name.registry} allows no more downloads for now (429)", hint)
        if status in (401, 403):
            why = f"{self.name.registry} does not let it be read ({status}): it is private, or does not exist"
            return resolve_error(self.name, why, f"{_COMPARE_HINT}. {_ACCOUNT_HINT}")
        if status == 404:
            return resolve_error(self.name, f"{self.name.registry} has no such image (404)", _COMPARE_HINT)
        return resolve_error(self.name, f"{self.name.registry} answers {status}", "Run the command again later")

    def _token(self, challenge: str) -> tuple[str, Secret]:
        """Ask the registry's authority for a token to read this repository, anonymously or with the account."""
        scheme, _, parameters = challenge.partition(" ")
        basic = None
        if self.entry:
            basic = "Basic", Secret(base64.b64encode(self.entry.reveal().encode()).decode("ascii"))
        if scheme.lower() == "basic" and basic:
            return basic
        values = dict(_CHALLENGE.findall(parameters[:4096]))
        if scheme.lower() != "bearer" or "realm" not in values:
            raise resolve_error(self.name, f"{self.name.registry} asks for an account", _ACCOUNT_HINT)
        service = {"service": values["service"]} if "service" in values else {}
        # The scope is not that of the challenge, which may be wider than needed.
        query = urlencode({**service, "scope": f"repository:{self.name.repository}:pull"})
        url = f"{values['realm']}{'&' if '?' in values['realm'] else '?'}{query}"
        try:
            if basic and split_url(url).scheme != "https" and not is_loopback(split_url(url).hostname or ""):
                raise NotAnswered("wants the password without TLS")
            answer = fetch(url, MiB, credentials=basic)
            document = manifest_document(answer.body) if answer.status == 200 else {}
        except (NotAnswered, Unusable) as error:
            why = f"the authority of {self.name.registry} {error}"
            raise resolve_error(self.name, why, _OFFLINE_HINT) from None
        token = document.get("token") or document.get("access_token")
        if not isinstance(token, str) or not re.fullmatch(r"[!-~]{1,100000}", token):
            why = f"the authority of {self.name.registry} gives no token ({answer.status})"
            raise resolve_error(self.name, why, f"{_COMPARE_HINT}. {_ACCOUNT_HINT}")
        return "Bearer", Secret(token)
