"""Show the changes between two readings."""

from collections.abc import Callable, Iterable, Mapping

import click

from winhost.cli.output import say
from winhost.cli.tables import table
from winhost.cli.values import format_full_value, format_value
from winhost.compat.compare import Comparison, Difference, VerdictChange, is_missing
from winhost.core.answers import Json, Key
from winhost.model.errors import visible
from winhost.model.reason import Finding, Verdict


def show_comparison(compared: Comparison, everything: bool, wide: bool = False, host: str = "") -> None:
    """A table of differences, then what each path lost and gained; first of all, whether it is one machine at all.

    wide: with whole texts; host: whose, of several.
    """
    if compared.two_machines:
        ids = " and ".join(map(visible, compared.machines))
        whose = f"{host}: " if host else ""
        say(
            f"warning: {whose}these are two machines, not two snapshots of one: their ids are {ids}",
            err=True,
            fg="yellow",
        )
    differences = compared.differences if everything else compared.lasting
    rows = (_row(each, format_full_value if wide else _value) for each in differences)
    table(("what", "property", "before", "after"), rows) if differences else say("No fact changed.")
    for change in compared.verdicts:
        _show_change(change)
    if not compared.verdicts:
        say("No verdict changed.")
    before, after = compared.recommended
    if before != after:
        say(f"Recommended: {before or 'no path'} → {after or 'no path'}.")


def _row(difference: Difference, format_: Callable[[Json], str]) -> tuple[str, str, str, str]:
    name = difference.resource + (f" {_key(difference.key)}" if difference.key else "")
    volatile = " (volatile)" if difference.volatile else ""
    if difference.property is None and difference.key is not None:
        return name, "", "", difference.what
    return name, f"{difference.property or ''}{volatile}", format_(difference.before), format_(difference.after)


def _key(key: Key) -> str:
    """Whole: where two are told apart, the beginning alone may be the same."""
    return " ".join(map(visible, key.values()))


def _value(value: Json) -> str:
    if is_missing(value):
        return _missing(value)
    if isinstance(value, list | dict):
        return _listed(value)
    one_line = isinstance(value, str) and "\n" not in value
    return visible(str(value)) if one_line else format_value(value)


def _missing(value: Mapping[str, Json]) -> str:
    error = value.get("unknown")
    if not isinstance(error, Mapping):
        return f"needs {value.get('unavailable')}"
    return f"unknown ({error.get('message') or error.get('category')})"


def _listed(value: Json) -> str:
    parts: Iterable[str] = (
        (f"{name} {_value(each)}" for name, each in value.items())
        if isinstance(value, dict)
        else (_value(each) for each in value)
    )
    return ", ".join(parts) or "none"


def _show_change(change: VerdictChange) -> None:
    verdict = _format_change(change.before, change.after)
    click.secho(f"{change.path}: {verdict}", bold=True)
    for sign, reasons in (("-", change.gone), ("+", change.new)):
        for reason in reasons:
            say(f"  {sign} {_reason(reason)}")
    for each in (*change.subjects, *change.capabilities):
        say(f"  {each.name}: {_format_change(each.before, each.after)}")


def _format_change(before: Verdict | None, after: Verdict | None) -> str:
    if before is after:
        return f"{after}, as before"
    return f"{before or 'none'} → {after or 'none'}"


def _reason(reason: Finding) -> str:
    return f"{reason.severity} [{reason.code}] {reason.subject}: {reason.observed}"
