"""Join the stack that serves a workload to the playbook of a host's path."""

from collections.abc import Sequence
from dataclasses import field, replace
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import TypeAlias, cast

import click

from winhost.cli.errors import Faults, secret_reference, usage_errors
from winhost.cli.plan.stack_options import ClusterOptions, StackOptions, key_pair
from winhost.cli.plan.stack_parts import BY_DIGEST, StackParts, pin_engine_image, show_made_keys, yield_key_of
from winhost.cluster.node import PROGRAM, ClusterStack, Join, NodeFile, NodeRequest, cluster_stack
from winhost.cluster.render_request import ClusterRequest
from winhost.compat.target import Target
from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.engine.stack_target import StackTarget, node_target, stack_target
from winhost.gateway.key_lines import parse_key
from winhost.images import k3s_release
from winhost.images.image_registry import ImageName
from winhost.knowledge.versions import newer_line
from winhost.model.cluster_defaults import KEYS
from winhost.model.plan import Offline
from winhost.model.workload import Deploy, Exposure, YieldTo
from winhost.paths.playbook import PathRequest, Playbook, PlaybookResource
from winhost.resources.host import Gpu, HostFacts
from winhost.resources.windows.accounts import watcher_settings
from winhost.serving.engine_names import slug
from winhost.serving.stack import LOOPBACK, Stack, StackRequest, stack

AnyStack: TypeAlias = Stack | ClusterStack


