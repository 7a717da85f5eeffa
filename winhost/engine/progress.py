"""The events of a run, as whoever watches it hears of them."""

from winhost.core.dataclass import dataclass
from winhost.core.steps import Step


@dataclass(frozen=True)
class ProgressEvent:
    """Something that happened in a run, for whoever watches it.

    kind: at (something that changes nothing, such as reading), step, preparing (a file here), sending, done, skipped,
    kept, restart, waiting, stage, note or failed; count: step `number` of `total`; percent: of a file that is prepared
    or sent; run: its name, where it has begun.
    """

    host: str
    kind: str
    text: str
    step: Step | None = None
    number: int = 0
    total: int = 0
    percent: int | None = None
    run: str = ""
