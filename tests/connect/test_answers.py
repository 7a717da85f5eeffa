"""What the agent says is held against a schema where it comes in; what does not fit is told by host and by place."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cases import read_cases
from tests.rows import each_row
from winhost.cli.output import error_text
from winhost.connect import checked_answers
from winhost.connect.agent import NOT_TEXT, Agent
from winhost.connect.wire_errors import BAD_ANSWER, RemoteError
from winhost.core.answers import Unknown
from winhost.resources.shape import check_records

CASES = read_cases(Path(__file__).parent.parent / "data" / "connect" / "answers.yaml")
KEYS = {"call", "says", "answer", "fails", "tells"}

CALLS: dict[str, Callable[[Agent], Any]] = {
    "read": lambda agent: agent.read(["Boot"]),
    "get": lambda agent: agent.get("Boot", {}),
    "set": lambda agent: agent.set("Boot", {}, {}, {}, {}),
    "send": lambda agent: agent.received("Boot", {}, {}),
    "restart": lambda agent: agent.restart(),
}


@dataclass
class Saying:
    """A wire that brings this, whatever is asked."""

    text: str
    host: str = "gpu-01"

    def invoke(self, request: str, within: float) -> str:
        return self.text

    def close(self) -> None:
        pass


def told(text: str, call: str = "get") -> tuple[str, str]:
    """The code and the message that come of it."""
    agent = Agent(Saying(text), 60, check_records)
    try:
        read = CALLS[call](agent)
    except RemoteError as error:
        return named(error)
    assert call == "read"
    assert isinstance(read["Boot"], Unknown)
    return read["Boot"].unknown.code, read["Boot"].unknown.message


def named(error: RemoteError) -> tuple[str, str]:
    assert error_text(error).startswith("error: gpu-01: ")
    assert all(line.isprintable() for line in error_text(error).split("\n"))
    return error.fault.code, error.fault.message


@each_row("name", CASES)
def test_an_answer_that_is_none_is_said_by_host_and_place(name: str) -> None:
    case = CASES[name]
    assert set(case) <= KEYS
    text = case["says"] if "says" in case else json.dumps({"answers": [case["answer"]]})
    code, message = told(text, case["call"])
    assert code in (BAD_ANSWER, NOT_TEXT)
    assert case["tells"] in message
    if case.get("fails"):
        with pytest.raises(RemoteError):
            Agent(Saying(text), 60, check_records).read(["Boot"])


@pytest.mark.parametrize("depth", [30, 2_000, 90_000])
def test_an_answer_that_is_nested_without_end_is_refused(depth: int) -> None:
    for opened, closed in (("[", "]"), ('{"a":', "}")):
        value = opened * depth + "1" + closed * depth
        code, message = told('{"answers": [{"ok": true, "state": {"a": ' + value + "}}]}")
        assert code == BAD_ANSWER
        assert "nested deeper" in message or "larger than" in message


def test_an_answer_that_is_too_long_is_refused_before_it_is_read() -> None:
    long = '{"answers": [{"ok": true, "state": {"a": "' + "x" * checked_answers.MAX_CHARACTERS + '"}}]}'
    many = '{"answers": [{"ok": true, "state": {"a": [' + "{}," * checked_answers.MAX_VALUES + "1]}}]}"
    for text in (long, many):
        assert "is larger than any of the agent's" in told(text)[1]


def test_half_a_character_in_an_error_costs_nothing_but_itself() -> None:
    text = '{"answers": [{"ok": false, "error": {"category": "X", "code": "Y", "message": "no \\ud800 there"}}]}'
    assert told(text) == ("Y", "no \N{REPLACEMENT CHARACTER} there")
