"""Profiles for people: a command for each model, to copy, and what there is to know beside it as comments."""

import sys
from collections.abc import Collection, Iterator

import click

from winhost.cli.line_breaks import wrapped
from winhost.gateway.gateway_settings import Limits
from winhost.knowledge import catalogue
from winhost.model.errors import visible
from winhost.model.units import gib
from winhost.serving.causes import Because
from winhost.serving.choice import Served, Serving
from winhost.serving.command import DEV_MODE, command, folder_of, is_packed, program_command
from winhost.serving.ladder import format_rest, format_wait
from winhost.serving.lost import Lost
from winhost.serving.profile_lines import UNKNOWN_WORD, ProfileLine


def show_serving(found: Serving, everything: bool, suspended: Collection[str] = ()) -> None:
    """One block for each model. Everything that is no command is a comment, so that the whole can be run. suspended:
    models whose process leaves its GPU.
    """
    simulated = " (simulated)" if found.origin == "synthetic" else ""
    _comment(f"{found.host}{simulated} by {found.variant}: {found.verdict}", bold=True)
    _comment(f"  {found.variant}: {found.chosen}")
    for served in found.models:
        click.echo()
        _show(served, found.vllm, everything, alone=served.served_name in suspended)
    if not everything:
        click.echo()
        _comment("The reason, versions and evidence of each line: --explain")


def _show(served: Served, vllm: str | None, everything: bool, *, alone: bool) -> None:
    _comment(f"{served.model}: profile {served.profile}", bold=True)
    for sentence in (_files(served), *([_SUSPENDED] if alone else []), *_notes(served)):
        _comment(f"  {sentence}")
    words = program_command(served) if alone else command(served, vllm)
    # Not wrapped: a terminal breaks a line where it likes, and the shell still takes it for one.
    click.echo(" \\\n  ".join(words))
    if everything:
        for line in (*served.lines, *served.left_out):
            _explain(line, left_out=line in served.left_out)


_SUSPENDED = (
    "Between its turns its process leaves the GPU (suspend), which works with one process of a unit and with no "
    "container: this is vLLM's own program, and a plan makes its unit"
)


def _files(served: Served) -> str:
    how = ", packed, with winhost's loader beside vLLM" if is_packed(served) else ""
    return (
        f"The files of {served.id} are expected in {folder_of(served)}{how}, and the gateway at {served.socket}, "
        "in a folder that only root and its group enter: winhost plan HOST --workload WORKLOAD sets up all of this"
    )


def _notes(served: Served) -> Iterator[str]:
    for cause in served.because:
        unsafe = "Sleep mode may be unsafe" if cause.unverified else "Sleep mode is unsafe"
        yield f"{unsafe}: {cause.why}{_doubt(cause)}"
    yield from _between_turns(served)
    for line in served.lines:
        if line.kind == "note":
            yield f"{line.name}. {line.why}"
        elif line.kind == "wslconfig":
            yield f".wslconfig, [wsl2]: {line.name}={line.value}. {line.why}"
            yield f"  {line.how}"
        elif line.unverified:
            yield f"{_setting(line)} is unverified: {line.unverified}"
    for line in served.left_out:
        undecided = "" if line.unverified == UNKNOWN_WORD else "undecided: "
        yield f"{_setting(line)} is left out, {undecided}{line.unverified}. {line.why}"


def _between_turns(served: Served) -> Iterator[str]:
    if any(line.name == DEV_MODE for line in served.lines):
        yield "Not in development mode, which sleep takes: everybody who reaches the engine could run code in it"
        yield f"  A plan turns it on behind the gateway; by hand: {DEV_MODE}=1, if nobody else reaches the socket"
    if served.rest:
        yield f"Between its turns {format_rest(served.rest)}"
    if served.anew:
        yield f"Its standby is the same engine, started anew {format_wait(served.anew, Limits.hold)}"
    if served.lost:
        yield from _lost(served.lost)


def _lost(lost: Lost) -> Iterator[str]:
    if lost.waking and lost.weights and lost.reading:
        quick, slow = lost.waking
        yield f"What that costs: waking takes {quick:.1f} to {slow:.1f} s, as measured elsewhere"
        yield f"  Reading {gib(lost.weights)} of weights takes {lost.reading:.1f} s at {lost.read_speed} MB/s"
    else:
        yield "What that costs: the time to wake and to read is unknown, because the size of the weights is"
    quick, slow = lost.starting
    yield f"  A full start was measured at {quick:g} s with warm caches and {slow:g} s with cold ones"
    if lost.kept is False:
        yield f"  swap_within: {lost.within} s cannot be met: a start takes at least {lost.least:.0f} s"


def _explain(line: ProfileLine, *, left_out: bool) -> None:
    _comment(f"  {'left out: ' if left_out else ''}{_setting(line)}")
    _comment(f"      why: {line.why}")
    _comment(f"      for: {line.when}")
    if line.how:
        _comment(f"      computed: {line.how}")
    if line.default:
        _comment(f"      default: {line.default}")
    if line.unverified:
        _comment(f"      unverified: {line.unverified}")
    for key in line.evidence:
        evidence = catalogue.evidence()[key]
        _comment(f"      {key} ({evidence.kind}): {evidence.source}")


def _setting(line: ProfileLine) -> str:
    return line.name if line.value is None else f"{line.name}={line.value}"


def _doubt(cause: Because) -> str:
    return f" Unverified: {cause.unverified}." if cause.unverified else ""


def _comment(text: str, *, bold: bool = False) -> None:
    """Print a text with each of its lines as a comment: else what follows a line break would be a command."""
    lines = wrapped(visible(text), 2, sys.stdout, lead="# ")
    click.echo(click.style(lines, bold=True) if bold else lines)
