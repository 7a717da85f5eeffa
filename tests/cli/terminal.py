"""winhost on a terminal of its own, with somebody who answers what it asks."""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

_QUESTION = "[y/N]: "
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Talk:
    """What stood on the terminal, and how the command ended."""

    code: int
    text: str

    @property
    def questions(self) -> list[str]:
        """Each in one line, from where its line began."""
        plain = _ESCAPES.sub("", self.text).replace("\r", "")
        return [part.rpartition("\n")[2] for part in plain.split(_QUESTION)[:-1]]


def talk(*words: object, answers: Sequence[str] = ()) -> Talk:
    """Answer each question with the next of the answers; whoever is asked more often than that hangs up."""
    import pty

    child, main = pty.fork()
    if child == 0:
        environment = {**os.environ, "COLUMNS": "4000", "NO_COLOR": "1"}
        os.execve(sys.executable, [sys.executable, "-m", "winhost", *map(str, words)], environment)
    left, text = list(answers), ""
    while got := _read(main):
        text += got
        if text.endswith(_QUESTION):
            if not left:
                os.close(main)
                os.waitpid(child, 0)
                raise AssertionError(f"asked once more: {text}")
            os.write(main, left.pop(0).encode() + b"\n")
    os.close(main)
    _, status = os.waitpid(child, 0)
    assert not left, f"never asked for {left}: {text}"
    return Talk(os.waitstatus_to_exitcode(status), text)


def _read(terminal: int) -> str:
    try:
        return os.read(terminal, 65536).decode()
    except OSError:  # the other end is closed
        return ""
