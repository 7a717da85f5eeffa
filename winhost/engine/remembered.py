"""The last answers of Windows on a machine where a Linux takes turns with it: while that runs, nobody else can tell."""

from dataclasses import replace
from pathlib import Path

from winhost.core.dataclass import dataclass
from winhost.engine.private import private_folder
from winhost.engine.store import Store
from winhost.model.documents import write_document
from winhost.model.facts import Answer, Facts
from winhost.model.files import write_whole
from winhost.resources.factsfile import read_facts
from winhost.resources.registry import WINDOWS, is_beside_windows


@dataclass(frozen=True)
class RememberedWindows:
    """The last answers of one host's Windows, in the folder of runs: facts hold no secrets. Windows cannot change while
    it does not run, except by what the Linux changes of it.
    """

    store: Store
    host: str

    @property
    def _path(self) -> Path:
        return self.store.remembered(self.host)

    def answers(self) -> dict[str, Answer]:
        """The answers by resource; none of a host without a Linux beside Windows. Raises UsageError for a file that is
        none.
        """
        return dict(read_facts(self._path).resources) if self._path.is_file() else {}

    @property
    def read_at(self) -> str | None:
        """When Windows said so, as facts have it. Raises as `answers`."""
        return read_facts(self._path).read_at if self._path.is_file() else None

    def keep(self, facts: Facts) -> None:
        """Keep the facts of Windows where a Linux was or is being installed beside it; else remove them. Raises
        UsageError (NotPrivate), OSError.
        """
        if not is_beside_windows(facts):
            self._path.unlink(missing_ok=True)
            return
        private_folder(self._path.parent)
        resources = {name: answer for name, answer in facts.resources.items() if name in WINDOWS}
        write_whole(self._path, [write_document(replace(facts, resources=resources))], mode=0o600)
