"""What a registry has under the name of an image: the digest for a platform, and how much is sent for it.

The distribution API: https://github.com/opencontainers/distribution-spec. Nothing is believed that does not have the
hash by which it was asked for.
"""

import base64
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import Any
from urllib.parse import urlencode

from winhost.core.dataclass import dataclass
from winhost.images.image_names import DIGEST, ImageName
from winhost.images.manifests import (
    INDEXES,
    MANIFESTS,
    MOST_OF_MANIFEST,
    Manifest,
    Unusable,
    digest_of,
    for_platform,
    is_index,
    manifest_document,
    manifest_of,
)
from winhost.model.errors import WinhostError, visible
from winhost.model.secrets import Secret, SecretRef
from winhost.model.units import Bytes, MiB
from winhost.web.asking import NotAnswered, OpenAnswer, WebAnswer, ask, is_this_machine, opened, place_of

PLATFORM = "linux/amd64"
_ACCEPT = ", ".join((*INDEXES, *MANIFESTS))
_CHALLENGE = re.compile(r'([a-z]+)="([^"]*)"')
_OFFLINE = "Without this registry: name an image with its digest (NAME@sha256:…), or an archive (winhost fetch)"
_TRUST = "A registry with a certificate of your own authority: export REQUESTS_CA_BUNDLE=FILE"
_COMPARE = "Compare name and tag with the registry"
_ENTRY = "Name an account that may read it: a secret reference to USER:PASSWORD"


@dataclass(frozen=True)
class Resolved:
    """What stood under a name when it was asked for. index: digest of the list of platforms, where there is one.

    size_bytes: what is sent to pull it; unpacked it takes more.
    """

    name: ImageName
    platform: str
    manifest: Manifest = field(repr=False)
    index: str | None = None

    @property
    def digest(self) -> str:
        """Of the manifest for the platform."""
        return self.manifest.digest

    @property
    def size_bytes(self) -> Bytes:
        return self.manifest.bytes

    @property
    def pinned(self) -> str:
        """As `ContainerImage` wants it: REGISTRY/NAME@sha256:…"""
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
        data, kind = self._manifest(self._digest())
        try:
            document = manifest_document(data)
            if not is_index(document, kind):
                return Resolved(self.name, platform, manifest_of(data, kind))
            chosen = for_platform(document, platform)
            inner, kind = self._manifest(chosen.digest)
            return Resolved(self.name, platform, manifest_of(inner, kind), digest_of(data))
        except Unusable as unusable:
            raise not_resolved(self.name, str(unusable), _COMPARE) from None

    def _digest(self) -> str:
        """By HEAD, which registries do not count as a download; the body is asked for by it, and checked."""
        if self.name.digest:
            return self.name.digest
        answer = self.ask(f"manifests/{self.name.wanted}", 0, method="HEAD")
        told = answer.headers.get("docker-content-digest", "")
        return told if DIGEST.fullmatch(told) else str(self.name.tag)

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
            with opened(url, headers=headers, credentials=self.token) as answer:
                if answer.status != 401 or last:
                    yield answer
                    return
                challenge = answer.headers.get("www-authenticate", "")
            self.token = self._token(challenge)  # they hold for minutes, and a layer takes longer

    def _ask(self, url: str, most: Bytes, method: str) -> WebAnswer:
        try:
            return ask(url, most, method=method, headers={"Accept": _ACCEPT}, credentials=self.token)
        except NotAnswered as error:
            hint = _TRUST if "certificate" in str(error) else _OFFLINE
            raise not_resolved(self.name, f"{self.name.registry} {error}", hint) from None

    def _refused(self, answer: WebAnswer) -> WinhostError:
        status = answer.status
        if status == 429:
            after = answer.headers.get("retry-after", "")
            wait = f" in {after} s" if after.isdecimal() and len(after) < 7 else " later"
            hint = f"Run the command again{wait}. {_ENTRY}: registries allow it more"
            return not_resolved(self.name, f"{self.name.registry} allows no more downloads for now (429)", hint)
        if status in (401, 403):
            why = f"{self.name.registry} does not let it be read ({status}): it is private, or does not exist"
            return not_resolved(self.name, why, f"{_COMPARE}. {_ENTRY}")
        if status == 404:
            return not_resolved(self.name, f"{self.name.registry} has no such image (404)", _COMPARE)
        return not_resolved(self.name, f"{self.name.registry} answers {status}", "Run the command again later")

    def _token(self, challenge: str) -> tuple[str, Secret]:
        """What the registry's own authority gives for reading this repository, to anybody or to an account."""
        scheme, _, rest = challenge.partition(" ")
        basic = ("Basic", _basic(self.entry)) if self.entry else None
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
            if basic and place_of(url).scheme != "https" and not is_this_machine(place_of(url)):
                raise NotAnswered("wants the password without TLS")
            answer = ask(url, MiB, credentials=basic)
            token = _token_in(manifest_document(answer.body)) if answer.status == 200 else None
        except (NotAnswered, Unusable) as error:
            why = f"the authority of {self.name.registry} {error}"
            raise not_resolved(self.name, why, _OFFLINE) from None
        if token is None:
            why = f"the authority of {self.name.registry} gives no token ({answer.status})"
            raise not_resolved(self.name, why, f"{_COMPARE}. {_ENTRY}")
        return "Bearer", token


def _basic(entry: Secret) -> Secret:
    return Secret(base64.b64encode(entry.reveal().encode()).decode("ascii"))


def _token_in(document: Mapping[str, Any]) -> Secret | None:
    token = document.get("token") or document.get("access_token")
    return Secret(token) if isinstance(token, str) and re.fullmatch(r"[!-~]{1,100000}", token) else None