@dataclass
class PlannedStack:
    """Joins one workload to the plans of all hosts of a command. pending: as in `StackParts`."""

    options: StackOptions
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    pending: Path | None = None
    _made: dict[str, tuple[PathRequest, AnyStack]] = field(default_factory=dict)
    _targets: dict[str, StackTarget] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    @cached_property
    def parts(self) -> StackParts:
        return StackParts(self.options, self.cluster, pending=self.pending)

    @property
    def _in_cluster(self) -> bool:
        return self.parts.written.deploy is Deploy.KUBERNETES

    def check(self, path: str | None = None) -> None:
        """Check the command line before any host is asked. Raises UsageError, click's."""
        faults = Faults()
        self.check_with(path, faults)
        faults.refuse()

    def check_with(self, path: str | None, faults: Faults) -> None:
        """Add the faults that `check` finds to those of the same command."""
        parts = self.parts
        parts.check(faults)
        check_node_options(parts, faults)
        if not faults.of(lambda: self._in_cluster):
            faults.of(lambda: parts.options.tls)
            faults.of(lambda: parts.listen)
        if path == "linux":  # a Windows host tells its networks itself
            parts.check_allowed(None, faults)

    def show_made_keys(self, shape: str) -> None:
        """Tell of the API keys that winhost keeps for these hosts."""
        show_made_keys(self.parts.made_keys, shape)

    def joined(self, facts: HostFacts, request: PathRequest) -> tuple[PathRequest, AnyStack]:
        """Add what serves the workload to a request. Raises as `stack` does, and as the hub and the registry do."""
        with self._lock:
            if facts.host not in self._made:
                join = self._join_cluster if self._in_cluster else self._join
                self._made[facts.host] = join(facts, request)
            return self._made[facts.host]

    def serving_gpus(self, host: str) -> tuple[Gpu, ...]:
        """The GPUs that engines were assigned to, as the Linux that serves sees them; none in a cluster."""
        found, target = self._made.get(host), self._targets.get(host)
        if found is None or target is None or not isinstance(found[1], Stack):
            return ()
        gpus = Target(target.facts, target.request.path).gpus
        numbers = sorted({number for each in found[1].deployed.engines for number in each.gpus})
        return tuple(gpus[number] for number in numbers if number < len(gpus))

    def join_anew(self, host: str) -> None:
        """Forget what was joined for this host, because its next request is another one."""
        self._made.pop(host, None)

    def _join(self, facts: HostFacts, request: PathRequest) -> tuple[PathRequest, AnyStack]:
        parts, faults = self.parts, Faults()
        address, port = parts.listen
        beyond = address not in LOOPBACK
        wheels, nvcomp = parts.engine_wheels(facts), parts.nvcomp_wheels(facts)
        program = f"{wheels.folder}/bin/vllm" if wheels else self.options.engine_program
        target = self._targets[facts.host] = stack_target(facts, request, program, beyond=beyond)
        allow = (faults.of(lambda: parts.allowed(facts)) or ()) if beyond else ()
        if not parts.own_program:
            faults.of(lambda: parts.image, BY_DIGEST)
        faults.of(lambda: parts.files)
        faults.refuse()
        image = None if parts.own_program else parts.image
        # The first key that was named: by it the run asks for a completion in the end.
        _, asks_with = key_pair(parts.api_keys(facts.host)[0])
        wanted = StackRequest(
            workload=parts.workload,
            path=target.request.path,
            runtime=target.runtime,
            image=image,
            files=parts.files,
            keys=parts.key_lines(facts.host),
            listen=parts.listen,
            tls=self.options.tls,
            plain_http=self.options.plain_http,
            allowed=allow if target.peers is None else target.peers or None,
            engine_wheels=wheels,
            nvcomp=nvcomp,
        )
        with usage_errors():
            found = stack(target.facts, wanted)
            target = target.published(port, allow) if beyond else target
            if watchers := desktop_watchers(parts, target):
                target = replace(target, request=target.request.with_settings(watchers=cast(Json, watchers)))
        joined, told = self._joined(target, found, allow)
        offline = Offline({image.pinned: image.saved}, {}) if image and image.saved else None
        return joined.with_options(asks_with=asks_with, offline=offline), told

    def _join_cluster(self, facts: HostFacts, request: PathRequest) -> tuple[PathRequest, AnyStack]:
        target, faults = node_target(facts, request), Faults()
        check_images(self.parts, faults)
        self.parts.check_allowed(facts, faults)
        faults.of(lambda: self.parts.files)
        faults.refuse()
        options, cluster = self.cluster, cluster_request(self.parts, facts, target.request.path)
        assets = self.parts.once(
            "k3s",
            lambda: k3s_release.k3s_release(options.k3s_version, images=options.k3s_images, mirror=options.k3s_mirror),
        )
        paths = {k3s_release.PROGRAM: PROGRAM, k3s_release.IMAGES: f"{_IMAGES}/{k3s_release.IMAGES}"}
        wanted = NodeRequest(
            node=slug(facts.host),
            release=options.k3s_version,
            files=tuple(NodeFile(paths[each.name], each.source, each.sha256, each.bytes) for each in assets),
            cluster=cluster,
            join=Join(options.join, options.join_token) if options.join and options.join_token else None,
            wsl=target.network,
            newer=newer_line("k3s", options.k3s_version),
        )
        with usage_errors():
            found = cluster_stack(target.facts, wanted)
        return self._joined(target, found, cluster.allow)

    def _joined(self, target: StackTarget, found: AnyStack, allow: Sequence[str]) -> tuple[PathRequest, AnyStack]:
        """Add the entries to the playbook, and a note on networks that nobody named. allow: who reaches the endpoint
        beyond its machine.
        """
        book = target.request.playbook
        more = [
            PlaybookResource.model_validate({**cast("dict[str, Json]", each), "for_each": target.waits_for})
            for each in found.entries
        ]
        joined = Playbook(
            schema=book.schema_, path=book.path, settings=book.settings, resources=[*book.resources, *more]
        )
        if allow and not self.options.allow:
            said = f"the endpoint is open to {', '.join(allow)}, the host's own networks; others take --allow NETWORK"
            found = replace(found, notes=(*found.notes, said))
        return target.request.with_playbook(joined), found


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
    url = wanted.url
    if url is None:  # the gateway's address on Windows's own loopback, if WSL makes it reachable there
        address, port = parts.listen
        if mode == "bridged" or parts.options.tls or address not in (*LOOPBACK, *_ANYWHERE):
            raise click.UsageError(
                "at which address does Windows reach the gateway? Add it to availability.yield_to of the workload: "
                f"url: https://NAME:{port}, by the name in its certificate"
            )
        url = f"http://127.0.0.1:{port}"
    found: list[dict[str, Json]] = []
    for account in wanted.accounts:
        name, reference = yield_key_of(account, parts.options.yield_key)
        digest = parse_key(parts.key_line("yield", f"{name}={reference}")).sha256
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


