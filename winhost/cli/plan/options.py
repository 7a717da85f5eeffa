"""Turn the options of `winhost plan` into a request: the path, its playbook and its settings."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

from winhost.cli.errors import text_of, usage_errors
from winhost.cli.options import flag_of
from winhost.cli.plan.commands import DDA, PlanOptions
from winhost.cli.plan.stack_options import NEW_VM_OPTIONS, NewVmOptions
from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.model.errors import UsageError, visible
from winhost.model.files import sha256_of
from winhost.model.fleet import AnyHost, Host, load_fleet
from winhost.model.fleet_path import find_fleet
from winhost.model.path import check_path, path_of, variant_name
from winhost.model.plan import PlanRequest
from winhost.model.shipped import shipped
from winhost.model.yamlfile import MISSING, Mistake, dotted, kinds_at, value_of
from winhost.paths.playbook import PathRequest, Playbook, WrongPlaybook, expand_names, read_playbook
from winhost.paths.setting_values import HostSpecificValue, host_specific_values, refuse_private
from winhost.paths.vocabulary import VOCABULARIES

if TYPE_CHECKING:
    from winhost.engine.keys import SshKey
    from winhost.images.guest_disk import Tell

# Fields of a request, each with the option that fills it in.
_OPTIONS = {each.name: flag_of(each) for each in fields(PlanOptions) if each.metadata.get("section") == DDA}

# Each setting that is a public key, with the option that gives it.
KEY_SETTINGS: Mapping[str, str] = {
    "new_vm.guest.key": "--ssh-key",
    "access.key": "--set access.key",
    "system.key": "--set system.key",
}


@dataclass(frozen=True)
class AskedPlan(PlanOptions):
    """The options of `winhost plan` as a request to a path. host: how a command names the host, if there is only one
    host or file.
    """

    host: str = "HOST"
    _parsed: dict[str, PathRequest] = field(default_factory=dict, init=False, compare=False)

    @cached_property
    def path(self) -> str | None:
        """The named path, or else the one that other options belong to; None if nothing tells.

        Raises UsageError: UnknownPath, NotOfPath.
        """
        check_path(self.variant)
        named = {f"--path {self.variant}": frozenset([path_of(self.variant)])} if self.variant else {}
        named |= dict(self._belongings())
        possible: frozenset[str] | None = None
        for option, paths in named.items():
            if possible is not None and not possible & paths:
                belongs, others = sorted(paths), " or ".join(sorted(possible))
                raise UsageError(
                    "NotOfPath",
                    what=f"{visible(option)} belongs to {' or '.join(belongs)}, and not to {others}",
                    hint=f"Leave it out, or plan that path: --path {belongs[0]}",
                )
            possible = paths if possible is None else possible & paths
        return next(iter(possible)) if possible and len(possible) == 1 else None

    def request(self, path: str) -> PathRequest:
        """The request to a path, parsed once for all hosts.

        Raises UsageError (NoPlaybook, OtherPath), BadParameter, and what reading a playbook raises.
        """
        if path in self._parsed:
            return self._parsed[path]
        playbook, settings = self._playbook(path), (*self._of_variant(path), *self.settings)
        if self.vm and _chosen(playbook, settings).get("new_vm"):
            raise click.BadParameter("names a VM that is there; --new-vm makes one", param_hint="--vm")
        playbook = decided(playbook, settings, self.new_vm)
        power = self.power or "as-found"
        document = PlanRequest(
            path, playbook.content, self.vm, self.gpus, self.low, self.high, power, self.allow_unverified
        )
        return self._parsed.setdefault(path, PathRequest(document, playbook))

    def of_one_host(self, listen: str | None) -> Iterator[HostSpecificValue]:
        """The values that only one host can have. listen: the address of an endpoint. Raises as `request` does."""
        if self.vm:
            yield HostSpecificValue("VM", "--vm", self.vm)
        for gpu in self.gpus:
            if "PCIROOT(" in gpu.upper():
                yield HostSpecificValue("location", "--gpu", gpu)
        if listen and not listen.startswith(("127.", "[::1]", "localhost:", "0.0.0.0:", "[::]")):
            yield HostSpecificValue("listening address", "--listen", listen)
        if self.path:
            yield from host_specific_values(self.request(self.path).playbook.parsed_settings)

    def pinned(self, request: PathRequest, tell: "Tell") -> PathRequest:
        """Pin the image of a new VM, once for all hosts. Raises as `with_image` does."""
        from winhost.cli.plan.new_vm_image import with_image  # loads all that finds images

        self._parsed[request.path] = with_image(request, tell)
        return self._parsed[request.path]

    @cached_property
    def _edited(self) -> Playbook | None:
        """The user's own playbook."""
        return read_playbook(self.playbook) if self.playbook else None

    def _playbook(self, path: str) -> Playbook:
        check_path(path)
        known = {file.stem: file for file in shipped("playbooks").glob("*.yaml")}
        if path not in known:
            raise UsageError(
                "NoPlaybook",
                what=f"winhost evaluates {path} but cannot plan it yet; it can plan: {', '.join(sorted(known))}",
                hint="Ubuntu on whole disks: winhost install plan FACTS --disk GUID"
                if path == "bare-metal"
                else f"To see which of them this host supports: winhost assess {visible(self.host)}",
            )
        playbook = self._edited or read_playbook(known[path])
        if playbook.path != path:
            what = f"{visible(str(self.playbook))} is a playbook for {visible(playbook.path)}, not for {path}"
            raise UsageError("OtherPath", what=what, hint=f"Plan that path: --path {visible(playbook.path)}")
        return playbook

    def _belongings(self) -> Iterator[tuple[str, frozenset[str]]]:
        """Each option that was given, with the paths that it belongs to."""
        for name, option in _OPTIONS.items():
            if getattr(self, name) not in (None, ()):
                yield option, frozenset(path for path, words in VOCABULARIES.items() if name in words.options)
        for setting in self.settings:
            name = setting.partition("=")[0].partition(".")[0]
            paths = {path for path, words in VOCABULARIES.items() if name in words.settings.model_fields}
            if paths:  # else it is misspelt, and refused by name
                yield f"--set {name}", frozenset(paths)
        if self._edited is not None and self.variant is None:
            yield f"--playbook {self.playbook}", frozenset([self._edited.path])

    def _of_variant(self, path: str) -> Iterator[str]:
        """The setting `network=nat` of `--path wsl2/nat`. Raises BadParameter if a setting contradicts it."""
        variant = variant_name(self.variant) if self.variant else None
        if variant is None:
            return
        name = VOCABULARIES[path].variant
        for setting in self.settings:
            given, _, value = setting.partition("=")
            if given == name and value.strip() != variant:
                raise click.BadParameter(f"{visible(setting)} contradicts --path {self.variant}", param_hint="--set")
        yield f"{name}={variant}"


