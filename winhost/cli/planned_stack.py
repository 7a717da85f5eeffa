"""Join the stack that serves a workload to the playbook of a host's path."""

from collections.abc import Sequence
from dataclasses import field, replace
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import cast

import click

from winhost.cli.cluster_options import ClusterWords
from winhost.cli.cluster_parts import check_images, check_node_words, node_request, with_cluster_key
from winhost.cli.foreign_errors import Faults
from winhost.cli.stack_options import StackWords
from winhost.cli.stack_parts import BY_DIGEST, StackParts, key_pair, show_made_keys
from winhost.cli.stack_target import StackTarget, node_target, stack_target
from winhost.cli.stack_watchers import desktop_watchers
from winhost.cli.stack_wheels import engine_wheels, lock_text, nvcomp_wheels
from winhost.cluster.node import ClusterStack, cluster_stack
from winhost.compat.target import Target
from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.model.plan import Offline
from winhost.model.workload import Deploy
from winhost.paths.playbook import PathRequest, Playbook, PlaybookResource
from winhost.resources.host import Gpu, HostFacts
from winhost.serving.python_entries import PythonWheels
from winhost.serving.stack import LOOPBACK, Stack, StackRequest, stack


@dataclass
class PlannedStack:
    """One workload for all hosts of a command: the hub and the registry are asked once. pending: as of `StackParts`."""

    words: StackWords
    cluster: ClusterWords = field(default_factory=ClusterWords)
    pending: Path | None = None
    _made: dict[str, tuple[PathRequest, Stack | ClusterStack]] = field(default_factory=dict)
    _targets: dict[str, StackTarget] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    @cached_property
    def parts(self) -> StackParts:
        return StackParts(self.words, pending=self.pending)

    @property
    def _in_cluster(self) -> bool:
        return self.parts.written.deploy is Deploy.KUBERNETES

    def check(self, path: str | None = None) -> None:
        """All that is wrong with the words themselves, before any host is asked. Raises UsageError, click's."""
        faults = Faults()
        self.check_with(path, faults)
        faults.refuse()

    def check_with(self, path: str | None, faults: Faults) -> None:
        """Like `check`, with other faults of the same command."""
        parts = self.parts
        parts.check(faults)
        check_node_words(parts, self.cluster, faults)
        if self.words.engine_lock:
            faults.of(partial(lock_text, self.words.engine_lock))
        if not faults.of(lambda: self._in_cluster):
            faults.of(lambda: parts.tls)
            faults.of(lambda: parts.listen)
        if path == "linux":  # a Windows host tells its networks itself
            parts.check_allowed(None, faults)

    def show_made_keys(self, shape: str) -> None:
        """Tell of the API keys that winhost keeps for these hosts."""
        show_made_keys(self.parts.made_keys, shape)

    def joined(self, facts: HostFacts, request: PathRequest) -> tuple[PathRequest, Stack | ClusterStack]:
        """The request with what serves the workload. Raises as `stack` does, and as the hub and the registry do."""
        with self._lock:
            if facts.host not in self._made:
                self._made[facts.host] = self._join(facts, request)
            return self._made[facts.host]

    def serving_gpus(self, host: str) -> tuple[Gpu, ...]:
        """Those that engines were placed on, as the Linux that serves sees them; none in a cluster."""
        found, target = self._made.get(host), self._targets.get(host)
        if found is None or target is None or not isinstance(found[1], Stack):
            return ()
        gpus = Target(target.facts, target.request.path).gpus
        numbers = sorted({number for each in found[1].deployed.engines for number in each.cards})
        return tuple(gpus[number] for number in numbers if number < len(gpus))

    def join_anew(self, host: str) -> None:
        """The next request of this host is another one."""
        self._made.pop(host, None)

    def _join(self, facts: HostFacts, request: PathRequest) -> tuple[PathRequest, Stack | ClusterStack]:
        if self._in_cluster:
            return self._join_cluster(facts, request)
        address, port = self.parts.listen
        beyond = address not in LOOPBACK
        wheels = engine_wheels(self.words, facts, self.parts.once)
        nvcomp = nvcomp_wheels(self.words, facts, self.parts.workload, self.parts.once)
        program = f"{wheels.folder}/bin/vllm" if wheels else self.words.engine_program
        target = self._targets[facts.host] = stack_target(facts, request, program, beyond=beyond)
        faults, parts = Faults(), self.parts
        allow = (faults.of(lambda: parts.allowed(facts)) or ()) if beyond else ()
        if not parts.own_program:
            faults.of(lambda: parts.image, BY_DIGEST)
        faults.of(lambda: parts.files)
        faults.refuse()
        parts = parts.with_key_of(facts.host)
        try:
            found = stack(target.facts, self._request(parts, target, allow, wheels, nvcomp))
            target = target.published(port, allow) if beyond else target
            if watchers := desktop_watchers(parts, target):
                target = target.with_watchers(watchers)
        except ValueError as wrong:
            raise click.UsageError(str(wrong)) from None
        # The first key that was named: by it the run asks for a completion in the end.
        _, asks_with = key_pair(parts.words.api_key[0])
        image = None if self.parts.own_program else self.parts.image
        offline = Offline({image.pinned: image.saved}, {}) if image and image.saved else None
        joined = _with_entries(target, found.entries)
        if beyond and not self.words.allow:
            found = replace(found, notes=(*found.notes, _own_networks(allow)))
        return target.request.with_playbook(joined).with_options(asks_with=asks_with, offline=offline), found

    def _join_cluster(self, facts: HostFacts, request: PathRequest) -> tuple[PathRequest, ClusterStack]:
        target, faults = node_target(facts, request), Faults()
        check_images(self.parts, self.cluster, faults)
        self.parts.check_allowed(facts, faults)
        faults.of(lambda: self.parts.files)
        faults.refuse()
        parts = with_cluster_key(self.parts, self.cluster, facts.host)
        wanted = node_request(parts, self.cluster, facts, target.request.path, target.network)
        try:
            found = cluster_stack(target.facts, wanted)
        except ValueError as wrong:
            raise click.UsageError(str(wrong)) from None
        if wanted.cluster.allow != self.words.allow:
            found = replace(found, notes=(*found.notes, _own_networks(wanted.cluster.allow)))
        return target.request.with_playbook(_with_entries(target, found.entries)), found

    def _request(
        self,
        parts: StackParts,
        target: StackTarget,
        allow: tuple[str, ...],
        wheels: PythonWheels | None,
        nvcomp: PythonWheels | None,
    ) -> StackRequest:
        words = self.words
        return StackRequest(
            workload=parts.workload,
            path=target.request.path,
            by=target.by,
            image=None if parts.own_program else parts.image,
            files=parts.files,
            keys=parts.keys,
            listen=parts.listen,
            tls=parts.tls,
            plain_http=words.plain_http,
            allowed=allow if target.peers is None else target.peers or None,
            engine_wheels=wheels,
            nvcomp=nvcomp,
        )


def _own_networks(allow: tuple[str, ...]) -> str:
    return f"the endpoint is open to {', '.join(allow)}, the host's own networks; others take --allow NETWORK"


def _with_entries(target: StackTarget, entries: Sequence[Json]) -> Playbook:
    book = target.request.playbook
    more = [
        PlaybookResource.model_validate({**cast("dict[str, Json]", each), "for_each": target.waits_for})
        for each in entries
    ]
    return Playbook(schema=book.schema_, path=book.path, settings=book.settings, resources=[*book.resources, *more])
