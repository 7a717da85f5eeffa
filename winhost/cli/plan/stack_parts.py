"""The parts of a workload that options name: its image, keys, address and certificate."""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import cached_property, partial
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from packaging.version import InvalidVersion, Version

from winhost.cli.errors import Faults, os_errors, usage_errors
from winhost.cli.output import say
from winhost.cli.plan.stack_options import ClusterOptions, StackOptions, key_pair
from winhost.cli.shells import line_to_see, own_shell
from winhost.core.answers import MissingFact
from winhost.core.dataclass import dataclass
from winhost.hub.repositories import HUB, NotListed, folder_files, model_files
from winhost.hub.wheel_index import PYPI, TargetPython, locked_packages, wheels_of
from winhost.images.image_archive import SavedImage, read_saved
from winhost.images.image_registry import PLATFORM, ImageName, resolve
from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.plan import OfflineImage
from winhost.model.workload import Deploy, Exposure, LoadFormat, Model, Workload, is_folder
from winhost.model.workloadfile import load_workload
from winhost.paths.linux import target_python
from winhost.paths.wsl2 import host_networks
from winhost.resources.host import HostFacts
from winhost.serving.entries import PythonWheels
from winhost.serving.gateway_entries import key_line
from winhost.serving.packed_weights import NVCOMP, NVCOMP_LOCK
from winhost.serving.stack import EngineImage, revision_of
from winhost.serving.vllm_options import seen_versions

if TYPE_CHECKING:
    from winhost.engine.keys import ApiKey
    from winhost.model.secrets import Secret

BY_DIGEST = "Here: --digest sha256:… names it, of linux/amd64"
IMAGE = "docker.io/vllm/vllm-openai"
_CONTAINERS = "/srv/winhost-offline/containers"
_VERSION = r"\d+\.\d+\.\d+[a-z0-9.]*"