def default_request(path: str, host: str = "HOST") -> PathRequest:
    """The request of `winhost plan HOST --path PATH` without any other option."""
    return AskedPlan(path, host=host).request(path)


def read_settings(settings: tuple[str, ...]) -> tuple[str, ...]:
    """Read the settings of `--set`. The file of a public key is replaced by the key, and the present SHA-256 of a disk
    image that lies beside the plan is added. Raises BadParameter, which shows nothing of a key's file.
    """
    read = []
    for setting in settings:
        name, _, value = setting.partition("=")
        option = KEY_SETTINGS.get(name)
        if option and value.startswith("@"):
            with usage_errors(option):
                text = text_of(Path(value[1:]).expanduser(), option)
                refuse_private(text)
            read.append(f"{name}={text}")
        else:
            read.append(setting)
    source, given = "new_vm.vhdx.source=./", "new_vm.vhdx.sha256="
    names = [each[len(source) - 2 :] for each in read if each.startswith(source)]
    if not names or any(each.startswith(given) for each in read):
        return tuple(read)
    try:
        return (*read, given + sha256_of(Path(names[-1])))
    except OSError as error:
        why = f"{visible(names[-1])} cannot be read: {error.strerror}"
        raise click.BadParameter(why, param_hint="--vhdx, or --set new_vm.vhdx.source") from None


def decided(playbook: Playbook, settings: tuple[str, ...], new_vm: NewVmOptions | None = None) -> Playbook:
    """A playbook with settings of `--set`. new_vm: the options that gave some of them. Raises click's UsageError."""
    chosen = _chosen(playbook, settings)
    try:
        return playbook.with_settings(chosen) if settings else playbook
    except WrongPlaybook as wrong:
        if new_vm and new_vm.given:
            raise _fault_of_options(wrong.mistakes, new_vm) from None
        raise click.BadParameter(visible(str(wrong)), param_hint="--set") from None


def _fault_of_options(mistakes: Iterable[Mistake], new_vm: NewVmOptions) -> click.UsageError:
    options = {f"settings.new_vm.{setting}": option for setting, option in NEW_VM_OPTIONS.items()}
    missing: list[str] = []
    wrong: list[str] = []
    for setting, message in ((dotted(loc), message) for loc, message in mistakes):
        if message == MISSING and setting in options:
            missing.append(options[setting])
        else:
            wrong.append(f"{options.get(setting, setting)}: {message}")
    given = next(option for setting, option in NEW_VM_OPTIONS.items() if setting in new_vm.given)
    needs = [f"{given} also needs {', '.join(missing)}"] if missing else []
    return click.UsageError(visible("; ".join((*needs, *wrong))))


def _chosen(playbook: Playbook, settings: tuple[str, ...]) -> dict[str, Json]:
    """The settings of a playbook with those of `--set`, not yet checked. Raises BadParameter."""
    chosen = copy.deepcopy(playbook.settings)
    for setting in settings:
        _decide(playbook.path, chosen, setting)
        chosen = expand_names(playbook.path, chosen)
    return chosen


