"""Join the stack that serves a workload to the playbook of a host's path."""

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import Any, cast

import click

from winhost.cli.cluster_parts import check_images, check_node_words, node_request, with_cluster_key
from winhost.cli.errors import Faults, from_os_error
from winhost.cli.stack_options import ClusterOptions, StackOptions
from winhost.cli.stack_parts import BY_DIGEST, StackParts, key_pair, show_made_keys, yield_key_of
from winhost.cli.stack_target import StackTarget, node_target, stack_target
from winhost.cluster.node import ClusterStack, cluster_stack
from winhost.compat.target import Target
from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.gateway.key_lines import parse_key
from winhost.hub.wheel_index import PYPI, PythonPlace, locked_packages, wheels_of
from winhost.model.errors import UsageError, visible
from winhost.model.plan import Offline
from winhost.model.workload import Deploy, LoadFormat, Workload, YieldTo
from winhost.paths.linux_engine import python_of
from winhost.paths.playbook import PathRequest, Playbook, PlaybookResource
from winhost.resources.host import Gpu, HostFacts
from winhost.resources.windows.yield_watcher import watcher_settings
from winhost.serving.packed_weights import NVCOMP, NVCOMP_LOCK
from winhost.serving.python_entries import PythonWheels
from winhost.serving.stack import LOOPBACK, Stack, StackRequest, stack


@dataclass
class PlannedStack:
    """One workload for all hosts of a command: the hub and the registry are asked once. pending: as of `StackParts`."""

    words: StackOptions
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
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


Once = Callable[[str, Callable[[], Any]], Any]
"""Asks for what has this name no second time."""


def engine_wheels(words: StackOptions, facts: HostFacts, once: Once) -> PythonWheels | None:
    """None where vLLM comes otherwise. Raises UsageError (WhichPython, NotLocked), WinhostError (NoWheel)."""
    if words.engine_lock is None:
        return None
    return _wheels(lock_text(words.engine_lock), str(words.engine_lock), words, facts, once)


def nvcomp_wheels(words: StackOptions, facts: HostFacts, workload: Workload, once: Once) -> PythonWheels | None:
    """None where no model is packed. Raises as `engine_wheels` does."""
    if all(each.load_format is not LoadFormat.PACKED for each in workload.models):
        return None
    return _wheels(NVCOMP_LOCK, NVCOMP, words, facts, once)


def _wheels(text: str, where: str, words: StackOptions, facts: HostFacts, once: Once) -> PythonWheels:
    found = python_of(facts, words.python)
    if found is None:
        raise UsageError(
            "WhichPython",
            what=f"which Python the Linux of {visible(facts.host)} has is not known, so no wheel can be chosen for it",
            hint="Say it, as python3 --version does there: --python 3.12",
            host=facts.host,
        )
    place = PythonPlace(*found)
    packages = locked_packages(text, where, place.version, place.machine)
    index = words.index or PYPI
    wheels = once(f"wheels {where} {place}", lambda: wheels_of(packages, place, index))
    return PythonWheels(place.version, wheels[0].server, tuple(each.line for each in wheels))


def lock_text(file: Path) -> str:
    """Raises UsageError."""
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise from_os_error(error) from error
    except ValueError:
        raise UsageError("LockUnreadable", what=f"{visible(str(file))} is no text in UTF-8", hint="") from None


_ANYWHERE = ("0.0.0.0", "::")  # noqa: S104 - where the gateway listens, compared


def desktop_watchers(parts: StackParts, target: StackTarget) -> list[dict[str, Json]]:
    """The setting `watchers` of path wsl2. Raises click's UsageError, UsageError (SecretUnreadable), MissingFact."""
    wanted = parts.workload.availability.yield_to
    if wanted is None or not wanted.accounts:
        return []
    mode = target.networking_mode
    if mode is None:
        raise click.UsageError(
            "availability.yield_to.accounts names people at the desktop of a Windows that shares its GPUs with WSL, "
            f"and path {target.request.path} has none: leave it out there"
        )
    url = wanted.url or _own_address(parts, mode)
    found = []
    for account in wanted.accounts:
        name, reference = yield_key_of(account, parts.words.yield_key)
        digest = parse_key(parts.yield_line(name, reference)).sha256
        found.append({"account": account, "settings": settings_text(wanted, url), "key": reference, "digest": digest})
    return found


def settings_text(wanted: YieldTo, url: str) -> str:
    return watcher_settings(
        url=url,
        programs=wanted.programs,
        full_screen=wanted.full_screen,
        unlocked=wanted.unlocked,
        gpu_memory=wanted.gpu_memory,
    )


def _own_address(parts: StackParts, mode: str) -> str:
    """The gateway on Windows's own loopback, where WSL brings it. Raises click's UsageError."""
    address, port = parts.listen
    if mode == "bridged" or parts.tls or address not in (*LOOPBACK, *_ANYWHERE):
        raise click.UsageError(
            "at which address does Windows reach the gateway? Add it to availability.yield_to of the workload: "
            f"url: https://NAME:{port}, by the name in its certificate"
        )
    return f"http://127.0.0.1:{port}"
