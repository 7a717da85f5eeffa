"""Find the files that words mean: files, and folders that one command wrote for another."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from winhost.cli.output import say
from winhost.cli.shells import command_line
from winhost.model.documents import is_document
from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.facts import Facts
from winhost.model.files import read_within
from winhost.model.units import Bytes
from winhost.resources.factsfile import read_facts
from winhost.resources.host import HostFacts

STDIN = "-"
_SEPARATORS = tuple(filter(None, (os.sep, os.altsep)))


def is_there(word: str, kind: Callable[[Path], bool] = Path.exists) -> bool:
    """Tell whether a word is the path of something of this kind; it may be longer than a name can be."""
    try:
        return kind(Path(word))
    except (OSError, ValueError):
        return False


def is_readable(path: Path) -> bool:
    """Tell whether this is a file, or a pipe or device that can be read as one, such as `<(PROGRAM)` of a shell."""
    return path.exists() and not path.is_dir()


def invite_paste() -> None:
    """Say how standard input ends if it is a terminal."""
    if sys.stdin.isatty():
        say("Paste the text, then end it with Ctrl-D (on Windows Ctrl-Z and Enter).", err=True)


def read_input(path: Path, most: Bytes) -> bytes:
    """Read a file, or standard input for `-`. Raises TooLarge, OSError."""
    if str(path) != STDIN:
        return read_within(path, most)
    invite_paste()
    return sys.stdin.buffer.read(most)


def files_of(paths: Iterable[Path], kind: type[Any]) -> list[Path]:
    """Return facts files or plans: paths of files, and what folders contain. Raises UsageError: NothingOfTheKind."""
    found: list[Path] = []
    for path in paths:
        inside = _inside(path, kind) if path.is_dir() else [path]
        if not inside:
            here, made = visible(command_line((str(path),))), kind is Facts
            command = f"winhost detect HOST -o {here}" if made else f"winhost plan HOST... -o {here.rstrip('/')}/"
            raise UsageError(
                "NothingOfTheKind",
                what=f"there are no {'facts' if made else 'plans'} in {visible(str(path))}",
                hint=f"It needs a file HOST.json for each host, which this writes: {command}",
            )
        found += inside
    return found


def the_file(path: Path, kind: type[Any]) -> Path:
    """Return the only file of a path, for commands that take one. Raises UsageError: NothingOfTheKind, SeveralFiles."""
    files = files_of([path], kind)
    if len(files) > 1:
        raise UsageError(
            "SeveralFiles",
            what=f"this command takes one file, and there are {len(files)} in {visible(str(path))}",
            hint=f"Name one of: {', '.join(visible(str(file)) for file in files)}",
        )
    return files[0]


def facts_named(word: Path | None, option: Path | None = None) -> HostFacts | None:
    """Read the facts that a word or the option --facts means, as `facts_file` finds them; None if neither is given."""
    file = facts_file(word, option)
    return HostFacts(read_facts(file)) if file else None


def facts_file(word: Path | None, option: Path | None, name: str = "--facts") -> Path | None:
    """Return the facts file that a word or the option `name` means; None if neither is given.

    FOLDER means the only file in it, FOLDER/HOST that of a host. Raises UsageError: SaidTwice, and what `the_file`
    does.
    """
    if word and option:
        raise UsageError(
            "SaidTwice",
            what=f"{visible(str(word))} and {name} {visible(str(option))} name the same thing twice",
            hint="Name one of them.",
        )
    path = word or option
    if path and not path.exists() and path.parent.is_dir():
        path = next((file for host, file in by_host(_inside(path.parent, Facts)) if host == path.name), path)
    return the_file(path, Facts) if path else None


def check_hosts(files: Iterable[Path], others: Iterable[str] = ()) -> None:
    """Check that no two facts files and other hosts are of one host. Raises UsageError: SameHost. Names that differ
    only in case count as one, as file names do on Windows.
    """
    found: dict[str, list[str]] = {}
    for host, path in (*((host, host) for host in others), *((host, str(file)) for host, file in by_host(files))):
        found.setdefault(host.casefold(), []).append(path)
    for host, paths in found.items():
        if len(paths) > 1:
            raise UsageError(
                "SameHost",
                what=f"{len(paths)} of these are of {visible(host)}: {', '.join(map(visible, paths))}",
                hint="Name one of them.",
                host=host,
            )


def by_host(files: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """Yield facts files with their hosts. One that cannot be read is left out: the next reader says why."""
    for file in files:
        with suppress(WinhostError, OSError):
            yield read_facts(file).host, file


def holds(path: Path, kind: type[Any]) -> bool:
    """Tell whether a file is of this kind, or a folder contains one that is."""
    return bool(_inside(path, kind)) if path.is_dir() else path.is_file() and is_document(path, kind)


def _inside(folder: Path, kind: type[Any]) -> list[Path]:
    return [file for file in sorted(folder.glob("*.json")) if is_document(file, kind)]


def hosts_and_files(words: Sequence[str], kind: type[Any]) -> tuple[list[str], list[Path]]:
    """Return words that stand for hosts, and the files that other words mean: files, folders with such files, and what
    no host can be called, as a path or a name that ends in .json or .yaml. Raises UsageError: NothingOfTheKind.
    """
    hosts, paths = [], list[Path]()
    for word in words:
        path = Path(word)
        written_as_path = word.endswith((".json", ".yaml")) or any(mark in word for mark in _SEPARATORS)
        if written_as_path or path.is_file() or (path.is_dir() and _inside(path, kind)):
            paths.append(path)
        else:
            hosts.append(word)
    return hosts, files_of(paths, kind)