@dataclass
class StackParts:
    """Asks each hub and registry once, and reads each key once. in_cluster: the workload is rendered for a cluster;
    pending: the folder for a new API key until the plan is agreed to, None to keep it at once.
    """

    options: StackOptions
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    in_cluster: bool = False
    pending: Path | None = None
    _asked: dict[str, Any] = field(default_factory=dict)
    made_keys: "dict[str, ApiKey]" = field(default_factory=dict)  # by host

    def once(self, name: str, ask: Callable[[], Any]) -> Any:
        if name not in self._asked:
            self._asked[name] = ask()
        return self._asked[name]

    # ---- the workload, and the version of vLLM

    @cached_property
    def written(self) -> Workload:
        """The workload of the file. Raises UsageError: FileFaults."""
        file = self.options.workload
        assert file is not None
        return load_workload(file, in_cluster=self.in_cluster)

    @cached_property
    def workload(self) -> Workload:
        """The workload with the version of vLLM in its image: as stated, or from the tag, or the newest known one."""
        found, named, said = self.written, self._named, self._said_version
        tagged = re.fullmatch(f"v?({_VERSION})", named.tag or "") if named else None
        told = {
            "the workload states": found.versions.get("vllm"),
            "--engine-version says": said,
            "the tag of the image says": Version(tagged[1]) if tagged else None,
            "the lock brings": self._locked,
        }
        known = {who: version for who, version in told.items() if version}
        if len({*known.values()}) > 1:
            listed = ", and ".join(f"{who} {version}" for who, version in known.items())
            raise click.UsageError(f"of which version is vLLM? {listed}")
        if not known and (named or self.own_program):
            newest = seen_versions()[-1]
            raise click.UsageError(f"the version of vLLM is not known: say it, for example --engine-version {newest}")
        version = next(iter(known.values()), None) or seen_versions()[-1]
        return replace(found, versions={**found.versions, "vllm": version})

    @property
    def _said_version(self) -> Version | None:
        if self.options.engine_version is None:
            return None
        try:
            return Version(self.options.engine_version)
        except InvalidVersion:
            raise click.BadParameter(
                f"{visible(self.options.engine_version)} is no version, such as {seen_versions()[-1]}",
                param_hint="'--engine-version'",
            ) from None

    @property
    def _locked(self) -> Version | None:
        """The version in a lock. `check` reports a lock that cannot be read."""
        with suppress(WinhostError):
            if found := re.search(f"^vllm==({_VERSION})", self._lock or "", re.MULTILINE):
                return Version(found[1])
        return None

    @cached_property
    def _lock(self) -> str | None:
        """The text of --engine-lock. Raises UsageError."""
        file = self.options.engine_lock
        try:
            with os_errors():
                return file.read_text("utf-8") if file else None
        except ValueError:
            raise UsageError("LockUnreadable", what=f"{visible(str(file))} is no text in UTF-8", hint="") from None

    # ---- what is installed

    @property
    def own_program(self) -> bool:
        """Tell whether vLLM is a program of the machine itself, and no container. Raises click's UsageError."""
        if self.options.engine_lock and (self.options.engine_program or self.options.engine_image):
            other = "program" if self.options.engine_program else "image"
            raise click.UsageError(f"--engine-{other} names vLLM's {other}, and --engine-lock brings one: choose")
        if self.options.engine_program and self.options.engine_image:
            raise click.UsageError("--engine-program names a program, and --engine-image a container: choose")
        return bool(self.options.engine_program or self.options.engine_lock)

    @cached_property
    def image(self) -> EngineImage:
        """Raises UsageError (NoImageName, SavedUnusable), WinhostError (NotResolved)."""
        self.check_image()
        saved, name = self._saved, self._name
        if saved is None:
            return pinned_image(name)
        file = OfflineImage(f"{_CONTAINERS}/{self._archive.name}", saved.sha256, str(saved.name))
        return EngineImage(name.at(saved.digest or str(name.digest)).pinned, saved.bytes, file)

    def check_image(self) -> None:
        """Check what can be checked before a registry is asked. Raises as `image` does."""
        saved, name = self._saved, self._name
        if saved and saved.digest and name.digest not in (None, saved.digest):
            raise click.UsageError(f"--digest is {name.digest}, and the archive has {saved.digest}")
        if saved and not (saved.digest or name.digest):
            raise click.UsageError(
                "the archive has no digest, as those of docker save before Docker 25: write it anew, or name the "
                "registry's with --digest"
            )

    @property
    def _name(self) -> ImageName:
        name = self._named or ImageName.parse(f"{IMAGE}:v{self.workload.versions['vllm']}")
        return ImageName.parse(str(name.at(self.options.digest))) if self.options.digest else name

    @property
    def _named(self) -> ImageName | None:
        if self._saved:
            return self._saved.name
        return ImageName.parse(self.options.engine_image) if self.options.engine_image else None

    @cached_property
    def _saved(self) -> SavedImage | None:
        if self.options.engine_archive is None:
            return None
        if self.options.engine_image or self.own_program:
            raise click.UsageError("--engine-archive holds the image: name no other")
        return read_saved(self._archive, PLATFORM)

    @property
    def _archive(self) -> Path:
        """The archive, whose name becomes a part of a path on the Linux that serves. Raises BadParameter."""
        path = Path(self.options.engine_archive or "")
        if not re.fullmatch(r"[A-Za-z0-9_+@-][A-Za-z0-9._+@-]*", path.name):
            raise click.BadParameter("has a name with other than letters and digits", param_hint="'--engine-archive'")
        return path

    @property
    def files(self) -> dict[str, Any]:
        """The desired `ModelFiles` by model, as the hub lists them. In what is rendered for a cluster they have no list
        where the hub cannot be reached. Raises UsageError (NoRevision), and as the hub.
        """
        return {each.name: self.once(f"model {each.name}", partial(self._files, each)) for each in self.workload.models}

    def _files(self, model: Model) -> dict[str, Any]:
        if is_folder(model.id) and self.workload.deploy is not Deploy.KUBERNETES:
            if model.load_format is LoadFormat.PACKED:
                _refuse_packed(model)
            return folder_files(model.id)
        reference, hub = model.token.written if model.token else None, (self.options.hub or HUB).rstrip("/")
        revision = revision_of(model)
        try:
            return model_files(model.id, revision, reference, hub)
        except NotListed as error:
            if error.reached or not self.in_cluster:
                raise
            return {"source": f"{hub}/{model.id}", "revision": revision, "files": None, "token": reference}

    def engine_wheels(self, facts: HostFacts) -> PythonWheels | None:
        """The engine's wheels; None where vLLM comes otherwise.

        Raises UsageError (WhichPython, NotLocked), WinhostError (NoWheel).
        """
        return self._wheels(self._lock, str(self.options.engine_lock), facts) if self._lock is not None else None

    def nvcomp_wheels(self, facts: HostFacts) -> PythonWheels | None:
        """nvCOMP's wheels; None where no model is packed. Raises as `engine_wheels` does."""
        packed = any(each.load_format is LoadFormat.PACKED for each in self.workload.models)
        return self._wheels(NVCOMP_LOCK, NVCOMP, facts) if packed else None

    def _wheels(self, lock: str, where: str, facts: HostFacts) -> PythonWheels:
        found = target_python(facts, self.options.python)
        if found is None:
            here = visible(facts.host)
            raise UsageError(
                "WhichPython",
                what=f"which Python the Linux of {here} has is not known, so no wheel can be chosen for it",
                hint="Say it, as python3 --version does there: --python 3.12",
                host=facts.host,
            )
        there = TargetPython(*found)
        packages = locked_packages(lock, where, there.version, there.machine)
        index = self.options.index or PYPI
        wheels = self.once(f"wheels {where} {there}", lambda: wheels_of(packages, there, index))
        return PythonWheels(there.version, wheels[0].server, tuple(each.line for each in wheels))

    # ---- the endpoint

    @property
    def listen(self) -> tuple[str, int]:
        """The address and port of the endpoint, by default for the workload's exposure. Raises as `listening` does."""
        return self.options.listening(
            "127.0.0.1:8443" if self.written.exposure is Exposure.LOOPBACK else "0.0.0.0:8443"
        )

    def allowed(self, facts: HostFacts | None) -> tuple[str, ...]:
        """The networks that reach the endpoint: those that were named, else those that a Windows host is in itself.
        facts: None before the host was read.

        Raises click's UsageError where none is known.
        """
        found = self.options.allow
        if not found and facts is not None and not facts.is_linux:
            with suppress(MissingFact):
                found = host_networks(facts)
        if not found:
            raise click.UsageError("who reaches the endpoint? Name the networks, as --allow 10.20.0.0/16")
        return found

    # ---- its keys

    def api_keys(self, host: str) -> tuple[str, ...]:
        """The API keys as NAME=REF: those that were named, else the one that winhost keeps for a host, of which
        `show_made_keys` tells. Raises UsageError: NoStore, NotPrivate, KeyLost.
        """
        if self.options.api_key:
            return self.options.api_key
        from winhost.engine.keys import api_key  # with what keeps them, which a named key does without

        if host not in self.made_keys:
            self.made_keys[host] = api_key(host, pending=self.pending)
        found = self.made_keys[host]
        return (f"{found.name}={found.key.written}",)

    def key_lines(self, host: str) -> tuple[str, ...]:
        """The lines of the gateway's file. Raises as `api_keys` does, UsageError (SecretUnreadable), click's."""
        named = {**self.options.keys, "api": self.api_keys(host)}
        return tuple(self.key_line(kind, each) for kind, texts in named.items() for each in texts)

    def key_line(self, kind: str, text: str) -> str:
        """The line of the gateway's file for a key that --KIND-key names. Raises as `key_lines` does."""
        with usage_errors(f"'--{kind}-key'"):
            found: str = self.once(f"{kind} key {text}", lambda: key_line(kind, *key_pair(text)))
        return found

    # ---- checks

    def check(self, faults: Faults) -> None:
        """Find faults of the file and the options, before any hub, registry or host is asked."""
        workload = faults.of(lambda: self.workload) or faults.of(lambda: self.written)
        for model in workload.models if workload else ():
            if not is_folder(model.id):  # its files are pinned by their hashes, where it may be one
                faults.of(partial(revision_of, model))
        if not faults.of(lambda: self.own_program) or self.options.engine_archive:
            faults.of(self.check_image)
        for kind, named in self.options.keys.items():
            for each in named:
                faults.of(partial(self.key_line, kind, each))
        faults.of(self._check_networks)
        faults.of(lambda: self._lock)
        if workload:
            self._check_yield(workload, faults)

    def _check_networks(self) -> None:
        try:
            for each in self.options.allow:
                ip_network(each)
        except ValueError as wrong:
            raise click.BadParameter(f"{visible(str(wrong))}: write 10.20.0.0/16", param_hint="'--allow'") from None

    def _check_yield(self, workload: Workload, faults: Faults) -> None:
        wanted = workload.availability.yield_to
        if self.options.yield_key and wanted is None:
            faults.add("--yield-key is for a workload with availability.yield_to, and this one has none")
        for account in wanted.accounts if wanted else ():
            faults.of(partial(yield_key_of, account, self.options.yield_key))

    def check_allowed(self, facts: HostFacts | None, faults: Faults) -> None:
        """Check that it is known who reaches an endpoint of the local network."""
        workload = faults.of(lambda: self.written)
        if workload and workload.exposure is Exposure.LAN:
            faults.of(lambda: self.allowed(facts))


