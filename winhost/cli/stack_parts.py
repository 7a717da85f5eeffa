"""What options say of a workload that is to be served, wherever: its image, keys, address and certificate."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import click
from packaging.version import Version

from winhost.cli.stack_options import StackWords
from winhost.images.image_names import ImageName
from winhost.images.image_registry import resolve
from winhost.model.workload import Exposure, Workload
from winhost.model.workloadfile import load_workload
from winhost.serving.gateway_entries import key_line
from winhost.serving.stack import LOOPBACK, EngineImage
from winhost.serving.vllm_options import seen_versions

IMAGE = "docker.io/vllm/vllm-openai"
_TAG = re.compile(r"v?(\d+\.\d+\.\d+[a-z0-9.]*)")


@dataclass
class StackParts:
    """Each hub and registry is asked once, and each key read once."""

    words: StackWords
    _asked: dict[str, Any] = field(default_factory=dict)

    def once(self, name: str, ask: Callable[[], Any]) -> Any:
        if name not in self._asked:
            self._asked[name] = ask()
        return self._asked[name]

    @property
    def workload(self) -> Workload:
        """With the version of vLLM that its image has: stated, or of the tag, or the newest that is known."""
        found: Workload = self.once("workload", lambda: load_workload(self.words.workload))
        stated = found.versions.get("vllm")
        tag = ImageName.parse(self.words.engine_image).tag if self.words.engine_image else None
        tagged = _TAG.fullmatch(tag or "")
        if stated and tagged and Version(tagged[1]) != stated:
            raise click.UsageError(f"the workload states vLLM {stated}, and the image is {tag}")
        if stated is None and tagged is None and (self.words.engine_image or self.words.engine_program):
            raise click.UsageError(
                'the version of vLLM is not known: state it in the workload, as versions: {vllm: "0.33.0"}'
            )
        version = stated or (Version(tagged[1]) if tagged else seen_versions()[-1])
        return replace(found, versions={**found.versions, "vllm": version})

    @property
    def image(self) -> EngineImage:
        """Raises UsageError (NoImageName), WinhostError (NotResolved)."""
        found: EngineImage = self.once("image", self._image)
        return found

    def _image(self) -> EngineImage:
        name = ImageName.parse(self.words.engine_image or f"{IMAGE}:v{self.workload.versions['vllm']}")
        if self.words.digest:
            name = ImageName.parse(str(name.at(self.words.digest)))
        if name.digest:
            return EngineImage(name.pinned)
        found = resolve(str(name))
        return EngineImage(found.pinned, found.size_bytes)

    @property
    def listen(self) -> tuple[str, int]:
        """An address and a port. Raises UsageError of click where it is beyond this machine, and neither TLS nor its
        lack was named.
        """
        usual = "127.0.0.1:8443" if self.workload.exposure is Exposure.LOOPBACK else "0.0.0.0:8443"
        text = self.words.listen or usual
        address, _, port = text.rpartition(":")
        if not address or not port.isdecimal():
            raise click.UsageError(f"{text!r} is not ADDRESS:PORT")
        bare = address.strip("[]")
        if bare not in LOOPBACK and self.tls is None and not self.words.plain_http:
            raise click.UsageError(
                f"{bare} is beyond this machine: name --certificate and --certificate-key, or say --plain-http"
            )
        return bare, int(port)

    @property
    def tls(self) -> tuple[str, str] | None:
        """Paths of a certificate and its key."""
        certificate, key = self.words.certificate, self.words.certificate_key
        if (certificate is None) is not (key is None):
            raise click.UsageError("--certificate and --certificate-key go together")
        return (certificate, key) if certificate and key else None

    @property
    def keys(self) -> tuple[str, ...]:
        """Lines of the gateway's file. Raises ValueError, UsageError (SecretUnreadable)."""
        if not self.words.api_key:
            raise click.UsageError("nobody could use the endpoint: name an API key, as --api-key alice=env:ALICE_KEY")
        return tuple(self.once(f"key {each}", partial(_line, each)) for each in self.words.api_key)


def _line(text: str) -> str:
    return key_line(*key_pair(text))


def key_pair(text: str) -> tuple[str, str]:
    """Whose key, and a secret reference to it."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise click.UsageError(f"{text!r} is not NAME=REF")
    return name, value
