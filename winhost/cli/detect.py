"""winhost detect: read hosts."""

from collections.abc import Iterator
from pathlib import Path

from winhost.cli.envelope import show_results
from winhost.cli.foreign_errors import from_os_error
from winhost.cli.output import say, show_next, write_file
from winhost.cli.outputs import Output
from winhost.cli.show_facts import show_facts
from winhost.cli.snapshots import Snapshot, read_hosts, watched, worst
from winhost.core.dataclass import dataclass
from winhost.engine.remembered import RememberedWindows
from winhost.engine.store import Store
from winhost.engine.two_systems import runs_linux
from winhost.model.documents import write_document
from winhost.model.errors import WinhostError
from winhost.model.facts import Facts


@dataclass(frozen=True)
class Detected:
    """A host as it was read, by `detect` or from files by `facts import`."""

    host: str
    facts: Facts


def detect(hosts: tuple[str, ...], force: bool, fleet_file: Path | None, at_once: int, output: Output) -> int:
    """Read HOSTS: hardware, Windows, VMs and WSL."""
    codes, seen = [0], list[str]()

    def results() -> Iterator[tuple[str, Detected | WinhostError]]:
        for read in watched(lambda watch: read_hosts(hosts, fleet_file, at_once, watch)):
            error = read.error or written(output.path, read, force)
            codes.append(worst([error]))
            seen.extend([] if error else [read.host])
            yield read.host, error or Detected(read.host, read.known)

    show_results("detection", output.shape, results(), lambda found: _show(found, output))
    if seen and output.shape in ("table", "wide") and output.path is None:
        show_next(("assess", *(seen if any(codes) else hosts)), fleet_file)
    return max(codes)


def _show(found: Detected, output: Output) -> None:
    show_facts(found.facts, output.path, output.wide)
    if runs_linux(found.facts):
        since = RememberedWindows(Store(), found.host).read_at
        say(f"  Its Linux runs now. What is shown of Windows is what that said last: {since or 'when, is not known'}")


def written(folder: Path | None, read: Snapshot, force: bool) -> WinhostError | None:
    """Write a host's facts, and return the error if that fails: those of other hosts can still be written."""
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / f"{read.host}.json", write_document(read.facts), "facts", force)
    except WinhostError as error:
        return error
    except OSError as error:
        return from_os_error(error)
    return None
