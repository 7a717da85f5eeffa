"""Options of `winhost plan` for a VM of winhost's own, each of which is a setting of the DDA path."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

# By option: what it fills in of the setting new_vm, how it is written, and what it says.
_OPTIONS: Mapping[str, tuple[str, str, str]] = {
    "--new-vm": ("name", "NAME", "dda: make a VM of this name for the GPUs, instead of --vm."),
    "--cpus": ("cpus", "NUMBER", "New VM: virtual processors."),
    "--memory": ("memory", "SIZE", "New VM: memory, for example 64GiB."),
    "--disk": ("disk", "SIZE", "New VM: its disk as the guest sees it, for example 200GiB."),
    "--vhdx": ("vhdx.source", "SOURCE", "New VM: what its disk is made of: a path on the host, https://…, or ./FILE."),
    "--vhdx-sha256": ("vhdx.sha256", "SHA256", "New VM: SHA-256 of that file. Default for ./FILE: as it is now."),
    "--switch": ("switch", "NAME", "New VM: its virtual switch. Default: the only external one."),
    "--vlan": ("vlan", "NUMBER", "New VM: its VLAN on that switch."),
}
_MADE = "winhost.new_vm"  # in the context, until --set takes it along


def new_vm_options(command: F) -> F:
    """Adds them; `with_new_vm` hands on what they say."""

    def keep(context: click.Context, option: click.Parameter, value: str | None) -> None:
        if value is not None:
            context.meta.setdefault(_MADE, {})[_OPTIONS[option.opts[0]][0]] = value

    for name, (_, metavar, text) in reversed([*_OPTIONS.items()]):
        more: Any = {"metavar": metavar, "help": text, "callback": keep, "expose_value": False, "is_eager": True}
        command = click.option(name, **more)(command)
    return command


def with_new_vm(context: click.Context, option: click.Parameter, settings: tuple[str, ...]) -> tuple[str, ...]:
    """The settings of --set, after those of the options."""
    asked: Mapping[str, str] = context.meta.get(_MADE, {})
    return (*(f"new_vm.{place}={value}" for place, value in asked.items()), *settings)
