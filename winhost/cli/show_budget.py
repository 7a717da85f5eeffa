"""A workload's memory for people: each place with what it holds and has, each line, and what would fit."""

import click

from winhost.cli.output import say
from winhost.cli.tables import table
from winhost.model.units import gib, gib_range
from winhost.sizing.budget import Budget
from winhost.sizing.fit import WhatWouldFit
from winhost.sizing.memory_places import MemoryPlace


def show_budget(budget: Budget, short: WhatWouldFit | None) -> None:
    """Show the budget of the path that fits best."""
    click.secho(f"\nMemory of the workload with {budget.variant}:", bold=True)
    rows = ((place.where, gib_range(place.least, place.used), _given(place), _left(place)) for place in budget.places)
    table(("memory", "used", "available", "free"), rows)
    table(
        ("memory", "model", "what", "size", "how"),
        (
            (
                line.where,
                line.model or "",
                line.what,
                gib_range(line.least, line.bytes),
                f"{line.how}{' (estimate)' if line.estimate else ''}",
            )
            for line in budget.lines
        ),
    )
    if short:
        _show_shortage(short)


def _given(place: MemoryPlace) -> str:
    return "unknown" if place.capacity is None else gib_range(place.capacity, place.most or 0)


def _left(place: MemoryPlace) -> str:
    match place.fits:
        case True:
            return gib(place.margin or 0)
        case False if place.may_fit is not False:
            return f"may fit: {gib(place.used - (place.capacity or 0))} short at most"
        case False:
            return f"does not fit: {gib(place.used - (place.capacity or 0))} short"
        case _:
            return "unknown"


def _show_shortage(short: WhatWouldFit) -> None:
    for lack in short.missing:
        say(f"  Please state: {lack.model}: {lack.what}: {lack.why}")
    if short.fixes:
        click.echo("  Changes that would make it fit, each on its own, smallest first:")
        for fix in short.fixes:
            say(f"    - {fix.text}")
