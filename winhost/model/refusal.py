"""Refusals, which rule out a plan by the request itself, and cautions, which do not."""

from winhost.core.dataclass import dataclass
from winhost.model.reason import Severity


class Refusal(Exception):
    """A request that no plan can fulfil.

    code: of the catalogue; sentence and remedy: with the numbers and names of this host.
    """

    def __init__(self, code: str, sentence: str, remedy: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence
        self.remedy = remedy


@dataclass(frozen=True)
class Caution:
    """A consequence of a request that users should know before they apply the plan; fields as of Refusal."""

    code: str
    severity: Severity
    sentence: str
