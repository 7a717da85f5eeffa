"""Turn the options of `winhost plan` into a request: the path, its playbook and its settings."""

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

from winhost.cli.errors import read_option_file, usage_errors
from winhost.cli.options import option_name
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
from winhost.model.yamlfile import MISSING, Mistake, dotted, kinds_at, parse_value
from winhost.paths.playbook import PathRequest, Playbook, WrongPlaybook, expand_names, read_playbook
from winhost.paths.setting_values import HostSpecificValue, host_specific_values, refuse_private
from winhost.paths.vocabulary import VOCABULARIES

if TYPE_CHECKING:
    from winhost.engine.keys import SshKey
    from winhost.images.guest_disk import Tell

# Fields of a request, each with the option that fills it in.
_OPTIONS = {each.name: option_name(each) for each in fields(PlanOptions) if each.metadata.get("section") == DDA}

# Each setting that is a public key, with the option that gives it.
KEY_SETTINGS: Mapping[str, str] = {
    "new_vm.guest.key": "--ssh-key",
    "access.key": "--set access.key",
    "system.key": "--set system.key",
}


@dataclass(frozen=True)
class RequestBuilder(PlanOptions):
    """Turns the options of `winhost plan` into a request to a path. host: how a command names the host, if there is
    only one host or file.
    """

    host: str = "HOST"
    _parsed: dict[str, PathRequest] = field(default_factory=dict, init=False, compare=False)

    @cached_property
    def path(self) -> str | None:
        """The named path, or else the one that other options belong to; None if several paths are possible.

        Raises UsageError: UnknownPath, NotOfPath.
        """
        check_path(self.variant)
        paths_by_option = {f"--path {self.variant}": frozenset([path_of(self.variant)])} if self.variant else {}
        paths_by_option |= dict(self._paths_by_option())
        possible: frozenset[str] | None = None
        for option, paths in paths_by_option.items():
            if possible is not None and not possible & paths:
                option_paths, other_paths = sorted(paths), " or ".join(sorted(possible))
                raise UsageError(
                    "NotOfPath",
                    what=f"{visible(option)} belongs to {' or '.join(option_paths)}, and not to {other_paths}",
                    hint=f"Leave it out, or plan that path: --path {option_paths[0]}",
                )
            possible = paths if possible is None else possible & paths
        return next(iter(possible)) if possible and len(possible) == 1 else None

    def request(self, path: str) -> PathRequest:
        """Return the request to a path, parsed once for all hosts.

        Raises UsageError (NoPlaybook, OtherPath), BadParameter, and what reading a playbook raises.
        """
        if path in self._parsed:
            return self._parsed[path]
        playbook, settings = self._playbook(path), (*self._variant_setting(path), *self.settings)
        if self.vm and _chosen_settings(playbook, settings).get("new_vm"):
            raise click.BadParameter("names a VM that is there; --new-vm makes one", param_hint="--vm")
        playbook = apply_settings(playbook, settings, self.new_vm)
        power = self.power or "as-found"
        document = PlanRequest(
            path, playbook.content, self.vm, self.gpus, self.low, self.high, power, self.allow_unverified
        )
        return self._parsed.setdefault(path, PathRequest(document, playbook))

    def single_host_values(self, listen: str | None) -> Iterator[HostSpecificValue]:
        """Yield the values that only one host can have. listen: the address of an endpoint. Raises as `request`
        does.
        """
        if self.vm:
            yield HostSpecificValue("VM", "--vm", self.vm)
        for gpu in self.gpus:
            if "PCIROOT(" in gpu.upper():
                yield HostSpecificValue("location", "--gpu", gpu)
        if listen and not listen.startswith(("127.", "[::1]", "localhost:", "0.0.0.0:", "[::]")):
            yield HostSpecificValue("listening address", "--listen", listen)
        if self.path:
            yield from host_specific_values(self.request(self.path).playbook.parsed_settings)

    def pin_image(self, request: PathRequest, report: "Tell") -> PathRequest:
        """Pin the image of a new VM, once for all hosts. Raises as `new_vm_image.pin_image` does."""
        from winhost.cli.plan.new_vm_image import pin_image  # loads all that finds images

        self._parsed[request.path] = pin_image(request, report)
        return self._parsed[request.path]

    @cached_property
    def _own_playbook(self) -> Playbook | None:
        """The user's own playbook."""
        return read_playbook(self.playbook) if self.playbook else None

    def _playbook(self, path: str) -> Playbook:
        check_path(path)
        shipped_playbooks = {file.stem: file for file in shipped("playbooks").glob("*.yaml")}
        if path not in shipped_playbooks:
            plannable = ", ".join(sorted(shipped_playbooks))
            raise UsageError(
                "NoPlaybook",
                what=f"winhost evaluates {path} but cannot plan it yet; it can plan: {plannable}",
                hint="Ubuntu on whole disks: winhost install plan FACTS --disk GUID"
                if path == "bare-metal"
                else f"To see which of them this host supports: winhost assess {visible(self.host)}",
            )
        playbook = self._own_playbook or read_playbook(shipped_playbooks[path])
        if playbook.path != path:
            what = f"{visible(str(self.playbook))} is a playbook for {visible(playbook.path)}, not for {path}"
            raise UsageError("OtherPath", what=what, hint=f"Plan that path: --path {visible(playbook.path)}")
        return playbook

    def _paths_by_option(self) -> Iterator[tuple[str, frozenset[str]]]:
        """Yield each option that was typed, with the paths that it belongs to."""
        for name, option in _OPTIONS.items():
            if getattr(self, name) not in (None, ()):
                yield option, frozenset(path for path, vocabulary in VOCABULARIES.items() if name in vocabulary.options)
        for setting in self.settings:
            name = setting.partition("=")[0].partition(".")[0]
            paths = {path for path, vocabulary in VOCABULARIES.items() if name in vocabulary.settings.model_fields}
            if paths:  # otherwise the name is misspelt, and `request` refuses it
                yield f"--set {name}", frozenset(paths)
        if self._own_playbook is not None and self.variant is None:
            yield f"--playbook {self.playbook}", frozenset([self._own_playbook.path])

    def _variant_setting(self, path: str) -> Iterator[str]:
        """Yield the setting of a variant: `network=nat` for `--path wsl2/nat`. Raises BadParameter if a setting
        contradicts it.
        """
        variant = variant_name(self.variant) if self.variant else None
        if variant is None:
            return
        name = VOCABULARIES[path].variant
        for setting in self.settings:
            set_name, _, value = setting.partition("=")
            if set_name == name and value.strip() != variant:
                raise click.BadParameter(f"{visible(setting)} contradicts --path {self.variant}", param_hint="--set")
        yield f"{name}={variant}"


