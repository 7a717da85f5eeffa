"""Run winhost on a pseudo-terminal and answer its questions."""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from tests.processes import exit_code

_QUESTION = "[y/N]: "
_ASKS = (_QUESTION, "[Y/n]: ", "[1]: ", " on 127.0.0.1: ")  # how a question ends, the last one for a password
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Talk:
    """The text on the terminal, and the exit code of the command."""

    code: int
    text: str

    @property
    def questions(self) -> list[str]:
        """The questions, each with the beginning of its line."""
        plain = _ESCAPES.sub("", self.text).replace("\r", "")
        return [part.rpartition("\n")[2] for part in plain.split(_QUESTION)[:-1]]


def agree(*words: object, password: str = "") -> Talk:
    """Run winhost and accept each default, with yes for every question."""
    return talk(*words, answers=None, password=password)


def talk(*words: object, answers: Sequence[str] | None = (), width: int = 4000, password: str | None = None) -> Talk:
    """Run winhost and answer its questions in order; a further question is an error. answers: None to accept every
    question.
    """
    import pty

    child, main = pty.fork()
    if child == 0:
        environment = {**os.environ, "COLUMNS": str(width), "NO_COLOR": "1"}
        os.execve(sys.executable, [sys.executable, "-m", "winhost", *map(str, words)], environment)
    left, text = list(answers or ()), ""
    while got := _read(main):
        text += got
        if password is not None and text.endswith(": ") and "Password of " in text.rpartition("\n")[2]:
            os.write(main, password.encode() + b"\n")
        elif text.endswith(_ASKS) and answers is None:
            os.write(main, b"1\n" if text.endswith("[1]: ") else b"y\n")
        elif text.endswith(_ASKS):
            if not left:
                os.close(main)
                exit_code(child)
                raise AssertionError(f"asked once more: {text}")
            os.write(main, left.pop(0).encode() + b"\n")
    os.close(main)
    code = exit_code(child)
    assert not left, f"never asked for {left}: {text}"
    return Talk(code, text)


def _read(terminal: int) -> str:
    try:
        return os.read(terminal, 65536).decode()
    except OSError:  # the other end is closed
        return ""


def stays(written: str) -> list[str]:
    """Return the lines that remain on a wide terminal after winhost's output, whose cursor movements it follows."""
    lines, row, column = [""], 0, 0
    for sign, count, order in re.findall(r"(\r|\n|[^\x1b\r\n]+)|\x1b\[\??(\d*)[;\d]*([A-Za-z])", written):
        if sign == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif sign == "\r":
            column = 0
        elif sign:
            lines[row] = lines[row][:column].ljust(column) + sign + lines[row][column + len(sign) :]
            column += len(sign)
        elif order == "A":
            row = max(0, row - int(count or 1))
        elif (order, count) == ("K", "2"):
            lines[row] = ""
    return [line.rstrip() for line in lines]
