"""A conversation keeps the text of a stopped answer, and waits for the turn of a model that takes turns."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.serving.test_deployed import DEPLOYED
from winhost.cli.endpoint import chat
from winhost.cli.endpoint.chat import ChatClient, CompletionStream, Message, ServiceUnavailable
from winhost.cli.endpoint.commands import ChatOptions
from winhost.cli.endpoint.open import Endpoint

STOP = KeyboardInterrupt()


def make_conversation(
    monkeypatch: pytest.MonkeyPatch, *answers: Sequence[Any], turns: bool = False
) -> tuple[Any, list[Any]]:
    """Make a conversation with these answers, piece by piece, and the list of its requests. Raises the exceptions in
    `answers`.
    """
    requests: list[Any] = []
    remaining = list(answers)

    def stream(client: ChatClient, messages: Sequence[Message]) -> CompletionStream:
        requests.append([(each["role"], each["content"]) for each in messages])

        def pieces() -> Iterator[str]:
            for each in remaining.pop(0):
                if isinstance(each, BaseException):
                    raise each
                yield each

        return CompletionStream("llm-01", pieces())

    monkeypatch.setattr(ChatClient, "stream", stream)
    monkeypatch.setenv("ALICE", "key-of-alice")
    engines = tuple(replace(each, turns=turns) for each in DEPLOYED.engines)
    endpoint = Endpoint("llm-01", replace(DEPLOYED, engines=engines), None, "env:ALICE", lambda within: None)  # type: ignore[arg-type,return-value]
    return chat._Conversation(endpoint, ChatOptions(system="Be brief.")), requests


def test_what_came_of_a_stopped_answer_counts_and_the_conversation_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation, requests = make_conversation(
        monkeypatch, ["Once ", "upon", STOP], [ServiceUnavailable("llm-01", "busy", 5)], ["The end."]
    )
    lines = iter(["A story", "  ", "And then?", "Well?"])

    def type_line(prompt: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", type_line)
    conversation.converse()
    out, err = capsys.readouterr()
    assert out == "Once upon\nThe end.\n\n"
    assert "Stopped." in err
    assert "error: llm-01 does not answer now: busy" in err
    story = [("system", "Be brief."), ("user", "A story"), ("assistant", "Once upon")]
    assert requests[-1] == [*story, ("user", "Well?")]  # what was not answered is not asked again


def test_a_model_that_takes_turns_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("winhost.cli.endpoint.chat.time.sleep", slept.append)
    later = ServiceUnavailable("llm-01", "its turn is to come", 7)
    conversation, requests = make_conversation(monkeypatch, [later], [later], ["Hello"], turns=True)
    conversation.print_answer("Hi")
    assert (slept, len(requests)) == ([7, 7], 3)
    out, err = capsys.readouterr()
    assert (out, "waiting for its turn" in err) == ("Hello\n", True)
    conversation, _ = make_conversation(monkeypatch, [later], turns=False)
    with pytest.raises(ServiceUnavailable):
        conversation.print_answer("Hi")
