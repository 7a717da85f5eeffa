"""What a path says of a request, beside the rules on its host: a decision that cannot be made, and one to think
over.
"""

from dataclasses import dataclass

from winhost.model.reason import Severity


class Refusal(Exception):
    """What no plan of a path could keep to.

    `code` is in the catalogue; sentence and remedy say it with the numbers and names of this host.
    """

    def __init__(self, code: str, sentence: str, remedy: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence
        self.remedy = remedy


@dataclass(frozen=True)
class Caution:
    """What a plan does as it is told to, and says beforehand; `code` and sentence as of a Refusal."""

    code: str
    severity: Severity
    sentence: str
