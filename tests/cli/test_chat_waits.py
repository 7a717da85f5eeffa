"""What a conversation keeps of an answer that was stopped, and how long a model that takes turns is waited for."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.serving.test_deployed import DEPLOYED
from winhost.cli.endpoint import chat
from winhost.cli.endpoint.chat import Asking, CompletionStream, Message, NotNow
from winhost.cli.endpoint.commands import ChatOptions
from winhost.cli.endpoint.open import Endpoint

STOP = KeyboardInterrupt()


def talking(monkeypatch: pytest.MonkeyPatch, *answers: Sequence[Any], turns: bool = False) -> tuple[Any, list[Any]]:
    """A talk whose answers are these, piece by piece; an exception is raised where it stands. What it was asked."""
    asked: list[Any] = []
    left = list(answers)

    def stream(asking: Asking, messages: Sequence[Message]) -> CompletionStream:
        asked.append([(each["role"], each["content"]) for each in messages])

        def pieces() -> Iterator[str]:
            for each in left.pop(0):
                if isinstance(each, BaseException):
                    raise each
                yield each

        return CompletionStream("llm-01", pieces())

    monkeypatch.setattr(Asking, "stream", stream)
    monkeypatch.setenv("ALICE", "key-of-alice")
    engines = tuple(replace(each, turns=turns) for each in DEPLOYED.engines)
    endpoint = Endpoint("llm-01", replace(DEPLOYED, engines=engines), None, "env:ALICE", lambda within: None)  # type: ignore[arg-type,return-value]
    return chat._Talk(endpoint, ChatOptions(system="Be brief.")), asked


def test_what_came_of_a_stopped_answer_counts_and_the_conversation_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk, asked = talking(monkeypatch, ["Once ", "upon", STOP], [NotNow("llm-01", "busy", 5)], ["The end."])
    lines = iter(["A story", "  ", "And then?", "Well?"])

    def typed(prompt: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", typed)
    talk.conversation()
    out, err = capsys.readouterr()
    assert out == "Once upon\nThe end.\n\n"
    assert "Stopped." in err
    assert "error: llm-01 does not answer now: busy" in err
    story = [("system", "Be brief."), ("user", "A story"), ("assistant", "Once upon")]
    assert asked[-1] == [*story, ("user", "Well?")]  # what was not answered is not asked again


def test_a_model_that_takes_turns_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("winhost.cli.endpoint.chat.time.sleep", slept.append)
    later = NotNow("llm-01", "its turn is to come", 7)
    talk, asked = talking(monkeypatch, [later], [later], ["Hello"], turns=True)
    talk.shown("Hi")
    assert (slept, len(asked)) == ([7, 7], 3)
    out, err = capsys.readouterr()
    assert (out, "waiting for its turn" in err) == ("Hello\n", True)
    talk, _ = talking(monkeypatch, [later], turns=False)
    with pytest.raises(NotNow):
        talk.shown("Hi")
