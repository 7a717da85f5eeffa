"""winhost diff: two readings of a host, or of each of several."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from winhost.cli.envelope import show_results
from winhost.cli.foreign_errors import as_winhost_error
from winhost.cli.named_files import by_host, check_hosts, files_of
from winhost.cli.output import say
from winhost.cli.outputs import Output
from winhost.cli.show_comparison import show_comparison
from winhost.compat.compare import Comparison, Diff, difference
from winhost.model.errors import DriftError, Exit, WinhostError, visible
from winhost.model.facts import Facts
from winhost.resources.factsfile import read_facts


def diff(before: Path, after: Path, everything: bool, output: Output) -> int:
    """Compare two snapshots: what changed, and which verdicts changed with it."""
    many = before.is_dir() and after.is_dir()
    codes = [0]
    compared: Comparison | None = None

    def results() -> Iterator[tuple[str, Diff | WinhostError]]:
        nonlocal compared
        for host, found in _readings(before, after):
            if isinstance(found, WinhostError):
                codes.append(int(found.exit_code))
                yield host, found
                continue
            compared, document = difference(*found)
            codes.append(int(Exit.DRIFT if _counted(compared, everything) else Exit.SUCCESS))
            yield host, document

    def show(found: Diff) -> None:
        assert compared is not None
        _show(found, compared, everything, output.wide, many)

    show_results("diff", output.shape, results(), show)
    return max(codes)


def _counted(compared: Comparison, everything: bool) -> bool:
    return bool((compared.differences if everything else compared.lasting) or compared.verdicts)


def _show(found: Diff, compared: Comparison, everything: bool, wide: bool, many: bool) -> None:
    """Show the differences; of many hosts one without any is a line."""
    if many and not _counted(compared, everything) and not compared.two_machines:
        say(f"{found.after.host}: nothing changed.")
        return
    for sign, reading in zip("-+", (found.before, found.after), strict=True):
        say(f"{sign} {reading.host}, {reading.origin} at {reading.read_at}", bold=True)
    show_comparison(compared, everything, wide, found.after.host if many else "")


def _readings(before: Path, after: Path) -> Iterator[tuple[str, tuple[Facts, Facts] | WinhostError]]:
    """The pairs of facts to compare, by host. Raises UsageError (NothingOfTheKind, SameHost), and for two files what
    reading them raises.
    """
    if not (before.is_dir() or after.is_dir()):
        readings = read_facts(before), read_facts(after)
        yield readings[1].host, readings
        return
    old, new = _known(before), _known(after)
    hosts = list(dict.fromkeys((*new, *old)))
    if not after.is_dir():
        hosts = list(new)
    elif not before.is_dir():
        hosts = list(old)
    for host in hosts:
        yield host, _pair(host, old, new, (before, after))


def _known(path: Path) -> dict[str, Path]:
    """Each host with its file; a file that cannot be read by its own name, to be told of in its turn."""
    if not path.is_dir():
        return {read_facts(path).host: path}
    files = files_of([path], Facts)
    check_hosts(files)
    known = {file: host for host, file in by_host(files)}
    return {known.get(file, str(file)): file for file in files}


def _pair(
    host: str, old: Mapping[str, Path], new: Mapping[str, Path], paths: tuple[Path, Path]
) -> tuple[Facts, Facts] | WinhostError:
    try:
        one, other = (read_facts(known[host]) if host in known else None for known in (old, new))
    except (WinhostError, OSError) as error:
        return as_winhost_error(error)
    if one and other:
        return one, other
    there, without = paths if one else reversed(paths)
    return DriftError(
        "OnlyThere",
        what=f"{visible(host)} is in {visible(str(there))}, and not in {visible(str(without))}",
        meaning="There is nothing to compare it with, which counts as a difference.",
        host=host,
    )
