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
from winhost.cli.shells import command_to_show_key, detect_shell
from winhost.core.answers import MissingFact
from winhost.core.dataclass import dataclass
from winhost.hub.repositories import HUB, ListingError, folder_files, model_files
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

DIGEST_HINT = "Here: --digest sha256:… names it, of linux/amd64"
IMAGE = "docker.io/vllm/vllm-openai"
_CONTAINERS = "/srv/winhost-offline/containers"
_VERSION = r"\d+\.\d+\.\d+[a-z0-9.]*"


@dataclass
class StackParts:
    """The parts of a stack. Asks each hub and registry once, and reads each key once.

    in_cluster: the workload is rendered for a cluster; pending: the folder for a new API key until the user agrees to
    the plan, None to keep it at once.
    """

    options: StackOptions
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    in_cluster: bool = False
    pending: Path | None = None
    _results: dict[str, Any] = field(default_factory=dict)
    made_keys: "dict[str, ApiKey]" = field(default_factory=dict)  # by host

    def once(self, name: str, fetch: Callable[[], Any]) -> Any:
        """Return the result of a call. name: what identifies the call, which is made only once."""
        if name not in self._results:
            self._results[name] = fetch()
        return self._results[name]

    # ---- the workload, and the version of vLLM

    @cached_property
    def loaded_workload(self) -> Workload:
        """The workload as its file states it. Raises UsageError: FileFaults."""
        file = self.options.workload
        assert file is not None
        return load_workload(file, in_cluster=self.in_cluster)

    @cached_property
    def workload(self) -> Workload:
        """The workload with the version of vLLM: as the workload, an option, the image's tag or the lock states it, or
        else the newest known one. Raises click's UsageError.
        """
        stated, image, option_version = self.loaded_workload, self._named_image, self._stated_version
        tagged = re.fullmatch(f"v?({_VERSION})", image.tag or "") if image else None
        sources = {
            "the workload states": stated.versions.get("vllm"),
            "--engine-version says": option_version,
            "the tag of the image says": Version(tagged[1]) if tagged else None,
            "the lock brings": self._locked_version,
        }
        versions = {source: version for source, version in sources.items() if version}
        if len({*versions.values()}) > 1:
            listed = ", and ".join(f"{source} {version}" for source, version in versions.items())
            raise click.UsageError(f"the version of vLLM is not clear: {listed}")
        if not versions and (image or self.own_program):
            newest = seen_versions()[-1]
            raise click.UsageError(f"the version of vLLM is not known: name it, for example --engine-version {newest}")
        version = next(iter(versions.values()), None) or seen_versions()[-1]
        return replace(stated, versions={**stated.versions, "vllm": version})

    @property
    def _stated_version(self) -> Version | None:
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
    def _locked_version(self) -> Version | None:
        """The version of vLLM in the lock. `check` reports a lock that cannot be read."""
        with suppress(WinhostError):
            if found := re.search(f"^vllm==({_VERSION})", self._lock_text or "", re.MULTILINE):
                return Version(found[1])
        return None

    @cached_property
    def _lock_text(self) -> str | None:
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
        """Tell whether vLLM runs as a program of the machine itself, without a container. Raises click's UsageError."""
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
        saved, name = self._saved_image, self._image_name
        if saved is None:
            return pin_engine_image(name)
        file = OfflineImage(f"{_CONTAINERS}/{self._archive_path.name}", saved.sha256, str(saved.name))
        return EngineImage(name.with_digest(saved.digest or str(name.digest)).pinned, saved.bytes, file)

    def check_image(self) -> None:
        """Check what can be checked before a registry is asked. Raises as `image` does."""
        saved, name = self._saved_image, self._image_name
        if saved and saved.digest and name.digest not in (None, saved.digest):
            raise click.UsageError(f"--digest is {name.digest}, and the archive has {saved.digest}")
        if saved and not (saved.digest or name.digest):
            raise click.UsageError(
                "the archive has no digest, like those of docker save before Docker 25: write it again, or name the "
                "registry's digest with --digest"
            )

    @property
    def _image_name(self) -> ImageName:
        name = self._named_image or ImageName.parse(f"{IMAGE}:v{self.workload.versions['vllm']}")
        return ImageName.parse(str(name.with_digest(self.options.digest))) if self.options.digest else name

    @property
    def _named_image(self) -> ImageName | None:
        if self._saved_image:
            return self._saved_image.name
        return ImageName.parse(self.options.engine_image) if self.options.engine_image else None

    @cached_property
    def _saved_image(self) -> SavedImage | None:
        if self.options.engine_archive is None:
            return None
        if self.options.engine_image or self.own_program:
            raise click.UsageError("--engine-archive holds the image: name no other")
        return read_saved(self._archive_path, PLATFORM)

    @property
    def _archive_path(self) -> Path:
        """The archive. Raises BadParameter if its name cannot be part of a path on the Linux that serves."""
        path = Path(self.options.engine_archive or "")
        if not re.fullmatch(r"[A-Za-z0-9_+@-][A-Za-z0-9._+@-]*", path.name):
            raise click.BadParameter("has a name with other than letters and digits", param_hint="'--engine-archive'")
        return path

    @property
    def files(self) -> dict[str, Any]:
        """The desired `ModelFiles` by model, as the hub lists them. If the hub cannot be reached, those of a rendered
        cluster have no list of files. Raises UsageError (NoRevision), and as the hub does.
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
        except ListingError as error:
            if error.reached or not self.in_cluster:
                raise
            return {"source": f"{hub}/{model.id}", "revision": revision, "files": None, "token": reference}

    def engine_wheels(self, facts: HostFacts) -> PythonWheels | None:
        """Return the engine's wheels; None if vLLM is not installed from a lock.

        Raises UsageError (WhichPython, NotLocked), WinhostError (NoWheel).
        """
        return (
            self._wheels(self._lock_text, str(self.options.engine_lock), facts) if self._lock_text is not None else None
        )

    def nvcomp_wheels(self, facts: HostFacts) -> PythonWheels | None:
        """Return nvCOMP's wheels; None if no model is packed. Raises as `engine_wheels` does."""
        packed = any(each.load_format is LoadFormat.PACKED for each in self.workload.models)
        return self._wheels(NVCOMP_LOCK, NVCOMP, facts) if packed else None

    def _wheels(self, lock: str, lock_name: str, facts: HostFacts) -> PythonWheels:
        python = target_python(facts, self.options.python)
        if python is None:
            host_name = visible(facts.host)
            raise UsageError(
                "WhichPython",
                what=f"which Python the Linux of {host_name} has is not known, so no wheel can be chosen for it",
                hint="Say it, as python3 --version does there: --python 3.12",
                host=facts.host,
            )
        target = TargetPython(*python)
        packages = locked_packages(lock, lock_name, target.version, target.machine)
        index = self.options.index or PYPI
        wheels = self.once(f"wheels {lock_name} {target}", lambda: wheels_of(packages, target, index))
        return PythonWheels(target.version, wheels[0].server, tuple(each.line for each in wheels))

    # ---- the endpoint

    @property
    def listen(self) -> tuple[str, int]:
        """The address and port of the endpoint, by default for the workload's exposure. Raises as `listening` does."""
        return self.options.listening(
            "127.0.0.1:8443" if self.loaded_workload.exposure is Exposure.LOOPBACK else "0.0.0.0:8443"
        )

    def allowed(self, facts: HostFacts | None) -> tuple[str, ...]:
        """Return the networks that may reach the endpoint: those of --allow, else those of a Windows host itself.
        facts: None before the host is read. Raises click's UsageError if no network is known.
        """
        allowed_networks = self.options.allow
        if not allowed_networks and facts is not None and not facts.is_linux:
            with suppress(MissingFact):
                allowed_networks = host_networks(facts)
        if not allowed_networks:
            raise click.UsageError(
                "which networks may reach the endpoint is not known: name them, as --allow 10.20.0.0/16"
            )
        return allowed_networks

    # ---- its keys

    def api_keys(self, host: str) -> tuple[str, ...]:
        """Return the API keys as NAME=REF: those of --api-key, else the one that winhost keeps for a host, which
        `show_made_keys` shows. Raises UsageError: NoStore, NotPrivate, KeyLost.
        """
        if self.options.api_key:
            return self.options.api_key
        from winhost.engine.keys import api_key  # loads the store of keys, which a named key does not need

        if host not in self.made_keys:
            self.made_keys[host] = api_key(host, pending=self.pending)
        kept_key = self.made_keys[host]
        return (f"{kept_key.name}={kept_key.key.written}",)

    def key_lines(self, host: str) -> tuple[str, ...]:
        """Return the lines of the gateway's file `keys`. Raises as `api_keys` does, UsageError (SecretUnreadable),
        click's.
        """
        keys = {**self.options.keys, "api": self.api_keys(host)}
        return tuple(self.key_line(kind, each) for kind, pairs in keys.items() for each in pairs)

    def key_line(self, kind: str, text: str) -> str:
        """Return the line of that file for a key of the option --KIND-key. Raises as `key_lines` does."""
        with usage_errors(f"'--{kind}-key'"):
            line: str = self.once(f"{kind} key {text}", lambda: key_line(kind, *key_pair(text)))
        return line

    # ---- checks

    def check(self, faults: Faults) -> None:
        """Add the faults of the workload and the options. Asks no hub, registry or host."""
        workload = faults.collect(lambda: self.workload) or faults.collect(lambda: self.loaded_workload)
        for model in workload.models if workload else ():
            if not is_folder(model.id):  # the files of a folder are pinned by their hashes
                faults.collect(partial(revision_of, model))
        if not faults.collect(lambda: self.own_program) or self.options.engine_archive:
            faults.collect(self.check_image)
        for kind, named in self.options.keys.items():
            for each in named:
                faults.collect(partial(self.key_line, kind, each))
        faults.collect(self._check_networks)
        faults.collect(lambda: self._lock_text)
        if workload:
            self._check_yield(workload, faults)

    def _check_networks(self) -> None:
        try:
            for each in self.options.allow:
                ip_network(each)
        except ValueError as error:
            raise click.BadParameter(f"{visible(str(error))}: write 10.20.0.0/16", param_hint="'--allow'") from None

    def _check_yield(self, workload: Workload, faults: Faults) -> None:
        yield_to = workload.availability.yield_to
        if self.options.yield_key and yield_to is None:
            faults.add("--yield-key is for a workload with availability.yield_to, and this one has none")
        for account in yield_to.accounts if yield_to else ():
            faults.collect(partial(yield_key_of, account, self.options.yield_key))

    def check_allowed(self, facts: HostFacts | None, faults: Faults) -> None:
        """Add a fault if no network is known that may reach an endpoint with exposure: lan."""
        workload = faults.collect(lambda: self.loaded_workload)
        if workload and workload.exposure is Exposure.LAN:
            faults.collect(lambda: self.allowed(facts))


