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
from winhost.cli.plan.stack_parts import DIGEST_HINT, StackParts, pin_engine_image, show_made_keys, yield_key_of
from winhost.cluster.node import PROGRAM, ClusterStack, Join, NodeFile, NodeRequest, cluster_stack
from winhost.cluster.render_request import ClusterRequest
from winhost.compat.target import Target
from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.engine.stack_target import StackTarget, node_target, stack_target
from winhost.gateway.key_lines import parse_key
from winhost.images import k3s_release
from winhost.images.image_registry import ImageName
from winhost.knowledge.versions import describe_newer_line
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
    """Adds one workload to the plans of all hosts of a command. pending: as in `StackParts`."""

    options: StackOptions
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    pending: Path | None = None
    _built: dict[str, tuple[PathRequest, AnyStack]] = field(default_factory=dict)
    _targets: dict[str, StackTarget] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    @cached_property
    def parts(self) -> StackParts:
        return StackParts(self.options, self.cluster, pending=self.pending)

    @property
    def _in_cluster(self) -> bool:
        return self.parts.loaded_workload.deploy is Deploy.KUBERNETES

    def check(self, path: str | None = None) -> None:
        """Check the command line before any host is asked. Raises UsageError, click's."""
        faults = Faults()
        self.check_with(path, faults)
        faults.refuse()

    def check_with(self, path: str | None, faults: Faults) -> None:
        """Check as `check` does, and add the faults to those of the same command."""
        parts = self.parts
        parts.check(faults)
        check_node_options(parts, faults)
        if not faults.collect(lambda: self._in_cluster):
            faults.collect(lambda: parts.options.tls)
            faults.collect(lambda: parts.listen)
        if path == "linux":  # the networks of a Windows host are read from its facts
            parts.check_allowed(None, faults)

    def show_made_keys(self, shape: str) -> None:
        """Show where the API keys are that winhost keeps for these hosts."""
        show_made_keys(self.parts.made_keys, shape)

    def add_to_request(self, facts: HostFacts, request: PathRequest) -> tuple[PathRequest, AnyStack]:
        """Add what serves the workload to a request, once for each host. Raises as `stack`, the hub and the registry
        do.
        """
        with self._lock:
            if facts.host not in self._built:
                build = self._node_stack if self._in_cluster else self._host_stack
                self._built[facts.host] = build(facts, request)
            return self._built[facts.host]

    def serving_gpus(self, host: str) -> tuple[Gpu, ...]:
        """Return the GPUs that are assigned to engines, as the Linux that serves sees them; none in a cluster."""
        built, target = self._built.get(host), self._targets.get(host)
        if built is None or target is None or not isinstance(built[1], Stack):
            return ()
        gpus = Target(target.facts, target.request.path).gpus
        numbers = sorted({number for each in built[1].deployed.engines for number in each.gpus})
        return tuple(gpus[number] for number in numbers if number < len(gpus))

    def discard(self, host: str) -> None:
        """Forget the stack of this host, because its request changes."""
        self._built.pop(host, None)

    def _host_stack(self, facts: HostFacts, request: PathRequest) -> tuple[PathRequest, AnyStack]:
        parts, faults = self.parts, Faults()
        address, port = parts.listen
        beyond_machine = address not in LOOPBACK
        wheels, nvcomp = parts.engine_wheels(facts), parts.nvcomp_wheels(facts)
        program = f"{wheels.folder}/bin/vllm" if wheels else self.options.engine_program
        target = self._targets[facts.host] = stack_target(facts, request, program, beyond=beyond_machine)
        allow = (faults.collect(lambda: parts.allowed(facts)) or ()) if beyond_machine else ()
        if not parts.own_program:
            faults.collect(lambda: parts.image, DIGEST_HINT)
        faults.collect(lambda: parts.files)
        faults.refuse()
        image = None if parts.own_program else parts.image
        # At its end, the run asks for a completion with the first API key.
        _, asks_with = key_pair(parts.api_keys(facts.host)[0])
        stack_request = StackRequest(
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
            built_stack = stack(target.facts, stack_request)
            target = target.published(port, allow) if beyond_machine else target
            if watchers := desktop_watchers(parts, target):
                target = replace(target, request=target.request.with_settings(watchers=cast(Json, watchers)))
        extended_request, noted_stack = self._extend_playbook(target, built_stack, allow)
        offline = Offline({image.pinned: image.saved}, {}) if image and image.saved else None
        return extended_request.with_options(asks_with=asks_with, offline=offline), noted_stack

    def _node_stack(self, facts: HostFacts, request: PathRequest) -> tuple[PathRequest, AnyStack]:
        target, faults = node_target(facts, request), Faults()
        check_images(self.parts, faults)
        self.parts.check_allowed(facts, faults)
        faults.collect(lambda: self.parts.files)
        faults.refuse()
        options, cluster = self.cluster, cluster_request(self.parts, facts, target.request.path)
        assets = self.parts.once(
            "k3s",
            lambda: k3s_release.k3s_release(options.k3s_version, images=options.k3s_images, mirror=options.k3s_mirror),
        )
        paths = {k3s_release.PROGRAM: PROGRAM, k3s_release.IMAGES: f"{_IMAGES}/{k3s_release.IMAGES}"}
        node_request = NodeRequest(
            node=slug(facts.host),
            release=options.k3s_version,
            files=tuple(NodeFile(paths[each.name], each.source, each.sha256, each.bytes) for each in assets),
            cluster=cluster,
            join=Join(options.join, options.join_token) if options.join and options.join_token else None,
            wsl=target.network,
            newer=describe_newer_line("k3s", options.k3s_version),
        )
        with usage_errors():
            built_stack = cluster_stack(target.facts, node_request)
        return self._extend_playbook(target, built_stack, cluster.allow)

    def _extend_playbook(
        self, target: StackTarget, built_stack: AnyStack, allow: Sequence[str]
    ) -> tuple[PathRequest, AnyStack]:
        """Add the entries of the stack to the playbook, and a note about networks that the user did not name.

        allow: the networks that may reach the endpoint.
        """
        playbook = target.request.playbook
        entries = [
            PlaybookResource.model_validate({**cast("dict[str, Json]", each), "for_each": target.waits_for})
            for each in built_stack.entries
        ]
        extended = Playbook(
            schema=playbook.schema_,
            path=playbook.path,
            settings=playbook.settings,
            resources=[*playbook.resources, *entries],
        )
        if allow and not self.options.allow:
            note = f"the endpoint is open to {', '.join(allow)}, the host's own networks; others take --allow NETWORK"
            built_stack = replace(built_stack, notes=(*built_stack.notes, note))
        return target.request.with_playbook(extended), built_stack


_ALL_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound


def desktop_watchers(parts: StackParts, target: StackTarget) -> list[dict[str, Json]]:
    """Return the setting `watchers` of path wsl2. Raises click's UsageError, UsageError (SecretUnreadable),
    MissingFact.
    """
    yield_to = parts.workload.availability.yield_to
    if yield_to is None or not yield_to.accounts:
        return []
    networking_mode = target.networking_mode
    if networking_mode is None:
        raise click.UsageError(
            "availability.yield_to.accounts names people at the desktop of a Windows that shares its GPUs with WSL, "
            f"and path {target.request.path} has none: leave it out there"
        )
    url = yield_to.url
    if url is None:  # the gateway's address on Windows's own loopback, if WSL makes it reachable there
        address, port = parts.listen
        if networking_mode == "bridged" or parts.options.tls or address not in (*LOOPBACK, *_ALL_ADDRESSES):
            raise click.UsageError(
                "at which address does Windows reach the gateway? Add it to availability.yield_to of the workload: "
                f"url: https://NAME:{port}, by the name in its certificate"
            )
        url = f"http://127.0.0.1:{port}"
    watchers: list[dict[str, Json]] = []
    for account in yield_to.accounts:
        name, reference = yield_key_of(account, parts.options.yield_key)
        digest = parse_key(parts.key_line("yield", f"{name}={reference}")).sha256
        watchers.append(
            {"account": account, "settings": settings_text(yield_to, url), "key": reference, "digest": digest}
        )
    return watchers


def settings_text(yield_to: YieldTo, url: str) -> str:
    return watcher_settings(
        url=url,
        programs=yield_to.programs,
        full_screen=yield_to.full_screen,
        unlocked=yield_to.unlocked,
        gpu_memory=yield_to.gpu_memory,
    )


# ---- in a cluster

_IMAGES = "/var/lib/rancher/k3s/agent/images"
_NO_CLUSTER_OPTIONS = ("listen", "certificate", "certificate_key", "engine_program", "engine_archive", "engine_lock")


def check_cluster_options(parts: StackParts, faults: Faults) -> None:
    """Add a fault for each option that does not fit the workload."""
    workload, options = faults.collect(lambda: parts.loaded_workload), parts.cluster
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
        faults.add("--metrics-key needs --api-key; with --keys-secret, add its line to that Secret")


def cluster_request(parts: StackParts, facts: HostFacts, path: str | None) -> ClusterRequest:
    """Return the request for manifests. Asks the hub and the registries, and raises as they do."""
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
    """Ask registries for the digests that the options do not name, and add a fault for each that cannot be resolved."""
    options = parts.cluster
    faults.collect(lambda: parts.image, DIGEST_HINT)
    if options.ffmpeg_image:
        faults.collect(partial(_image, options.ffmpeg_image))
    if not options.no_device_plugin:
        hint = "Here: --device-plugin IMAGE@sha256:…, or --no-device-plugin where the cluster has one"
        faults.collect(lambda: _image(options.device_plugin), hint)


def _image(name: str) -> str:
    return pin_engine_image(ImageName.parse(name)).pinned


def check_node_options(parts: StackParts, faults: Faults) -> None:
    """Add the faults of the options for a node. Asks no server."""
    workload, options = faults.collect(lambda: parts.loaded_workload), parts.cluster
    if workload is None:
        return
    if workload.deploy is not Deploy.KUBERNETES:
        for name in options.changed_fields:
            faults.add(f"--{name.replace('_', '-')} is for a workload with deploy: kubernetes")
        return
    for name in _NO_CLUSTER_OPTIONS:
        if getattr(parts.options, name):
            faults.add(f"--{name.replace('_', '-')} is not for a workload with deploy: kubernetes")
    if (options.join is None) is not (options.join_token is None):
        faults.add("--join and --join-token go together: --join https://10.0.0.5:6443 --join-token env:K3S_TOKEN")
    if options.join is not None and not options.join.startswith("https://"):
        faults.add("--join: the address of an API begins with https://, as https://10.0.0.5:6443")
    faults.collect(lambda: secret_reference(options.join_token, "'--join-token'"))
    check_cluster_options(parts, faults)