def _decide(path: str, settings: dict[str, Json], setting: str) -> None:
    """Write a setting such as `bridge.switch=lan` into the settings of a path, by the names between the dots."""
    with usage_errors("--set"):
        refuse_private(setting)  # before any message could show it
    name, equals, value = setting.partition("=")
    if not equals or not all(name.split(".")):
        raise click.BadParameter(f"{visible(setting)!r} is not NAME=VALUE", param_hint="--set")
    if not value.strip():  # such as $(cat FILE) of a file that does not exist
        raise click.BadParameter(
            f"{visible(name)} is given nothing; for none say {visible(name)}=null", param_hint="--set"
        )
    *groups, last = name.split(".")
    for group in groups:
        inner = settings.setdefault(group, {})
        if not isinstance(inner, dict):
            raise click.BadParameter(f"{visible(name)}: {group} is no group of settings", param_hint="--set")
        settings = inner
    # The value is YAML, but a text stays as it was typed, because 2.10 is not the number 2.1.
    kinds, parsed = kinds_at(VOCABULARIES[path].settings, tuple(name.split("."))), value_of(value)
    none = parsed is None and type(None) in kinds
    settings[last] = value.strip() if str in kinds and not isinstance(parsed, str) and not none else parsed


# ---- public keys, compared with the private keys of the fleet file


class FleetKeys:
    """The private keys that a fleet file names for its hosts. The file is read for the first host that is given a key.

    pending: the folder for a new pair until the plan is agreed to, None to keep it at once.
    """

    def __init__(self, fleet_file: Path | None, pending: Path | None = None) -> None:
        self._file, self._pending = fleet_file, pending

    def check(self, host: str, given: Mapping[str, str]) -> tuple[str, ...]:
        """Compare public keys with the private key of the host. given: each key, with the option that gave it. Returns
        what to tell the user if they could not be compared. Raises UsageError (OtherKey).
        """
        if not given:
            return ()
        try:
            found = self._hosts.get(host)
        except UsageError as unusable:
            return (f"The public key given was not compared with the private key in fleet.yaml: {unusable.what}.",)
        if not isinstance(found, Host) or found.ssh is None or found.ssh.key is None:
            return ()  # a plan that needs such a key is not applied without one
        from winhost.connect.own_key import check_given  # other plans give no key

        told = check_given(host, found.ssh, given)
        return (told,) if told else ()

    def give(self, host: str, request: PathRequest, *, serves: bool) -> PathRequest:
        """The request with a public key, if the new Linux needs one and none was given: that of the private key in
        fleet.yaml, or else of the pair that winhost makes. serves: models are served there.

        Raises UsageError: NoPublicHalf, FileFaults, NoStore, NotPrivate.
        """
        names = _open_key(request.path, request.playbook.settings, serves=serves)
        if names is None:
            return request
        line = self.of(host).line
        settings = copy.deepcopy(request.playbook.settings)
        inner = settings
        for each in names[:-1]:
            below = inner.get(each)
            inner[each] = inner = below if isinstance(below, dict) else {}
        inner[names[-1]] = line
        return request.with_playbook(request.playbook.with_settings(settings))

    def of(self, host: str) -> "SshKey":
        """The key for the Linux of a host: that in fleet.yaml, else the one that winhost makes. Raises as `give`."""
        from winhost.engine.keys import ssh_key  # most plans need no key

        found = self._hosts.get(host)
        return ssh_key(host, found.ssh if isinstance(found, Host) else None, pending=self._pending)

    @cached_property
    def _hosts(self) -> Mapping[str, AnyHost]:
        """Raises UsageError (FileFaults)."""
        try:
            file = find_fleet(self._file)
        except UsageError:
            return {}
        return {host.name: host for host in load_fleet(file).hosts}


def _open_key(path: str, settings: Mapping[str, Json], *, serves: bool) -> tuple[str, ...] | None:
    """The setting that still needs a public key."""
    if path == "wsl2" and serves:
        access = settings.get("access")
        return None if isinstance(access, dict) and access.get("key") else ("access", "key")
    new, system = settings.get("new_vm"), settings.get("system")
    if path == "dual-boot" and isinstance(system, dict):
        return None if system.get("key") else ("system", "key")
    if path == "dda" and isinstance(new, dict):
        guest = new.get("guest")
        prepared = new.get("vhdx") is not None and guest is None and not serves
        return None if prepared or (isinstance(guest, dict) and guest.get("key")) else ("new_vm", "guest", "key")
    return None


def given_keys(request: PathRequest) -> dict[str, str]:
    """The public keys in the settings and resources of a playbook, each with the option that gave it."""
    given: dict[str, str] = {}
    for name, option in KEY_SETTINGS.items():
        key: object = request.playbook.parsed_settings
        for part in name.split("."):
            key = getattr(key, part, None)
        if isinstance(key, str):
            given[key] = option
    for each in request.playbook.resources:
        listed = each.desired.get("authorized") if each.resource == "WslAccess" else None
        if isinstance(listed, list):
            given |= {str(key): "--playbook" for key in listed}
    return given
