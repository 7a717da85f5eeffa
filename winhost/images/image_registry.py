"""Container images: their names, their manifests, and what a registry has of them.

The distribution API: https://github.com/opencontainers/distribution-spec. Nothing is believed that does not have the
hash by which it was asked for.
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
_LONGEST = 512
DOCKER_HUB = "docker.io"


@dataclass(frozen=True)
class ImageName:
    """registry: its host, and port; repository: the rest before the tag."""

    registry: str
    repository: str
    tag: str | None = None
    digest: str | None = None

    @classmethod
    def parse(cls, text: str) -> "ImageName":
        """Raises UsageError (NoImageName)."""
        found = _IMAGE.fullmatch(text) if len(text) <= _LONGEST else None
        if found is None:
            hint = "Write REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:…, for example docker.io/vllm/vllm-openai:v0.33.0"
            raise UsageError("NoImageName", what=f"'{visible(text[:_LONGEST])}' is not the name of an image", hint=hint)
        registry, repository, tag, digest = found.groups()
        if registry in (None, "index.docker.io", "registry-1.docker.io"):
            registry, repository = DOCKER_HUB, repository if "/" in repository else f"library/{repository}"
        return cls(registry, repository, tag or (None if digest else "latest"), digest)

    @property
    def address(self) -> str:
        """The address at which its registry is asked."""
        host = "registry-1.docker.io" if self.registry == DOCKER_HUB else self.registry
        loopback = re.fullmatch(r"(localhost|127\.[0-9.]+|\[::1\])(:\d+)?", self.registry)
        return f"{'http' if loopback else 'https'}://{host}"

    @property
    def wanted(self) -> str:
        """The name of its manifest: the digest, or else the tag."""
        return self.digest or str(self.tag)

    @property
    def pinned(self) -> str:
        """The reference by digest, without a tag that may move, as engines pull it."""
        return f"{self.registry}/{self.repository}@{self.digest}"

    def at(self, digest: str) -> "ImageName":
        return replace(self, digest=digest)

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.registry}/{self.repository}{tag}" + (f"@{self.digest}" if self.digest else "")


MOST_OF_MANIFEST: Bytes = 4 * MiB  # what registries accept at most
_MOST_LAYERS = 1000
_LARGEST = 1 << 44
INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)


class Unusable(Exception):
    """Data that is no manifest, or not the one that was wanted. The sentence goes on after its name."""


@dataclass(frozen=True)
class Blob:
    """An entry of a manifest: a layer, the configuration, another manifest."""

    kind: str
    digest: str
    bytes: Bytes


@dataclass(frozen=True)
class Manifest:
    """The manifest of an image for one platform. data: as it came, whose hash is the digest."""

    digest: str
    kind: str
    config: Blob
    layers: tuple[Blob, ...]
    data: bytes

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """Each once, the configuration first."""
        return tuple(dict.fromkeys((self.config, *self.layers)))

    @property
    def bytes(self) -> Bytes:
        """The bytes that are sent for the image."""
        return sum(blob.bytes for blob in self.blobs)


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def manifest_document(data: bytes) -> dict[str, Any]:
    """Raises Unusable."""
    try:
        document = parse_json(data)
    except ValueError:
        raise Unusable("is no JSON") from None
    if not isinstance(document, dict):
        raise Unusable("is no manifest")
    return document


def is_index(document: dict[str, Any], kind: str | None) -> bool:
    """Tell whether it is a list of manifests, one for each platform."""
    return (document.get("mediaType") or kind) in INDEXES or ("manifests" in document and "config" not in document)


def for_platform(document: dict[str, Any], platform: str) -> Blob:
    """The manifest of a list that is for a platform, as linux/amd64. Raises Unusable."""
    listed = document.get("manifests")
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise Unusable("is no list of manifests")
    there = {_platform(each): each for each in reversed(listed)}
    if platform not in there:
        shown = ", ".join(sorted(name for name in there if "unknown" not in name)) or "none that is named"
        raise Unusable(f"is not made for {platform}, but for: {shown[:300]}")
    return _blob(there[platform], (*MANIFESTS, *INDEXES))


def _platform(entry: dict[str, Any]) -> str:
    platform = entry.get("platform")
    parts = [platform.get("os"), platform.get("architecture")] if isinstance(platform, dict) else ["unknown"]
    return "/".join(str(part) if str(part).isprintable() else "unknown" for part in parts)


def manifest_of(data: bytes, kind: str | None = None) -> Manifest:
    """Raises Unusable."""
    document = manifest_document(data)
    kind = document.get("mediaType") or kind or MANIFESTS[0]
    if kind not in MANIFESTS or document.get("schemaVersion") != 2:
        raise Unusable("has a manifest of a kind that winhost does not read")
    layers = document.get("layers")
    if not isinstance(layers, list) or not 0 < len(layers) <= _MOST_LAYERS:
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
        or not 0 <= length <= _LARGEST
        or (kinds and kind not in kinds)
    ):
        raise Unusable("has a manifest with parts that cannot be read")
    return Blob(kind, digest, length)


PLATFORM = "linux/amd64"
_ACCEPT = ", ".join((*INDEXES, *MANIFESTS))
_CHALLENGE = re.compile(r'([a-z]+)="([^"]*)"')
_OFFLINE = "Without this registry: name an image with its digest (NAME@sha256:…), or an archive (winhost fetch)"
_TRUST = "A registry with a certificate of your own authority: export REQUESTS_CA_BUNDLE=FILE"
_COMPARE = "Compare name and tag with the registry"
_ENTRY = "Name an account that may read it: a secret reference to USER:PASSWORD"


@dataclass(frozen=True)
class Resolved:
    """An image as it stood under a name when the registry was asked. index: digest of the list of platforms, where
    there is one. size_bytes: what is sent to pull it; unpacked it takes more.
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
        return self.name.at(self.digest).pinned


