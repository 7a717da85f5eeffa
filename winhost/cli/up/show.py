"""The screen of `winhost up`: at most 25 lines of 80 columns, with its only question."""

import sys
import textwrap
from collections.abc import Iterator, Mapping

import click

from winhost.cli.change.running import consent_request
from winhost.cli.output import with_fleet
from winhost.cli.plan.show import GROUPS, NOTE, group_changes, grouped_titles, short_title
from winhost.cli.terminal import terminal_width
from winhost.cli.up.choice import Choice, format_size
from winhost.compat.target import name_gpus
from winhost.core.dataclass import dataclass
from winhost.knowledge import catalogue
from winhost.model.errors import UsageError, visible
from winhost.model.plan import Plan, sort_risks
from winhost.model.units import Bytes, gib
from winhost.resources.host import Gpu

LINES = 25  # of the screen, including its question
_COLUMNS = 80
_HEAD_WIDTH = 11  # columns
_COMMAND_HEADS = ("All models", "All steps")  # heads of lines that have a command
_MBIT = 100  # per second, assumed for the estimate of the time
_PACKAGES = {*GROUPS["packages"], "StagedFile", "ReleaseFile"}
_DISRUPTIVE_RISKS = ("restart", "headless", "network", "vm-stop", "vm-turn-off", "containers", "data")


@dataclass(frozen=True)
class Screen:
    """The content of the screen. downloads: bytes by name, None if not known; used, idle: GPUs; on_this_machine:
    winhost runs on this host; details: the command that shows every step.
    """

    plan: Plan
    choice: Choice
    verdict: str
    downloads: Mapping[str, Bytes | None]
    used: tuple[Gpu, ...]
    idle: tuple[Gpu, ...]
    on_this_machine: bool
    details: str


def show_up(screen: Screen) -> None:
    """Show a plan in at most LINES lines, the question's line included, if the terminal has 80 columns or more."""
    width = max(terminal_width(sys.stdout) or _COLUMNS, _COLUMNS) if sys.stdout.isatty() else None
    # Consequences, to which the user agrees, are shown in full. Changes get the remaining lines.
    served, consequences = [*_served_lines(screen, width)], [*_consequence_lines(screen, width)]
    changes = _change_lines(screen, max(1, LINES - 1 - len(served) - len(consequences)))
    for head, text in (*served, *changes, *consequences):
        click.secho(visible(f"{head:<{_HEAD_WIDTH}}"), bold=bool(head), nl=False)
        line, text_width = visible(text), width - _HEAD_WIDTH if width else None
        is_command = head in _COMMAND_HEADS  # a command is not cut, so that it can be copied
        if text_width is not None and not is_command and len(line) > text_width:
            line = line[: text_width - 1].rstrip() + "…"
        click.echo(line)


def _served_lines(screen: Screen, width: int | None) -> Iterator[tuple[str, str]]:
    plan, memory = screen.plan, screen.choice.memory
    yield from _paragraph("Verdict", f"{plan.host} {screen.verdict}", width)
    yield from _paragraph(
        "Model",
        f"{screen.choice.model}: {screen.choice.description}{f', about {gib(memory)} a GPU' if memory else ''}",
        width,
    )
    if screen.choice.others:
        yield from _paragraph("", f"next best: {screen.choice.others[0]}", width)
        yield _COMMAND_HEADS[0], with_fleet(f"winhost models show {plan.host}")
    for note in screen.choice.notes[:1]:
        yield "", f"look: {note}"
    yield "GPUs", f"{name_gpus(screen.used) or 'not known'}; idle: {name_gpus(screen.idle) or 'none'}"


def _consequence_lines(screen: Screen, width: int | None) -> Iterator[tuple[str, str]]:
    sizes = {name: "of unknown size" if size is None else format_size(size) for name, size in screen.downloads.items()}
    downloads = ", ".join(f"{name} {size}" for name, size in sizes.items())
    packages = "packages" if resources_of(screen.plan) & _PACKAGES else ""
    yield "Downloads", ", and ".join(filter(None, (downloads, packages))) or "nothing"
    yield from _paragraph("Others", _disruptions(screen), width)
    yield from _paragraph("Time", _duration(screen), width)
    irreversible = [
        f"{short_title(step.title)}: {step.irreversible}" for step in screen.plan.steps if step.irreversible
    ]
    exception = f", except: {'; '.join(irreversible)}" if irreversible else ""
    yield from _paragraph("Undo", f"winhost down puts everything back that this changes{exception}", width)
    yield from _approval_lines(screen, width)
    yield _COMMAND_HEADS[1], screen.details


