"""Consent to the loss of whole disks: typed at a terminal, disk by disk, or quoted in a file."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from winhost.autoinstall.guard_order import WholeDisk
from winhost.model.errors import RefusedError, visible
from winhost.model.files import TooLarge, read_within
from winhost.model.units import KiB, size

_LARGEST = 64 * KiB


def consented(host: str, disks: Sequence[WholeDisk], file: Path | None) -> list[str]:
    """Names of the disks, each of which somebody consented to lose. Raises RefusedError (NotTyped)."""
    for disk in disks:
        _show(host, disk)
        if file is None and sys.stdin.isatty():
            _ask(disk)
    if file is not None:
        _compare(_lines(file), disks, file)
    elif disks and not sys.stdin.isatty():
        lines = "\n".join(visible(disk.line) for disk in disks)
        hint = f"Start this command at a terminal, or name a file with these lines: --consent-file FILE\n{lines}"
        raise _not_typed("nobody is at a terminal to consent to the loss of each disk", hint)
    return [disk.name for disk in disks]


def lost_on(disk: WholeDisk) -> tuple[str, ...]:
    """The content of a disk that Ubuntu gets, in words."""
    return tuple(f"{each.role} partition {each.guid}, {size(each.size)}" for each in disk.partitions)


def _show(host: str, disk: WholeDisk) -> None:
    click.echo(f"Everything on this disk of {visible(host)} will be lost:", err=True)
    click.echo(f"  {visible(disk.line)}", err=True)
    for each in (*lost_on(disk), *disk.heed):
        click.echo(f"  - {visible(each)}", err=True)


def _ask(disk: WholeDisk) -> None:
    """Raises click.Abort for Ctrl-C."""
    kind = "GUID" if disk.choice.guid else "serial number"
    typed = str(click.prompt(f"To go on, type its {kind}", err=True, default="", show_default=False))
    if not _quotes(typed, disk):
        raise _not_typed("that is not the disk", f"Type its {kind} as it is shown: {visible(disk.name)}")


def _quotes(text: str, disk: WholeDisk) -> bool:
    """Tell whether a text names the disk as it is shown."""
    return text.strip() in (visible(disk.name), visible(disk.line))


def _lines(file: Path) -> list[str]:
    try:
        text = read_within(file, _LARGEST).decode("utf-8-sig")
    except (OSError, TooLarge, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text, or too long"
        raise click.BadParameter(f"{visible(str(file))} cannot be read: {why}", param_hint="--consent-file") from None
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def _compare(lines: Sequence[str], disks: Sequence[WholeDisk], file: Path) -> None:
    """Each disk is quoted, and nothing else: a file for other disks is not for these."""
    for disk in disks:
        if not any(_quotes(line, disk) for line in lines):
            what = f"{visible(str(file))} does not quote the disk {visible(disk.name)}"
            raise _not_typed(what, f"Once you know that it may be lost, add this line: {visible(disk.line)}")
    for line in lines:
        if not any(_quotes(line, disk) for disk in disks):
            what = f"{visible(str(file))} names something else: {visible(line)[:120]}"
            raise _not_typed(what, "Take out what is no disk of this plan")


def _not_typed(what: str, hint: str) -> RefusedError:
    return RefusedError("NotTyped", what=f"{what}; no media were made", hint=hint)
