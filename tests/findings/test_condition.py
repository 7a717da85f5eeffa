"""The condition language and its runner."""

from typing import Any

from packaging.version import Version

from tests.rows import each_row
from winhost.core.answers import NOT_READ, MissingFact
from winhost.findings.condition import Undecided, format_condition, format_sentence, matches, matching_rows
from winhost.findings.finding import Row
from winhost.model.reason import Severity


@each_row(
    ("value", "wanted", "holds"),
    [
        (26100, ">=22621, <26101", True),
        (26100, "<22000", False),
        ("2.7.14", ">=2.0", True),
        ("not a version", ">=2.0", False),
        (0.8, ">=0.75, <=9", True),
        (0.8, "<2.7.14", True),
        (None, ">=1", False),
        (None, None, True),
        (True, True, True),
        (1, True, False),
        ("TCC", ["WDDM", "TCC"], True),
        (Version("1"), "<2", True),
        ("open", {"not": "closed"}, True),
        ("closed", {"not": ["closed", "gone"]}, False),
        ("a-b", {"like": "a.b"}, True),
        ("", {"unlike": "a"}, False),
        ("a-b", {"contains": ["c", "a-"]}, True),
        ("a-b", {"contains": "c"}, False),
        (None, {"contains": "N"}, False),
        ("b", {"unlike": "a"}, True),
        ((1, 3), {"has": 3}, True),
        ((1, 3), {"has": [2, 3], "lacks": 1}, False),
        ((), {"lacks": 3}, True),
        (None, {"has": 3}, False),
        ((), [], True),
        ((1,), {"not": []}, True),
    ],
)
def test_a_fact_fits_a_value_one_of_several_or_a_range(value: object, wanted: object, holds: bool) -> None:
    assert matches(value, wanted) is holds


@each_row(
    ("sentence", "said"),
    [
        ("{gone} of {bytes:size}", "None of 512 MiB"),
        ("{gone:nobody}, {none:nothing}, {two:none}", "nobody, nothing, a, b"),
        ("{two:count} of {two:none}; {bytes:about}", "2 of a, b; 0.5 GiB"),
    ],
)
def test_a_sentence_names_answers(sentence: str, said: str) -> None:
    assert format_sentence(sentence, {"gone": None, "none": (), "two": ("a", "b"), "bytes": 512 << 20}) == said


ROWS = [
    Row("holds", Severity.NOTE, "", when={"gpus": ">1", "lora": False}),
    Row("does not", Severity.NOTE, "", when={"gpus": ">2", "vllm": "<1"}),
    Row("undecided", Severity.NOTE, "", when={"gpus": ">1", "vllm": "<1"}),
]


@each_row(
    ("undecided", "left"),
    [("blocks", ["holds", "undecided"]), ("notes", ["holds", "undecided"]), ("nothing", ["holds"])],
)
def test_each_question_is_asked_once_and_what_is_undecided_is_never_dropped_as_false(
    undecided: Undecided, left: list[str]
) -> None:
    asked: list[str] = []

    def ask(question: str) -> tuple[Any, ...]:
        asked.append(question)
        if question == "vllm":
            raise MissingFact("the version of vLLM", NOT_READ)
        return ({"gpus": 2, "lora": False}[question],)

    found = list(matching_rows([*ROWS, *ROWS], ask, undecided))
    assert [row.code for row, _ in found] == [*left, *left]
    assert asked == ["gpus", "lora", "vllm"]
    said = {row.code: (format_condition(row.when, result), result.doubt) for row, result in found}
    assert said["holds"] == ("gpus >1 (2); not lora", None)
    if "undecided" in left:
        assert said["undecided"][0] == "gpus >1 (2); vllm <1 (unknown)"
        assert "the version of vLLM" in str(said["undecided"][1])
