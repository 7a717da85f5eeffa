"""The one answer of a program that is no agent, such as that of `winhost probe`."""

from typing import TypeVar

from winhost.connect.checked_answers import FailedAnswer, NotTheAgents, checked, not_text, parsed
from winhost.connect.wire_errors import RemoteError, bad_answer
from winhost.model.documents import plain

A = TypeVar("A")


def one_answer(host: str, text: str, kind: type[A], doing: str) -> A:
    """Parse one answer of this kind. Raises RemoteError."""
    try:
        (answer,) = parsed(text, 1)
        found = checked(answer, kind)
    except NotTheAgents as why:
        raise bad_answer(host, str(why), doing) from None
    if isinstance(found, FailedAnswer):
        raise RemoteError(host, found.error, doing)
    if not isinstance(found, kind):
        raise bad_answer(host, "it says that it did not try", doing)
    if unlike := not_text(plain(found)):
        raise bad_answer(host, unlike, doing)
    return found
