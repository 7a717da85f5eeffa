"""The plan that `winhost plan` made for one host."""

from winhost.core.dataclass import dataclass
from winhost.model.plan import Plan
from winhost.model.reason import Verdict


@dataclass(frozen=True)
class PlannedHost:
    """A plan, and the file that it was written to, if it was. The file holds the plan alone.

    recommended: the verdict for which the path was taken, where nobody named one.
    """

    host: str
    path: str
    variant: str | None
    recommended: Verdict | None
    file: str | None
    plan: Plan