def _refuse_packed(model: Model) -> None:
    from winhost_weights.container import BadContainer, is_packed  # few models are packed

    for path in sorted(Path(model.id).expanduser().glob("*.safetensors")):
        with suppress(BadContainer, OSError):  # `folder_files` reports a file that cannot be read
            if is_packed(path):
                raise click.UsageError(
                    f"{visible(path.name)} of {visible(model.name)} is packed already, and a plan packs the original: "
                    "winhost weights unpack writes it"
                )


def show_made_keys(keys: "Mapping[str, ApiKey]", shape: str) -> None:
    """Show on stderr where each key is, and on a terminal a new key itself."""
    shell = detect_shell()
    for host, each in keys.items():
        title = f"API key of {each.name} for {host}"
        if each.created and shape in ("table", "wide"):
            show_new_key(f"{title}, new", each.created)
        say(f"{title}: {each.key}. To see it:", hang=2, err=True)
        click.echo(f"  {visible(str(command_to_show_key(each.key, shell)))}", err=True)  # on one line, to be copied


def show_new_key(title: str, key: "Secret") -> None:
    """Print a new key on stderr if that is a terminal."""
    if sys.stderr.isatty():
        say(f"{title}:", err=True)
        click.echo(f"  {key.reveal()}", err=True)


def pin_engine_image(name: ImageName) -> EngineImage:
    """Pin an image by its digest. Asks the registry if the name has no digest."""
    if name.digest:
        return EngineImage(ImageName.parse(str(name)).pinned)
    resolved = resolve(str(name))
    return EngineImage(resolved.pinned, resolved.size_bytes)


def yield_key_of(account: str, keys: Sequence[str]) -> tuple[str, str]:
    """Return the name and reference of the yield key with the account's name, or of the only one. Raises click's
    UsageError.
    """
    pairs = dict(map(key_pair, keys))
    chosen = next((name for name in pairs if name.casefold() == account.casefold()), None)
    if chosen is None and len(pairs) == 1:
        (chosen,) = pairs
    if chosen is None:
        raise click.UsageError(
            f"availability.yield_to.accounts wants a watcher for {visible(account)}, and "
            + ("none of several yield keys has that name" if pairs else "no yield key is named")
            + ": --yield-key desk=env:DESK_KEY"
        )
    return chosen, pairs[chosen]
