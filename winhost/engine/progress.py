"""Progress events of a run, for the user."""

from winhost.core.dataclass import dataclass
from winhost.core.steps import Step


@dataclass(frozen=True)
class ProgressEvent:
    """An event of a run.

    kind: at (an activity that changes nothing, such as reading), step, preparing (a file here), sending, done, skipped,
    kept, restart, waiting, stage, note or failed; number, total: of the step; percent: of a file that is prepared or
    sent; run: its name, if it has a journal.
    """

    host: str
    kind: str
    text: str
    step: Step | None = None
    number: int = 0
    total: int = 0
    percent: int | None = None
    run: str = ""
