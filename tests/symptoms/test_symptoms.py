"""Each symptom is found in what people paste, its likeliest cause first; and nothing is found where all is well."""

import re
from collections import Counter
from collections.abc import Callable
from io import BytesIO
from itertools import permutations

import pytest

from tests.public_cases import CASES as PUBLIC
from tests.public_cases import scores
from tests.rows import each_row
from tests.symptoms.pastes import CASES, SAVED, Paste, pastes, read
from winhost.core.answers import RemoteFault
from winhost.findings.condition import find_mistake
from winhost.knowledge import catalogue
from winhost.model.masking import MASK, masked
from winhost.resources.registry import RESOURCE_TYPES
from winhost.symptoms.codes import normalize_single_code, spellings
from winhost.symptoms.diagnosis import Diagnosed, diagnose, explain_fault, explain_symptom
from winhost.symptoms.scan import Hit, _add_hit, pieces
from winhost.symptoms.table import Mark, Sign, Symptom, marks, symptoms

PASTES = pastes()
SYMPTOMS = symptoms()
HEALTHY = read("healthy.yaml")


def of(data: bytes) -> Diagnosed:
    return diagnose(pieces(BytesIO(data)), "log")


@each_row("paste", PASTES, ids=lambda paste: paste.symptom)
def test_what_is_pasted_is_known_with_its_likeliest_cause(paste: Paste) -> None:
    found = of(paste.data).found
    assert [each.code for each in found] == [paste.symptom, *paste.also]
    first = found[0].causes[0]
    assert paste.cause in (first.sentence, f"@{first.reason}")
    assert first.tell
    assert first.remedy


@pytest.mark.costly
@pytest.mark.parametrize("saved", SAVED)
def test_how_a_text_was_saved_changes_nothing(saved: str) -> None:
    for paste in PASTES:
        told = [each.code for each in of(Paste(**{**vars(paste), "saved": saved}).data).found]
        assert told == [paste.symptom, *paste.also]


def test_every_symptom_has_a_case() -> None:
    assert {paste.symptom for paste in PASTES} == SYMPTOMS.keys()


@each_row("healthy", HEALTHY, ids=lambda healthy: healthy["about"])
def test_a_healthy_log_says_nothing(healthy: dict[str, str]) -> None:
    answer = of(healthy["text"].encode())
    assert (answer.found, answer.unknown_codes) == ((), ())


@each_row("symptom", SYMPTOMS.values(), ids=lambda symptom: symptom.id)
def test_a_symptom_is_whole(symptom: Symptom) -> None:
    assert symptom.says.endswith(".")
    for sign in symptom.signs:
        assert (sign.code is None) != (not sign.text)
        assert find_mistake(sign.when, asked_of_a_line(sign)) is None
    for cause in symptom.causes:
        assert cause.cause.endswith((".", ")"))
        assert cause.tell
        assert bool(cause.remedy) != bool(cause.do) or cause.reason
        assert cause.evidence or cause.reason
        assert not cause.remedy or cause.remedy in catalogue.remedies()
        assert {*cause.evidence} <= catalogue.evidence().keys()
        assert find_mistake(cause.when, is_fact) is None


@each_row("mark", marks().values(), ids=lambda mark: mark.id)
def test_the_signs_of_a_mark_are_whole(mark: Mark) -> None:
    assert [find_mistake(sign.when, asked_of_a_line(sign)) for sign in mark.signs] == [None] * len(mark.signs)


def expression(sign: Sign) -> str:
    """The expression that its line has to match; empty where there is none."""
    found: str = sign.when.get("line", {}).get("like", "")
    return found


def asked_of_a_line(sign: Sign) -> Callable[[str], bool]:
    groups = re.compile(expression(sign)).groupindex
    compared = {f"{one}{how}{other}" for one, other in permutations(groups, 2) for how in "/-"}
    return {"line", "near", *compared}.__contains__


def is_fact(question: str) -> bool:
    resource, _, name = question.partition(".")
    resource = {"gpu": "PciDevice", "vm": "Vm"}.get(resource, resource)
    state = RESOURCE_TYPES[resource].state if resource in RESOURCE_TYPES else None
    return state is not None and (name in state.__dataclass_fields__ or hasattr(state, name))


def test_no_sign_is_the_beginning_of_a_word() -> None:
    """A sign is looked for as whole words, so that one which a name goes on from is never found."""
    every = [*SYMPTOMS.values(), *marks().values()]
    signs = [(each.id, sign) for each in every for sign in each.signs if sign.text]
    open_ended = [
        (name, sign.text)
        for name, sign in signs
        if re.search(r"(?<!_)_$", sign.text) or re.search(re.escape(sign.text) + r"_?\\w[*+]", expression(sign))
    ]
    assert open_ended == []


def test_no_two_symptoms_have_the_same_sign() -> None:
    signs = Counter(sign for symptom in SYMPTOMS.values() for sign in symptom.signs)
    assert {sign: times for sign, times in signs.items() if times > 1} == {}


def codes() -> list[tuple[str, int]]:
    return [(symptom.id, code) for symptom in SYMPTOMS.values() for code in _codes(symptom)]


def _codes(symptom: Symptom) -> list[int]:
    return [sign.code for sign in symptom.signs if sign.code is not None]