def resolve(image: str, *, platform: str = PLATFORM, credentials: str | None = None) -> Resolved:
    """Asks the registry of the image. credentials: a secret reference to USER:PASSWORD.

    Raises UsageError (NoImageName, SecretUnreadable) and WinhostError (NotResolved).
    """
    name = ImageName.parse(image)
    entry = SecretRef.parse(credentials).resolve() if credentials else None
    return Registry(name, entry).resolve(platform)


def not_resolved(name: ImageName, why: str, hint: str) -> WinhostError:
    return WinhostError("NotResolved", what=f"{name}: {visible(why)}", hint=hint)


@dataclass
class Registry:
    """One repository of one registry. token: what the registry gave for it, used until it is refused."""

    name: ImageName
    entry: Secret | None = field(default=None, repr=False)
    token: tuple[str, Secret] | None = field(default=None, repr=False)

    def resolve(self, platform: str) -> Resolved:
        wanted = self.name.wanted
        if not self.name.digest:
            # HEAD counts as no download; the body is asked for by the digest, and checked.
            told = self.ask(f"manifests/{wanted}", 0, method="HEAD").headers.get("docker-content-digest", "")
            wanted = told if DIGEST.fullmatch(told) else wanted
        data, kind = self._manifest(wanted)
        try:
            document = manifest_document(data)
            if not is_index(document, kind):
                return Resolved(self.name, platform, manifest_of(data, kind))
            chosen = for_platform(document, platform)
            inner, kind = self._manifest(chosen.digest)
            return Resolved(self.name, platform, manifest_of(inner, kind), digest_of(data))
        except Unusable as unusable:
            raise not_resolved(self.name, str(unusable), _COMPARE) from None

    def _manifest(self, wanted: str) -> tuple[bytes, str | None]:
        answer = self.ask(f"manifests/{wanted}", MOST_OF_MANIFEST)
        found = digest_of(answer.body)
        if DIGEST.fullmatch(wanted) and found != wanted:
            why = f"{self.name.registry} sent a manifest with {found}, and {wanted} was asked for"
            raise not_resolved(self.name, why, "Do not use this registry, or what stands between it and you")
        return answer.body, answer.headers.get("content-type", "").partition(";")[0].strip() or None

    def ask(self, path: str, most: Bytes, *, method: str = "GET") -> WebAnswer:
        """An answer of this repository with status 200. Raises WinhostError (NotResolved)."""
        url = f"{self.name.address}/v2/{self.name.repository}/{path}"
        answer = self._ask(url, most, method)
        if answer.status == 401:
            self.token = self._token(answer.headers.get("www-authenticate", ""))
            answer = self._ask(url, most, method)
        if answer.status != 200:
            raise self._refused(answer)
        return answer

    @contextmanager
    def blob(self, digest: str, begin: Bytes) -> Iterator[OpenAnswer]:
        """A layer or configuration, from a byte on. Raises NotAnswered, WinhostError (NotResolved)."""
        url = f"{self.name.address}/v2/{self.name.repository}/blobs/{digest}"
        headers = {"Range": f"bytes={begin}-"} if begin else {}
        for last in (False, True):
            with open_url(url, headers=headers, credentials=self.token) as answer:
                if answer.status != 401 or last:
                    yield answer
                    return
                challenge = answer.headers.get("www-authenticate", "")
            self.token = self._token(challenge)  # they hold for minutes, and a layer takes longer

    def _ask(self, url: str, most: Bytes, method: str) -> WebAnswer:
        try:
            return fetch(url, most, method=method, headers={"Accept": _ACCEPT}, credentials=self.token)
        except NotAnswered as error:
            hint = _TRUST if "certificate" in str(error) else _OFFLINE
            raise not_resolved(self.name, f"{self.name.registry} {error}", hint) from None

    def _refused(self, answer: WebAnswer) -> WinhostError:
        status = answer.status
        if status == 429:
            seconds = retry_after_s(answer.headers)
            wait = " later" if seconds is None else f" in {seconds} s"
            hint = f"Run the command again{wait}. {_ENTRY}: registries allow it more"
            return not_resolved(self.name, f"{self.name.registry} allows no more downloads for now (429)", hint)
        if status in (401, 403):
            why = f"{self.name.registry} does not let it be read ({status}): it is private, or does not exist"
            return not_resolved(self.name, why, f"{_COMPARE}. {_ENTRY}")
        if status == 404:
            return not_resolved(self.name, f"{self.name.registry} has no such image (404)", _COMPARE)
        return not_resolved(self.name, f"{self.name.registry} answers {status}", "Run the command again later")

    def _token(self, challenge: str) -> tuple[str, Secret]:
        """Ask the registry's own authority for a token to read this repository, for anybody or for an account."""
        scheme, _, rest = challenge.partition(" ")
        basic = None
        if self.entry:
            basic = "Basic", Secret(base64.b64encode(self.entry.reveal().encode()).decode("ascii"))
        if scheme.lower() == "basic" and basic:
            return basic
        asked = dict(_CHALLENGE.findall(rest[:4096]))
        if scheme.lower() != "bearer" or "realm" not in asked:
            raise not_resolved(self.name, f"{self.name.registry} asks for an account", _ENTRY)
        more = {"service": asked["service"]} if "service" in asked else {}
        # The scope is ours: what the registry asks for may be more than is wanted.
        query = urlencode({**more, "scope": f"repository:{self.name.repository}:pull"})
        url = f"{asked['realm']}{'&' if '?' in asked['realm'] else '?'}{query}"
        try:
            if basic and split_url(url).scheme != "https" and not is_loopback(split_url(url).hostname or ""):
                raise NotAnswered("wants the password without TLS")
            answer = fetch(url, MiB, credentials=basic)
            document = manifest_document(answer.body) if answer.status == 200 else {}
        except (NotAnswered, Unusable) as error:
            why = f"the authority of {self.name.registry} {error}"
            raise not_resolved(self.name, why, _OFFLINE) from None
        token = document.get("token") or document.get("access_token")
        if not isinstance(token, str) or not re.fullmatch(r"[!-~]{1,100000}", token):
            why = f"the authority of {self.name.registry} gives no token ({answer.status})"
            raise not_resolved(self.name, why, f"{_COMPARE}. {_ENTRY}")
        return "Bearer", Secret(token)