# ---- in a cluster

_IMAGES = "/var/lib/rancher/k3s/agent/images"
_NOT_THERE = ("listen", "certificate", "certificate_key", "engine_program", "engine_archive", "engine_lock")


def check_cluster_options(parts: StackParts, faults: Faults) -> None:
    """Find options that do not fit the workload."""
    workload, options = faults.of(lambda: parts.written), parts.cluster
    if workload is None:
        return
    if workload.exposure is not Exposure.LOOPBACK and not (options.tls_secret or parts.options.plain_http):
        faults.add(
            f"exposure: {workload.exposure} takes --tls-secret NAME, or --plain-http: a certificate that the "
            "cluster has as a Secret, or others can read keys and prompts"
        )
    if workload.video is not None and options.ffmpeg_image is None:
        faults.add(
            "the workload has video: name an image with FFmpeg and NVENC, as --ffmpeg-image "
            "registry.example.com/ffmpeg@sha256:…"
        )
    if len({model.token.written for model in workload.models if model.token}) > 1:
        faults.add("models name different tokens, and a cluster has one Secret for them: give them one")
    if parts.options.metrics_key and options.keys_secret and not parts.options.api_key:
        faults.add("--metrics-key goes with --api-key; with --keys-secret its line belongs into that Secret")


def cluster_request(parts: StackParts, facts: HostFacts, path: str | None) -> ClusterRequest:
    """Make the request, asking the hub and the registries. Raises as they do."""
    workload, options = parts.workload, parts.cluster
    keys = () if options.keys_secret and not parts.options.api_key else parts.key_lines(facts.host)
    return ClusterRequest(
        workload=workload,
        image=parts.image.pinned,
        files=parts.files,
        keys=keys,
        keys_secret=options.keys_secret or KEYS,
        tls_secret=options.tls_secret,
        allow=parts.allowed(facts) if workload.exposure is Exposure.LAN else parts.options.allow,
        device_plugin=None if options.no_device_plugin else _image(options.device_plugin),
        video_image=_image(options.ffmpeg_image) if options.ffmpeg_image and workload.video else None,
        namespace=options.namespace,
        storage_class=options.storage_class,
        ray=options.ray,
        path=path,
    )


def check_images(parts: StackParts, faults: Faults) -> None:
    """Ask registries for the digests that nobody gave, and collect those that cannot be resolved."""
    options = parts.cluster
    faults.of(lambda: parts.image, BY_DIGEST)
    if options.ffmpeg_image:
        faults.of(partial(_image, options.ffmpeg_image))
    if not options.no_device_plugin:
        also = "Here: --device-plugin IMAGE@sha256:…, or --no-device-plugin where the cluster has one"
        faults.of(lambda: _image(options.device_plugin), also)


def _image(name: str) -> str:
    return pin_engine_image(ImageName.parse(name)).pinned


def check_node_options(parts: StackParts, faults: Faults) -> None:
    """Find faults of the options of a node, before anything is asked."""
    workload, options = faults.of(lambda: parts.written), parts.cluster
    if workload is None:
        return
    if workload.deploy is not Deploy.KUBERNETES:
        for name in options.said:
            faults.add(f"--{name.replace('_', '-')} is for a workload with deploy: kubernetes")
        return
    for name in _NOT_THERE:
        if getattr(parts.options, name):
            faults.add(f"--{name.replace('_', '-')} is not for a workload with deploy: kubernetes")
    if (options.join is None) is not (options.join_token is None):
        faults.add("--join and --join-token go together: --join https://10.0.0.5:6443 --join-token env:K3S_TOKEN")
    if options.join is not None and not options.join.startswith("https://"):
        faults.add("--join: the address of an API begins with https://, as https://10.0.0.5:6443")
    faults.of(lambda: secret_reference(options.join_token, "'--join-token'"))
    check_cluster_options(parts, faults)