@each_row(("symptom", "code"), codes())
def test_a_code_is_known_however_it_is_written(symptom: str, code: int) -> None:
    hexadecimal, signed, unsigned = spellings(code)
    for text in (hexadecimal, hexadecimal.upper().replace("X", "x"), hexadecimal[2:].upper(), signed, unsigned):
        assert [found.code for found in of(normalize_single_code(text).encode()).found] == [symptom]
    assert of(f"Ошибка: ({hexadecimal})。".encode()).found[0].code == symptom


def test_a_line_is_known_by_its_longest_literal_in_whatever_order_they_are_found() -> None:
    symptom, literals = symptoms()["hyperv.not-found"], ["0x80070490", "element not found", "not found"]
    for order in permutations(literals):
        hits: dict[str, Hit] = {}
        for literal in order:
            _add_hit(hits, symptom, 2, "a line", literal)
        (hit,) = hits.values()
        assert (hit.literal, hit.literals, hit.count) == ("element not found", {*literals}, 1)


def test_a_line_of_a_cause_makes_its_consequence_superfluous() -> None:
    every = of("\n".join(paste.text for paste in PASTES).encode()).found
    open_to = [found for found in every if any(cause.standing != "ruled-out" for cause in found.causes)]
    ranks = [found.severity.rank for found in open_to]
    assert ranks == sorted(ranks, reverse=True)
    assert every[: len(open_to)] == tuple(open_to)  # what the text contradicts comes last


def test_no_line_of_a_case_is_masked_but_for_its_secrets() -> None:
    lines = [line for paste in PASTES for line in paste.text.splitlines()]
    assert [line for line in lines if masked(line) != line and MASK not in line] == [
        line for line in lines if masked(line) != line
    ]


@each_row(
    ("fault", "symptom"),
    [
        (RemoteFault("NotSpecified", "Unspecified", ("0x80131501", "0xC035001E")), "hyperv.feature-not-available"),
        (RemoteFault("X", "OutOfMemory", ("0x8007000E",), "Start-VM", "メモリ不足"), "hyperv.too-little-memory"),
        (RemoteFault("X", "Winhost.WslFailed", (), "wsl.exe", "Fehlercode: Wsl/0x80070569"), "wsl.service-logon"),
        (RemoteFault("X", "Y", (), "docker", "Error: toomanyrequests: rate limit"), "docker.pull-limit"),
        (RemoteFault("X", "Y", ("0x80131501",), "Start-VM", "Der Zugriff wurde verweigert."), None),
    ],
)
def test_what_a_host_reports_is_known_by_its_codes_before_its_words(fault: RemoteFault, symptom: str | None) -> None:
    found = explain_fault(fault)
    assert (found.code if found else None) == symptom


@each_row("name", SYMPTOMS)
def test_a_symptom_is_explained_by_its_name(name: str) -> None:
    (found,) = explain_symptom(name).found
    assert (found.code, found.line, found.count, found.observed) == (name, 0, 0, "")
    assert found.signs
    assert name not in catalogue.entries()


@each_row("symptom", SYMPTOMS.values(), ids=lambda symptom: symptom.id)
def test_a_sign_that_asks_for_nothing_else_is_enough(symptom: Symptom) -> None:
    for sign in symptom.signs:
        if not sign.when:
            text = sign.text or f"0x{sign.code:08X}"
            assert [found.code for found in of(f"2026-11-20 {text}: x".encode()).found] == [symptom.id]


def test_uvloop_is_missing_because_of_windows_only_where_a_drive_is_named() -> None:
    missing = b"ModuleNotFoundError: No module named 'uvloop'\n"
    there = of(b'File "C:\\venv\\Lib\\site-packages\\vllm\\main.py", line 4, in <module>\n' + missing)
    assert [each.code for each in there.found] == ["python.windows-only"]
    assert not of(b'File "/venv/site-packages/vllm/main.py", line 4, in <module>\n' + missing).found


def test_a_container_that_ended_is_told_from_any_command() -> None:
    for line in (
        "vllm-1 exited with code 1",
        "web_vllm_1 exited with code 127",
        "compose[7]: vllm exited with code 2 (restarting)",
    ):
        assert [each.code for each in of(line.encode()).found] == ["docker.container-exited"], line
    for line in (
        'MSB3073: The command "copy /Y a b" exited with code 1.',
        "npm run build exited with code 1",
        "[nodemon] app crashed - exited with code 1",
        "Process exited with code 255",
    ):
        assert not of(line.encode()).found, line


def test_logs_of_other_programs_are_not_claimed() -> None:
    """500 lines of dpkg, apt, the kernel, npm, nginx and PostgreSQL: at most one in a hundred."""
    lines = (CASES / "unrelated.txt").read_text("utf-8").splitlines()
    answers = {line: of(line.encode()) for line in lines}
    claimed = [line for line, answer in answers.items() if answer.found or answer.unknown_codes]
    assert len(lines) >= 500
    assert len(claimed) * 100 <= len(lines), claimed


@pytest.mark.costly
def test_public_cases_of_other_commands_are_answered_right() -> None:
    assert {name: got for name, got in scores("commands").items() if got not in ("right", "partly")} == {}


def test_public_cases_are_answered_right_and_none_confidently_wrong() -> None:
    found = scores("explain")
    assert [name for name, got in found.items() if got == "confidently wrong"] == []
    good = [name for name, got in found.items() if got in ("right", "partly")]
    assert len(good) >= 0.85 * len(found), sorted(found.keys() - {*good})
    later = scores(*(file.stem for file in sorted(PUBLIC.glob("found-*.yaml"))))
    assert [name for name, got in later.items() if got == "confidently wrong"] == []
