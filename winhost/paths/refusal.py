"""A decision that cannot be made: what no plan of a path could keep to."""


class Refusal(Exception):
    """`code` is in the catalogue; sentence and remedy say it with the numbers and names of this host."""

    def __init__(self, code: str, sentence: str, remedy: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence
        self.remedy = remedy
