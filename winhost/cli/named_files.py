"""Find the files that arguments name: files, and folders that one command wrote for another."""

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


def path_exists(name: str, kind: Callable[[Path], bool] = Path.exists) -> bool:
    """Tell whether an argument is the path of an existing file or folder. kind: checks the path, such as Path.is_dir.
    An argument that is too long for a path is none.
    """
    try:
        return kind(Path(name))
    except (OSError, ValueError):
        return False


def is_readable(path: Path) -> bool:
    """Tell whether this is a file, or a pipe or device that can be read as one, such as `<(PROGRAM)` of a shell."""
    return path.exists() and not path.is_dir()


def prompt_for_paste() -> None:
    """Tell the user how to end standard input if it is a terminal."""
    if sys.stdin.isatty():
        say("Paste the text, then end it with Ctrl-D (on Windows Ctrl-Z and Enter).", err=True)


def read_input(path: Path, max_bytes: Bytes) -> bytes:
    """Read a file, or standard input for `-`. Raises TooLarge, OSError."""
    if str(path) != STDIN:
        return read_within(path, max_bytes)
    prompt_for_paste()
    return sys.stdin.buffer.read(max_bytes)


def expand_files(paths: Iterable[Path], kind: type[Any]) -> list[Path]:
    """Return files as they are, and for each folder the files of this kind in it. kind: Facts or Plan. Raises
    UsageError: NothingOfTheKind.
    """
    files: list[Path] = []
    for path in paths:
        documents = _documents_in(path, kind) if path.is_dir() else [path]
        if not documents:
            folder, is_facts = visible(command_line((str(path),))), kind is Facts
            command = (
                f"winhost detect HOST -o {folder}" if is_facts else f"winhost plan HOST... -o {folder.rstrip('/')}/"
            )
            raise UsageError(
                "NothingOfTheKind",
                what=f"there are no {'facts' if is_facts else 'plans'} in {visible(str(path))}",
                hint=f"It needs a file HOST.json for each host, which this writes: {command}",
            )
        files += documents
    return files


def single_file(path: Path, kind: type[Any]) -> Path:
    """Return the file, or the only file of this kind in a folder. Raises UsageError: NothingOfTheKind, SeveralFiles."""
    files = expand_files([path], kind)
    if len(files) > 1:
        raise UsageError(
            "SeveralFiles",
            what=f"this command takes one file, and there are {len(files)} in {visible(str(path))}",
            hint=f"Name one of: {', '.join(visible(str(file)) for file in files)}",
        )
    return files[0]


def read_named_facts(argument: Path | None, option: Path | None = None) -> HostFacts | None:
    """Read the facts that an argument or the option --facts names, as `facts_file` finds them; None if neither does."""
    file = facts_file(argument, option)
    return HostFacts(read_facts(file)) if file else None


def facts_file(argument: Path | None, option: Path | None, option_name: str = "--facts") -> Path | None:
    """Return the facts file that an argument or an option names; None if neither does.

    FOLDER means the only file in it, FOLDER/HOST the file of a host. Raises UsageError: SaidTwice, and what
    `single_file` does.
    """
    if argument and option:
        raise UsageError(
            "SaidTwice",
            what=f"{visible(str(argument))} and {option_name} {visible(str(option))} name the same thing twice",
            hint="Name one of them.",
        )
    path = argument or option
    if path and not path.exists() and path.parent.is_dir():
        path = next(
            (file for host, file in facts_by_host(_documents_in(path.parent, Facts)) if host == path.name), path
        )
    return single_file(path, Facts) if path else None


def refuse_repeated_hosts(files: Iterable[Path], other_hosts: Iterable[str] = ()) -> None:
    """Raise UsageError (SameHost) if two facts files or other hosts are of one host. Names that differ only in case
    count as one, as file names do on Windows.
    """
    paths_by_host: dict[str, list[str]] = {}
    for host, path in (
        *((host, host) for host in other_hosts),
        *((host, str(file)) for host, file in facts_by_host(files)),
    ):
        paths_by_host.setdefault(host.casefold(), []).append(path)
    for host, paths in paths_by_host.items():
        if len(paths) > 1:
            raise UsageError(
                "SameHost",
                what=f"{len(paths)} of these are of {visible(host)}: {', '.join(map(visible, paths))}",
                hint="Name one of them.",
                host=host,
            )


def facts_by_host(files: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """Yield facts files with their hosts. A file that cannot be read is left out; whoever reads it next raises the
    error.
    """
    for file in files:
        with suppress(WinhostError, OSError):
            yield read_facts(file).host, file


def contains(path: Path, kind: type[Any]) -> bool:
    """Tell whether a file is of this kind, or a folder contains one that is."""
    return bool(_documents_in(path, kind)) if path.is_dir() else path.is_file() and is_document(path, kind)


def _documents_in(folder: Path, kind: type[Any]) -> list[Path]:
    return [file for file in sorted(folder.glob("*.json")) if is_document(file, kind)]


def split_hosts_and_files(names: Sequence[str], kind: type[Any]) -> tuple[list[str], list[Path]]:
    """Split arguments into names of hosts and files. Files are existing files, folders with files of this kind, and
    anything that cannot be the name of a host: a path, or a name that ends in .json or .yaml. Raises UsageError:
    NothingOfTheKind.
    """
    hosts, paths = [], list[Path]()
    for name in names:
        path = Path(name)
        looks_like_path = name.endswith((".json", ".yaml")) or any(separator in name for separator in _SEPARATORS)
        if looks_like_path or path.is_file() or (path.is_dir() and _documents_in(path, kind)):
            paths.append(path)
        else:
            hosts.append(name)
    return hosts, expand_files(paths, kind)
