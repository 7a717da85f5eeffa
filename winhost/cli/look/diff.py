"""winhost diff: compare two snapshots of a host, or of each of several hosts."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import click

from winhost.cli.envelope import show_results
from winhost.cli.errors import as_winhost_error
from winhost.cli.named_files import expand_files, facts_by_host, refuse_repeated_hosts
from winhost.cli.options import Output
from winhost.cli.output import say, show_finding
from winhost.cli.tables import format_full_value, format_value, table
from winhost.compat.compare import Diff, Difference, VerdictChange, compare, is_missing
from winhost.core.answers import Json
from winhost.findings.show import finding_view
from winhost.model.errors import DriftError, Exit, WinhostError, visible
from winhost.model.facts import Facts
from winhost.model.reason import Verdict
from winhost.resources.factsfile import read_facts


def diff(before: Path, after: Path, everything: bool, output: Output) -> int:
    many = before.is_dir() and after.is_dir()
    compared = (
        (host, found if isinstance(found, WinhostError) else compare(*found))
        for host, found in _snapshot_pairs(before, after)
    )
    return show_results(
        "diff",
        output.shape,
        compared,
        lambda found: _show_diff(found, everything, output.wide, many),
        code=lambda found: int(Exit.DRIFT if _has_changes(found, everything) else Exit.SUCCESS),
    )


def _has_changes(compared: Diff, everything: bool) -> bool:
    return bool((compared.differences if everything else compared.lasting) or compared.verdicts)


def _show_diff(compared: Diff, everything: bool, wide: bool, many: bool) -> None:
    """Show a table of differences, then the reasons that each path lost and gained. wide: show texts in full; many:
    show a host without differences in one line.
    """
    host = compared.after.host
    if many and not _has_changes(compared, everything) and not compared.two_machines:
        say(f"{host}: nothing changed.")
        return
    for sign, reading in zip("-+", (compared.before, compared.after), strict=True):
        say(f"{sign} {reading.host}, {reading.origin} at {reading.read_at}", bold=True)
    if compared.two_machines:
        ids = " and ".join(visible(str(each)) for each in compared.machines)
        what = "these are two machines, not two snapshots of one: their ids are"
        say(f"warning: {f'{host}: ' if many else ''}{what} {ids}", err=True, fg="yellow")
    differences = compared.differences if everything else compared.lasting
    rows = (_difference_row(each, format_full_value if wide else _format_nested_value) for each in differences)
    table(("what", "property", "before", "after"), rows) if differences else say("No fact changed.")
    for change in compared.verdicts:
        _show_change(change)
    if not compared.verdicts:
        say("No verdict changed.")
    before, after = compared.recommended
    if before != after:
        say(f"Recommended: {before or 'no path'} → {after or 'no path'}.")


def _snapshot_pairs(before: Path, after: Path) -> Iterator[tuple[str, tuple[Facts, Facts] | WinhostError]]:
    """Yield the pairs of facts to compare, by host. Raises UsageError (NothingOfTheKind, SameHost), and for two files
    what `read_facts` raises.
    """
    if not (before.is_dir() or after.is_dir()):
        pair = read_facts(before), read_facts(after)
        yield pair[1].host, pair
        return
    old, new = _files_by_host(before), _files_by_host(after)
    hosts = list(dict.fromkeys((*new, *old)))
    if not after.is_dir():
        hosts = list(new)
    elif not before.is_dir():
        hosts = list(old)
    for host in hosts:
        yield host, _read_pair(host, old, new, (before, after))


def _files_by_host(path: Path) -> dict[str, Path]:
    """Return the facts file of each host; an unreadable file by its path, for `_read_pair` to report why."""
    if not path.is_dir():
        return {read_facts(path).host: path}
    files = expand_files([path], Facts)
    refuse_repeated_hosts(files)
    hosts = {file: host for host, file in facts_by_host(files)}
    return {hosts.get(file, str(file)): file for file in files}


def _read_pair(
    host: str, old: Mapping[str, Path], new: Mapping[str, Path], paths: tuple[Path, Path]
) -> tuple[Facts, Facts] | WinhostError:
    try:
        before, after = (read_facts(files[host]) if host in files else None for files in (old, new))
    except (WinhostError, OSError) as error:
        return as_winhost_error(error)
    if before and after:
        return before, after
    present_in, missing_in = paths if before else reversed(paths)
    return DriftError(
        "OnlyThere",
        what=f"{visible(host)} is in {visible(str(present_in))}, and not in {visible(str(missing_in))}",
        meaning="There is nothing to compare it with, which counts as a difference.",
        host=host,
    )


def _difference_row(difference: Difference, format_: Callable[[Json], str]) -> tuple[str, str, str, str]:
    # The key is not shortened, because two keys may begin alike.
    name = " ".join((difference.resource, *map(visible, (difference.key or {}).values())))
    volatile = " (volatile)" if difference.volatile else ""
    if difference.property is None and difference.key is not None:
        return name, "", "", difference.what
    return name, f"{difference.property or ''}{volatile}", format_(difference.before), format_(difference.after)


def _format_nested_value(value: Json) -> str:
    if is_missing(value):
        error = value.get("unknown")
        if isinstance(error, Mapping):
            return f"unknown ({error.get('message') or error.get('category')})"
        return f"needs {value.get('unavailable')}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_format_nested_value(each)}" for name, each in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(_format_nested_value, value)) or "none"
    is_one_line = isinstance(value, str) and "\n" not in value
    return visible(str(value)) if is_one_line else format_value(value)


def _show_change(change: VerdictChange) -> None:
    verdict = _format_verdicts(change.before, change.after)
    click.secho(f"{change.path}: {verdict}", bold=True)
    for sign, reasons in (("-", change.gone), ("+", change.new)):
        for reason in reasons:
            show_finding(replace(finding_view(reason), subject=reason.subject, remedy=""), lead=f"  {sign} ")
    for each in (*change.subjects, *change.capabilities):
        say(f"  {each.name}: {_format_verdicts(each.before, each.after)}")


def _format_verdicts(before: Verdict | None, after: Verdict | None) -> str:
    if before is after:
        return f"{after}, as before"
    return f"{before or 'none'} → {after or 'none'}"
