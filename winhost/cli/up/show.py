"""The screen of `winhost up`: at most 25 lines of 80 columns, with its only question."""

import sys
import textwrap
from collections.abc import Iterator, Mapping

import click

from winhost.cli.change.running import asking_for
from winhost.cli.output import with_fleet
from winhost.cli.plan.show import GROUPS, NOTE, group_changes, grouped_titles, short
from winhost.cli.terminal import columns
from winhost.cli.up.choice import Choice, gb
from winhost.compat.target import name_gpus
from winhost.core.dataclass import dataclass
from winhost.knowledge import catalogue
from winhost.model.errors import UsageError, visible
from winhost.model.plan import Plan, sort_risks
from winhost.model.units import Bytes, gib
from winhost.resources.host import Gpu

LINES = 25  # of the screen, its question included
_COLUMNS = 80
_HEAD = 11  # columns of what a line is about
_WHOLE = ("All models", "All steps")
_MBIT = 100  # a second, for an estimate that says so
_PACKAGES = {*GROUPS["packages"], "StagedFile", "ReleaseFile"}
_NOTICED = ("restart", "headless", "network", "vm-stop", "vm-turn-off", "containers", "data")


@dataclass(frozen=True)
class Screen:
    """The content of the screen, besides the plan. downloads: bytes by name, None if not known; used, idle: GPUs; here:
    winhost runs on this host; details: the command that shows every step.
    """

    plan: Plan
    choice: Choice
    verdict: str
    downloads: Mapping[str, Bytes | None]
    used: tuple[Gpu, ...]
    idle: tuple[Gpu, ...]
    here: bool
    details: str


def show_up(screen: Screen) -> None:
    """Show at most LINES lines if the terminal has 80 columns or more, and leave one for the question."""
    width = max(columns(sys.stdout) or _COLUMNS, _COLUMNS) if sys.stdout.isatty() else None
    # What the user agrees to is shown in full; changes get the remaining lines.
    before, after = [*_served(screen, width)], [*_consequences(screen, width)]
    changes = _changes(screen, max(1, LINES - 1 - len(before) - len(after)))
    for head, text in (*before, *changes, *after):
        click.secho(visible(f"{head:<{_HEAD}}"), bold=bool(head), nl=False)
        shown, room = visible(text), width - _HEAD if width else None
        if room is not None and head not in _WHOLE and len(shown) > room:  # a command is copied whole
            shown = shown[: room - 1].rstrip() + "…"
        click.echo(shown)


def _served(screen: Screen, width: int | None) -> Iterator[tuple[str, str]]:
    plan, memory = screen.plan, screen.choice.memory
    yield from _paragraph("Verdict", f"{plan.host} {screen.verdict}", width)
    yield from _paragraph(
        "Model",
        f"{screen.choice.model}: {screen.choice.about}{f', about {gib(memory)} a GPU' if memory else ''}",
        width,
    )
    if screen.choice.others:
        yield from _paragraph("", f"next best: {screen.choice.others[0]}", width)
        yield _WHOLE[0], with_fleet(f"winhost models show {plan.host}")
    for look in screen.choice.look[:1]:
        yield "", f"look: {look}"
    yield "GPUs", f"{name_gpus(screen.used) or 'not known'}; idle: {name_gpus(screen.idle) or 'none'}"


def _consequences(screen: Screen, width: int | None) -> Iterator[tuple[str, str]]:
    sizes = {name: "of unknown size" if size is None else gb(size) for name, size in screen.downloads.items()}
    listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
    packages = "packages" if resources_of(screen.plan) & _PACKAGES else ""
    yield "Downloads", ", and ".join(filter(None, (listed, packages))) or "nothing"
    yield from _paragraph("Others", _noticed(screen), width)
    yield from _paragraph("Time", _time(screen), width)
    stays = [f"{short(step.title)}: {step.irreversible}" for step in screen.plan.steps if step.irreversible]
    except_ = f", except: {'; '.join(stays)}" if stays else ""
    yield from _paragraph("Undo", f"winhost down puts everything back that this changes{except_}", width)
    yield from _approvals(screen, width)
    yield _WHOLE[1], screen.details


