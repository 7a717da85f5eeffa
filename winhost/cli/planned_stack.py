"""What a workload is served by, joined to the playbook of a host's path."""

import re
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, cast

import click
from packaging.version import Version

from winhost.cli.stack_options import StackWords
from winhost.cli.stack_target import StackTarget, stack_target
from winhost.core.answers import Id, Json
from winhost.hub.hub_listing import model_files
from winhost.hub.hub_repository import HUB
from winhost.images.image_names import ImageName
from winhost.images.image_registry import resolve
from winhost.model.errors import UsageError, visible
from winhost.model.facts import Facts
from winhost.model.workload import Exposure, Model, Workload
from winhost.model.workloadfile import load_workload
from winhost.paths.path_request import PathRequest
from winhost.paths.playbook import Playbook, PlaybookResource
from winhost.resources.host import HostFacts
from winhost.serving.gateway_entries import key_line
from winhost.serving.stack import LOOPBACK, EngineImage, Stack, StackRequest, stack
from winhost.serving.vllm_options import seen_versions

IMAGE = "docker.io/vllm/vllm-openai"
_TAG = re.compile(r"v?(\d+\.\d+\.\d+[a-z0-9.]*)")


@dataclass
class PlannedStack:
    """One workload for all hosts of a command: the hub and the registry are asked once."""

    words: StackWords
    _made: dict[str, tuple[PathRequest, Stack]] = field(default_factory=dict)
    _asked: dict[str, Any] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def named(self, facts: Facts, request: PathRequest) -> frozenset[Id]:
        """What of a host is to be read for it. Raises as `joined`."""
        return self.joined(HostFacts(facts), request)[0].playbook.named

    def joined(self, facts: HostFacts, request: PathRequest) -> tuple[PathRequest, Stack]:
        """The request with what serves the workload. Raises as `stack` does, and as the hub and the registry do."""
        with self._lock:
            if facts.host not in self._made:
                self._made[facts.host] = self._join(facts, request)
            return self._made[facts.host]

    def _join(self, facts: HostFacts, request: PathRequest) -> tuple[PathRequest, Stack]:
        address, port = _place(self.words.listen or _usual(self._workload()))
        beyond = address not in LOOPBACK
        target = stack_target(facts, request, self.words.engine_program, beyond=beyond)
        try:
            found = stack(target.facts, self._request(target))
            target = target.published(port, self.words.allow) if beyond else target
        except ValueError as wrong:
            raise click.UsageError(str(wrong)) from None
        book = target.request.playbook
        entries = [
            PlaybookResource.model_validate({**cast("dict[str, Json]", each), "for_each": target.waits_for})
            for each in found.entries
        ]
        joined = Playbook(
            schema=book.schema_, path=book.path, settings=book.settings, resources=[*book.resources, *entries]
        )
        # The first key that was named: by it the run asks for a completion in the end.
        _, asks_with = _pair(self.words.api_key[0])
        return target.request.with_playbook(joined).with_options(asks_with=asks_with), found

    def _request(self, target: StackTarget) -> StackRequest:
        workload, words = self._workload(), self.words
        if not words.api_key:
            raise click.UsageError("nobody could use the endpoint: name an API key, as --api-key alice=env:ALICE_KEY")
        tls = self._tls()
        listen = _place(words.listen or _usual(workload))
        beyond = listen[0] not in LOOPBACK
        if beyond and not words.allow:
            raise click.UsageError("who reaches the endpoint? Name the networks, as --allow 10.20.0.0/16")
        if beyond and tls is None and not words.plain_http:
            raise click.UsageError(
                f"{listen[0]} is beyond this machine: name --certificate and --certificate-key, or say --plain-http"
            )
        return StackRequest(
            workload=workload,
            path=target.request.path,
            by=target.by,
            image=None if words.engine_program else self._once("image", lambda: self._image(workload)),
            files={
                model.name: self._once(f"model {model.name}", lambda m=model: self._files(m))
                for model in workload.models
            },
            keys=tuple(self._once(f"key {each}", lambda e=each: key_line(*_pair(e))) for each in words.api_key),
            listen=listen,
            tls=tls,
            plain_http=words.plain_http,
            allowed=words.allow if target.peers is None else target.peers or None,
        )

    def _once(self, name: str, ask: Any) -> Any:
        if name not in self._asked:
            self._asked[name] = ask()
        return self._asked[name]

    def _workload(self) -> Workload:
        """With the version of vLLM that its image has: stated, or of the tag, or the newest that is known."""
        found: Workload = self._once("workload", lambda: load_workload(self.words.workload))
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

    def _image(self, workload: Workload) -> EngineImage:
        name = ImageName.parse(self.words.engine_image or f"{IMAGE}:v{workload.versions['vllm']}")
        if self.words.digest:
            name = ImageName.parse(str(name.at(self.words.digest)))
        if name.digest:
            return EngineImage(name.pinned)
        found = resolve(str(name))
        return EngineImage(found.pinned, found.size_bytes)

    def _files(self, model: Model) -> dict[str, Any]:
        if model.revision is None:
            raise UsageError(
                "NoRevision",
                what=f"{visible(model.name)} has no revision, so its files could be others tomorrow",
                hint=f"Write the commit: winhost workload init {visible(model.id)} finds it",
            )
        reference = model.token.written if model.token else None
        return model_files(model.id, model.revision, reference, (self.words.hub or HUB).rstrip("/"))

    def _tls(self) -> tuple[str, str] | None:
        certificate, key = self.words.certificate, self.words.certificate_key
        if (certificate is None) is not (key is None):
            raise click.UsageError("--certificate and --certificate-key go together")
        return (certificate, key) if certificate and key else None


def _usual(workload: Workload) -> str:
    return "127.0.0.1:8443" if workload.exposure is Exposure.LOOPBACK else "0.0.0.0:8443"


def _place(text: str) -> tuple[str, int]:
    address, _, port = text.rpartition(":")
    if not address or not port.isdecimal():
        raise click.UsageError(f"{text!r} is not ADDRESS:PORT")
    return address.strip("[]"), int(port)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise click.UsageError(f"{text!r} is not NAME=REF")
    return name, value