def default_request(path: str, host: str = "HOST") -> PathRequest:
    """Return the request of `winhost plan HOST --path PATH` without any other option."""
    return RequestBuilder(path, host=host).request(path)


def read_settings(settings: tuple[str, ...]) -> tuple[str, ...]:
    """Return the settings of `--set` with the contents of files: a public key replaces its file, and the SHA-256 of a
    disk image in the present folder is added. Raises BadParameter, which shows nothing of a key's file.
    """
    result = []
    for setting in settings:
        name, _, value = setting.partition("=")
        option = KEY_SETTINGS.get(name)
        if option and value.startswith("@"):
            with usage_errors(option):
                text = read_option_file(Path(value[1:]).expanduser(), option)
                refuse_private(text)
            result.append(f"{name}={text}")
        else:
            result.append(setting)
    source_prefix, hash_prefix = "new_vm.vhdx.source=./", "new_vm.vhdx.sha256="
    paths = [each[len(source_prefix) - 2 :] for each in result if each.startswith(source_prefix)]
    if not paths or any(each.startswith(hash_prefix) for each in result):
        return tuple(result)
    try:
        return (*result, hash_prefix + sha256_of(Path(paths[-1])))
    except OSError as error:
        why = f"{visible(paths[-1])} cannot be read: {error.strerror}"
        raise click.BadParameter(why, param_hint="--vhdx, or --set new_vm.vhdx.source") from None