def _refuse_packed(model: Model) -> None:
    from winhost_weights.container import BadContainer, is_packed  # few models are packed

    for path in sorted(Path(model.id).expanduser().glob("*.safetensors")):
        with suppress(BadContainer, OSError):  # what cannot be read is told where it is hashed
            if is_packed(path):
                raise click.UsageError(
                    f"{visible(path.name)} of {visible(model.name)} is packed already, and a plan packs the original: "
                    "winhost weights unpack writes it"
                )


def show_made_keys(keys: "Mapping[str, ApiKey]", shape: str) -> None:
    """Print on stderr, at the end, where each key is, and on a terminal also a new key."""
    shell = own_shell()
    for host, each in keys.items():
        whose = f"API key of {each.name} for {host}"
        if each.made and shape in ("table", "wide"):
            show_new_key(f"{whose}, new", each.made)
        say(f"{whose}: {each.key}. To see it:", hang=2, err=True)
        click.echo(f"  {visible(str(line_to_see(each.key, shell)))}", err=True)  # in one line, to be copied


def show_new_key(whose: str, made: "Secret") -> None:
    """Print a new key, on a terminal only."""
    if sys.stderr.isatty():
        say(f"{whose}:", err=True)
        click.echo(f"  {made.reveal()}", err=True)


def pinned_image(name: ImageName) -> EngineImage:
    """Pin an image by its digest. Asks the registry if the name has none."""
    if name.digest:
        return EngineImage(ImageName.parse(str(name)).pinned)
    found = resolve(str(name))
    return EngineImage(found.pinned, found.size_bytes)


def yield_key_of(account: str, keys: Sequence[str]) -> tuple[str, str]:
    """Choose the yield key with the account's name, or the only one. Raises click's UsageError."""
    pairs = dict(map(key_pair, keys))
    own = next((name for name in pairs if name.casefold() == account.casefold()), None)
    if own is None and len(pairs) == 1:
        (own,) = pairs
    if own is None:
        raise click.UsageError(
            f"availability.yield_to.accounts wants a watcher for {visible(account)}, and "
            + ("none of several yield keys has that name" if pairs else "no yield key is named")
            + ": --yield-key desk=env:DESK_KEY"
        )
    return own, pairs[own]
