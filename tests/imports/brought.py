"""Files brought in, as the command does it."""

from collections.abc import Callable, Iterable
from pathlib import Path

from winhost.imports.merge import merge_files
from winhost.imports.observation import FileObservations
from winhost.imports.sources import read
from winhost.model.facts import Facts

DATA = Path(__file__).parent.parent / "data" / "imports"


def imported(
    files: Iterable[Path], host: str | None = "somewhere", warn: Callable[[str], None] = lambda _: None
) -> Facts:
    """Raises UsageError."""
    told = [(path.name, *each) for path in files for each in read(path.name, path.read_bytes())]
    return merge_files(told, host, "2026-11-21T10:00:00+00:00", warn)


def first(file: str, data: bytes, kind: str | None = None) -> tuple[str, FileObservations]:
    """What the first kind of output in a file tells. Raises UsageError."""
    return read(file, data, kind)[0]