def apply_settings(playbook: Playbook, settings: tuple[str, ...], new_vm: NewVmOptions | None = None) -> Playbook:
    """Return a playbook with the settings of `--set`. new_vm: the options for a new VM, to name them in an error.
    Raises click's UsageError.
    """
    chosen = _chosen_settings(playbook, settings)
    try:
        return playbook.with_settings(chosen) if settings else playbook
    except WrongPlaybook as error:
        if new_vm and new_vm.chosen_settings:
            raise _options_error(error.mistakes, new_vm) from None
        raise click.BadParameter(visible(str(error)), param_hint="--set") from None


def _options_error(mistakes: Iterable[Mistake], new_vm: NewVmOptions) -> click.UsageError:
    options = {f"settings.new_vm.{setting}": option for setting, option in NEW_VM_OPTIONS.items()}
    missing: list[str] = []
    wrong: list[str] = []
    for setting, message in ((dotted(loc), message) for loc, message in mistakes):
        if message == MISSING and setting in options:
            missing.append(options[setting])
        else:
            wrong.append(f"{options.get(setting, setting)}: {message}")
    first_option = next(option for setting, option in NEW_VM_OPTIONS.items() if setting in new_vm.chosen_settings)
    missing_texts = [f"{first_option} also needs {', '.join(missing)}"] if missing else []
    return click.UsageError(visible("; ".join((*missing_texts, *wrong))))


def _chosen_settings(playbook: Playbook, settings: tuple[str, ...]) -> dict[str, Json]:
    """Return the settings of a playbook with those of `--set`, not yet checked. Raises BadParameter."""
    chosen = copy.deepcopy(playbook.settings)
    for setting in settings:
        _set_setting(playbook.path, chosen, setting)
        chosen = expand_names(playbook.path, chosen)
    return chosen


def _set_setting(path: str, settings: dict[str, Json], setting: str) -> None:
    """Write a setting such as `bridge.switch=lan` into the nested settings of a path. Raises BadParameter."""
    with usage_errors("--set"):
        refuse_private(setting)  # first, because the messages below show the setting
    name, equals, value = setting.partition("=")
    if not equals or not all(name.split(".")):
        raise click.BadParameter(f"{visible(setting)!r} is not NAME=VALUE", param_hint="--set")
    if not value.strip():  # as from $(cat FILE) if FILE does not exist
        raise click.BadParameter(
            f"{visible(name)} is given nothing; for none say {visible(name)}=null", param_hint="--set"
        )
    *groups, last = name.split(".")
    for group in groups:
        nested = settings.setdefault(group, {})
        if not isinstance(nested, dict):
            raise click.BadParameter(f"{visible(name)}: {group} is no group of settings", param_hint="--set")
        settings = nested
    # The value is YAML. Where the setting is a string, it stays as it was typed: 2.10 is not the number 2.1.
    kinds, parsed = kinds_at(VOCABULARIES[path].settings, tuple(name.split("."))), parse_value(value)
    is_none = parsed is None and type(None) in kinds
    settings[last] = value.strip() if str in kinds and not isinstance(parsed, str) and not is_none else parsed


# ---- public keys, compared with the private keys of the fleet file


