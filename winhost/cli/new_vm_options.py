"""Options of `winhost plan` for a VM of winhost's own, each of which is a setting of the DDA path."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from winhost.model.errors import visible
from winhost.model.files import heed_writers
from winhost.model.yamlfile import MISSING, Mistake, dotted
from winhost.paths.public_key import refuse_private

F = TypeVar("F", bound=Callable[..., Any])

# By option: what it fills in of the setting new_vm, how it is written, and what it says.
_OPTIONS: Mapping[str, tuple[str, str, str]] = {
    "--new-vm": ("name", "NAME", "dda: make a VM of this name for the GPUs, instead of --vm."),
    "--cpus": ("cpus", "NUMBER", "New VM: virtual processors."),
    "--memory": ("memory", "SIZE", "New VM: memory, for example 64GiB."),
    "--disk": ("disk", "SIZE", "New VM: its disk as the guest sees it, for example 200GiB."),
    "--image": (
        "image.name",
        "IMAGE",
        "New VM: what its disk is made of: ubuntu-24.04 (default) or ubuntu-26.04, of a day as ubuntu-24.04@20260814; "
        "or a qcow2 or raw image, ./FILE or https://….",
    ),
    "--image-sha256": ("image.sha256", "SHA256", "New VM: SHA-256 of the image. Default: as Canonical signed it."),
    "--image-mirror": ("image.mirror", "PLACE", "New VM: another place of Ubuntu's releases, or a folder."),
    "--vhdx": ("vhdx.source", "SOURCE", "New VM: a prepared VHDX instead: a path on the host, https://…, or ./FILE."),
    "--vhdx-sha256": ("vhdx.sha256", "SHA256", "New VM: SHA-256 of that file. Default for ./FILE: as it is now."),
    "--upload": (
        "upload",
        "HOW",
        "New VM: how its disk gets to the host: wire (default), http (the host fetches it), sftp or smb.",
    ),
    "--switch": (
        "switch",
        "NAME",
        "New VM: its virtual switch. Default: the only external one, else a network with NAT.",
    ),
    "--ssh-key": ("guest.key", "FILE.pub", "New VM: set up its Linux, with cloud-init, for this public key."),
    "--user": ("guest.user", "NAME", "New VM: who logs on to its Linux with that key. Default: winhost."),
    "--vlan": ("vlan", "NUMBER", "New VM: its VLAN on that switch."),
    "--address": (
        "address",
        "ADDRESS",
        "New VM: as 192.0.2.10/24. Default: dhcp; behind NAT one that winhost chooses.",
    ),
    "--gateway": ("gateway", "ADDRESS", "New VM: the gateway of its network."),
    "--dns": ("dns", "ADDRESSES", "New VM: its name servers, with commas between them."),
}
_MADE = "winhost.new_vm"  # in the context, until --set takes it along


# Each setting that is a public key, with the option that gives it.
KEY_SETTINGS: Mapping[str, str] = {
    "new_vm.guest.key": "--ssh-key",
    "access.key": "--set access.key",
    "system.key": "--set system.key",
}


def with_public_key(settings: tuple[str, ...]) -> tuple[str, ...]:
    """Replace the file of a public key by the key itself. Raises BadParameter, which shows nothing of the file."""
    return tuple(map(_with_key, settings))


def _with_key(setting: str) -> str:
    name, _, value = setting.partition("=")
    if name in KEY_SETTINGS and value.startswith("@"):
        return f"{name}={_public_key(value[1:], KEY_SETTINGS[name])}"
    return setting


def _public_key(file: str, option: str) -> str:
    try:
        path = Path(file).expanduser()
        text = path.read_text("utf-8").strip()
        heed_writers(path)
        refuse_private(text)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise click.BadParameter(f"{visible(file)} cannot be read: {why}", param_hint=option) from None
    except ValueError as refused:
        raise click.BadParameter(str(refused), param_hint=option) from None
    return text


# What of a setting is not written as its option.
_WRITTEN_AS: Mapping[str, Callable[[str], str]] = {
    "--ssh-key": lambda file: f"@{file}",
}


def new_vm_options(command: F) -> F:
    """Adds them; `with_new_vm` hands on what they say."""

    def keep(context: click.Context, option: click.Parameter, value: str | None) -> None:
        if value is not None:
            name = option.opts[0]
            said = _WRITTEN_AS[name](value) if name in _WRITTEN_AS else value
            context.meta.setdefault(_MADE, {})[_OPTIONS[name][0]] = said

    for name, (_, metavar, text) in reversed([*_OPTIONS.items()]):
        more: Any = {"metavar": metavar, "help": text, "callback": keep, "expose_value": False, "is_eager": True}
        command = click.option(name, **more)(command)
    return command


def with_new_vm(context: click.Context, option: click.Parameter, settings: tuple[str, ...]) -> tuple[str, ...]:
    """The settings of --set, after those of the options."""
    asked: Mapping[str, str] = context.meta.get(_MADE, {})
    return (*(f"new_vm.{place}={value}" for place, value in asked.items()), *settings)


def fault_of_options(mistakes: Iterable[Mistake]) -> click.UsageError | None:
    """Say what is wrong with the settings in the words of the options; None where none of them was given."""
    context = click.get_current_context(silent=True)
    asked: Mapping[str, str] = context.meta.get(_MADE, {}) if context else {}
    if not asked:
        return None
    options = {f"settings.new_vm.{place}": option for option, (place, _, _) in _OPTIONS.items()}
    missing: list[str] = []
    wrong: list[str] = []
    for place, message in ((dotted(loc), message) for loc, message in mistakes):
        if message == MISSING and place in options:
            missing.append(options[place])
        else:
            wrong.append(f"{options.get(place, place)}: {message}")
    given = "--new-vm" if "name" in asked else next(each for each in _OPTIONS if _OPTIONS[each][0] in asked)
    needs = [f"{given} also needs {', '.join(missing)}"] if missing else []
    return click.UsageError(visible("; ".join((*needs, *wrong))))
