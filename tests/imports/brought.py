"""Files brought in, as the command does it."""

from collections.abc import Callable, Iterable
from pathlib import Path

from winhost.imports.merge import merged
from winhost.imports.sources import read
from winhost.model.facts import Facts

DATA = Path(__file__).parent.parent / "data" / "imports"


def imported(
    files: Iterable[Path], host: str | None = "somewhere", warn: Callable[[str], None] = lambda _: None
) -> Facts:
    """Raises UsageError."""
    told = [(path.name, *read(path.name, path.read_bytes())) for path in files]
    return merged(told, host, "2026-11-21T10:00:00+00:00", warn)