class FleetKeys:
    """The SSH keys of hosts: those that a fleet file names, and those that winhost makes. The fleet file is read when
    the first key is needed.

    pending: the folder for a new pair until the user agrees to the plan, None to keep it at once.
    """

    def __init__(self, fleet_file: Path | None, pending: Path | None = None) -> None:
        self._file, self._pending = fleet_file, pending

    def check(self, host: str, keys: Mapping[str, str]) -> tuple[str, ...]:
        """Compare public keys with the private key of the host. keys: each key, with the option that gave it.

        Return notes for the user if the keys could not be compared. Raises UsageError (OtherKey).
        """
        if not keys:
            return ()
        try:
            fleet_host = self._hosts.get(host)
        except UsageError as unusable:
            return (f"The public key given was not compared with the private key in fleet.yaml: {unusable.what}.",)
        if not isinstance(fleet_host, Host) or fleet_host.ssh is None or fleet_host.ssh.key is None:
            return ()  # a plan that needs such a key is not applied without one
        from winhost.connect.own_key import check_public_keys  # most plans have no key

        note = check_public_keys(host, fleet_host.ssh, keys)
        return (note,) if note else ()

    def add_key(self, host: str, request: PathRequest, *, serves: bool) -> PathRequest:
        """Add a public key to a request, if the new Linux needs one and the request has none: that of the private key
        in fleet.yaml, or else of the pair that winhost makes. serves: models are served there.

        Raises UsageError: NoPublicHalf, FileFaults, NoStore, NotPrivate.
        """
        names = _missing_key_setting(request.path, request.playbook.settings, serves=serves)
        if names is None:
            return request
        line = self.key_of(host).line
        settings = copy.deepcopy(request.playbook.settings)
        group = settings
        for each in names[:-1]:
            nested = group.get(each)
            group[each] = group = nested if isinstance(nested, dict) else {}
        group[names[-1]] = line
        return request.with_playbook(request.playbook.with_settings(settings))

    def key_of(self, host: str) -> "SshKey":
        """Return the key for the Linux of a host: that in fleet.yaml, else the one that winhost makes. Raises as
        `add_key` does.
        """
        from winhost.engine.keys import ssh_key  # most plans need no key

        fleet_host = self._hosts.get(host)
        return ssh_key(host, fleet_host.ssh if isinstance(fleet_host, Host) else None, pending=self._pending)

    @cached_property
    def _hosts(self) -> Mapping[str, AnyHost]:
        """The hosts of the fleet file, by name. Raises UsageError (FileFaults)."""
        try:
            file = find_fleet(self._file)
        except UsageError:
            return {}
        return {host.name: host for host in load_fleet(file).hosts}


def _missing_key_setting(path: str, settings: Mapping[str, Json], *, serves: bool) -> tuple[str, ...] | None:
    """Return the setting that still needs a public key, by the names between its dots; None if there is none."""
    if path == "wsl2" and serves:
        access = settings.get("access")
        return None if isinstance(access, dict) and access.get("key") else ("access", "key")
    new_vm, system = settings.get("new_vm"), settings.get("system")
    if path == "dual-boot" and isinstance(system, dict):
        return None if system.get("key") else ("system", "key")
    if path == "dda" and isinstance(new_vm, dict):
        guest = new_vm.get("guest")
        uses_own_disk = new_vm.get("vhdx") is not None and guest is None and not serves
        return None if uses_own_disk or (isinstance(guest, dict) and guest.get("key")) else ("new_vm", "guest", "key")
    return None


def given_keys(request: PathRequest) -> dict[str, str]:
    """Return the public keys in the settings and resources of a playbook, each with the option that gave it."""
    keys: dict[str, str] = {}
    for name, option in KEY_SETTINGS.items():
        key: object = request.playbook.parsed_settings
        for part in name.split("."):
            key = getattr(key, part, None)
        if isinstance(key, str):
            keys[key] = option
    for each in request.playbook.resources:
        public_keys = each.desired.get("authorized") if each.resource == "WslAccess" else None
        if isinstance(public_keys, list):
            keys |= {str(key): "--playbook" for key in public_keys}
    return keys