def _paragraph(head: str, text: str, width: int | None) -> Iterator[tuple[str, str]]:
    room = width - _HEAD if width else max(len(text), 1)
    for line in textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False):
        yield head, line
        head = ""


def _changes(screen: Screen, most: int) -> Iterator[tuple[str, str]]:
    groups: dict[str, list[str]] = {}
    for stage in screen.plan.stages:
        for group, what in group_changes(stage.steps):
            groups.setdefault(group, []).append(what)
    for group, waiting in grouped_titles(screen.plan.deferred):
        groups.setdefault(group, []).append(waiting)
    if not groups:
        yield "Changes", "none: everything is already as planned"
        return
    shown = [*groups.items()]
    rest = shown[most - 1 :] if len(shown) > most else []
    head = "Changes"
    for group, changed in shown[: len(shown) - len(rest)]:
        yield head, f"{group}: {'; '.join(changed)}"
        head = ""
    if rest:
        yield "", f"and {', '.join(group for group, _ in rest)}"


def _noticed(screen: Screen) -> str:
    needed = asking_for(screen.plan, screen.plan.stages).needed
    parts = []
    if "restart" in needed:
        again = ": log on again then and type winhost up" if screen.here else ""
        parts.append(f"a restart of {screen.plan.host} with all that runs on it{again}")
    for risk in _NOTICED[1:]:
        if risk in needed:
            parts.append(f"{risk}: {', '.join(short(title) for title in needed[risk][:3])}")
    return "; ".join(parts) or "nothing"


def _time(screen: Screen) -> str:
    sizes = [size for size in screen.downloads.values() if size is not None]
    restarts = sum(stage.restarts for stage in screen.plan.stages)
    parts = []
    if sum(sizes) > 1e8:
        minutes = max(1, round(sum(sizes) * 8 / (_MBIT * 1e6) / 60))
        parts.append(f"about {minutes} min for the known downloads at {_MBIT} Mbit/s")
    if restarts:
        parts.append(f"{restarts} restart{'s' if restarts > 1 else ''} of some minutes")
    return f"{'; '.join(parts)}; what else: not known" if parts else "not known"


def _approvals(screen: Screen, width: int | None) -> Iterator[tuple[str, str]]:
    asking = asking_for(screen.plan, screen.plan.stages)
    yield "Approvals", ", ".join(likely_risks(screen.plan)) or "none"
    if "data" in asking.needed:
        touched = ", ".join(short(title) for title in asking.needed["data"])
        yield from _paragraph("", f"data touches: {touched}. It is asked for by itself.", width)
    maybe = [risk for risk in asking.maybe if risk not in likely_risks(screen.plan)]
    if maybe:
        yield from _paragraph("", f"asked for later if it turns out to be needed: {', '.join(maybe)}", width)


def resources_of(plan: Plan) -> set[str]:
    """Return the resources of planned steps, and of those that are planned later."""
    return {step.resource for step in plan.steps} | {deferred.resource for deferred in plan.deferred}


def likely_risks(plan: Plan) -> tuple[str, ...]:
    """Return the risks that a plan will ask for, and vm-stop for a new VM, which nobody else uses yet."""
    makes_vm = "OwnVm" in resources_of(plan)
    own = ("vm-stop",) if makes_vm and "vm-stop" in plan.possible_risks else ()
    return sort_risks((*plan.risks, *own))


def verdict_sentence(plan: Plan, model: str, option: str) -> str:
    """Say the verdict in a sentence, by the gravest note of the plan."""
    found = next(filter(None, map(NOTE.fullmatch, plan.notes)), None)
    head = f"can serve {model} by {option}"
    if found is None or found["severity"] == "note":
        return f"{head}: supported."
    try:
        sentence = catalogue.entry(found["code"]).sentence
    except UsageError:  # a caution of the request
        sentence = found["text"]
    return f"{head}: {found['severity']}. {sentence}"