def _paragraph(head: str, text: str, width: int | None) -> Iterator[tuple[str, str]]:
    text_width = width - _HEAD_WIDTH if width else max(len(text), 1)
    for line in textwrap.wrap(text, text_width, break_long_words=False, break_on_hyphens=False):
        yield head, line
        head = ""


def _change_lines(screen: Screen, max_lines: int) -> Iterator[tuple[str, str]]:
    groups: dict[str, list[str]] = {}
    for stage in screen.plan.stages:
        for group, changes in group_changes(stage.steps):
            groups.setdefault(group, []).append(changes)
    for group, titles in grouped_titles(screen.plan.deferred):
        groups.setdefault(group, []).append(titles)
    if not groups:
        yield "Changes", "none: everything is already as planned"
        return
    rows = [*groups.items()]
    hidden = rows[max_lines - 1 :] if len(rows) > max_lines else []
    head = "Changes"
    for group, changed in rows[: len(rows) - len(hidden)]:
        yield head, f"{group}: {'; '.join(changed)}"
        head = ""
    if hidden:
        yield "", f"and {', '.join(group for group, _ in hidden)}"


def _disruptions(screen: Screen) -> str:
    needed = consent_request(screen.plan, screen.plan.stages).needed
    parts = []
    if "restart" in needed:
        restart_note = ": log on again then and type winhost up" if screen.on_this_machine else ""
        parts.append(f"a restart of {screen.plan.host} with all that runs on it{restart_note}")
    for risk in _DISRUPTIVE_RISKS[1:]:
        if risk in needed:
            parts.append(f"{risk}: {', '.join(short_title(title) for title in needed[risk][:3])}")
    return "; ".join(parts) or "nothing"


def _duration(screen: Screen) -> str:
    sizes = [size for size in screen.downloads.values() if size is not None]
    restarts = sum(stage.restarts for stage in screen.plan.stages)
    parts = []
    if sum(sizes) > 1e8:
        minutes = max(1, round(sum(sizes) * 8 / (_MBIT * 1e6) / 60))
        parts.append(f"about {minutes} min for the known downloads at {_MBIT} Mbit/s")
    if restarts:
        parts.append(f"{restarts} restart{'s' if restarts > 1 else ''} of some minutes")
    return f"{'; '.join(parts)}; what else: not known" if parts else "not known"


def _approval_lines(screen: Screen, width: int | None) -> Iterator[tuple[str, str]]:
    request = consent_request(screen.plan, screen.plan.stages)
    yield "Approvals", ", ".join(likely_risks(screen.plan)) or "none"
    if "data" in request.needed:
        titles = ", ".join(short_title(title) for title in request.needed["data"])
        yield from _paragraph("", f"data affects: {titles}. It has a question of its own.", width)
    possible = [risk for risk in request.possible if risk not in likely_risks(screen.plan)]
    if possible:
        yield from _paragraph("", f"asked for later if it turns out to be needed: {', '.join(possible)}", width)


def resources_of(plan: Plan) -> set[str]:
    """Return the resources of planned steps, and of those that are planned later."""
    return {step.resource for step in plan.steps} | {deferred.resource for deferred in plan.deferred}


def likely_risks(plan: Plan) -> tuple[str, ...]:
    """Return the risks that need approval: those of the plan, and vm-stop for a new VM, which nobody else uses yet."""
    makes_vm = "OwnVm" in resources_of(plan)
    vm_stop = ("vm-stop",) if makes_vm and "vm-stop" in plan.possible_risks else ()
    return sort_risks((*plan.risks, *vm_stop))


def verdict_sentence(plan: Plan, model: str, option: str) -> str:
    """Return the verdict as a sentence, by the first note of the plan with a code, which is the gravest."""
    note = next(filter(None, map(NOTE.fullmatch, plan.notes)), None)
    head = f"can serve {model} by {option}"
    if note is None or note["severity"] == "note":
        return f"{head}: supported."
    try:
        sentence = catalogue.entry(note["code"]).sentence
    except UsageError:  # a caution of the request
        sentence = note["text"]
    return f"{head}: {note['severity']}. {sentence}"
