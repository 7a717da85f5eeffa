"""The one answer of a program that is no agent, such as that of `winhost probe`."""

from typing import TypeVar

from winhost.connect.checked_answers import FailedAnswer, NotTheAgents, checked, not_text, parsed
from winhost.connect.wire_errors import BAD_ANSWER, RemoteError
from winhost.core.answers import RemoteFault
from winhost.model.documents import plain

A = TypeVar("A")


def one_answer(host: str, text: str, kind: type[A], doing: str) -> A:
    """Parse one answer of this kind. Raises RemoteError."""
    try:
        (answer,) = parsed(text, 1)
        found = checked(answer, kind)
    except NotTheAgents as why:
        raise _bad(host, str(why), doing) from None
    if isinstance(found, FailedAnswer):
        raise RemoteError(host, found.error, doing)
    if not isinstance(found, kind):
        raise _bad(host, "it says that it did not try", doing)
    if unlike := not_text(plain(found)):
        raise _bad(host, unlike, doing)
    return found


def _bad(host: str, why: str, doing: str) -> RemoteError:
    return RemoteError(host, RemoteFault("InvalidResult", BAD_ANSWER, message=why), doing)
