"""`make pictures`: what docs/pictures shows, drawn from a real run: the desktop of `winhost demo` on a terminal."""

import os
import pty
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI

from tests.house.tree import ROOT
from tests.processes import exit_code

COLUMNS = 88
FILE = ROOT / "docs/pictures/up.svg"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_STEP = re.compile(r"^\S+ (✓ \[|·|↻|…|✓ restarted)|^  … \d+ more")
_PLACE = re.compile(r"/tmp/winhost-demo-\w+")


def played() -> str:
    """Return what the demo writes to a terminal with colours."""
    child, main = pty.fork()
    if child == 0:
        environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
        environment.pop("NO_COLOR", None)
        os.execve(sys.executable, [sys.executable, "-m", "winhost", "demo"], environment)
    text = b""
    while True:
        try:
            got = os.read(main, 65536)
        except OSError:  # the other end is closed
            break
        if not got:
            break
        text += got
    assert exit_code(child) == 0, text.decode()
    return text.decode().replace("\r", "")


def desktop(text: str) -> Iterator[str]:
    """The lines of its first chapter, each long row of steps as one."""
    begun, left_out = False, False
    for line in text.splitlines():
        plain = _ESCAPES.sub("", line)
        if plain.startswith("$ winhost"):
            begun = True
        if plain.startswith("━━ 2."):
            return
        if not begun:
            continue
        if _STEP.search(plain):
            if not left_out:
                yield "…"
            left_out = True
            continue
        left_out = False
        yield _PLACE.sub("/tmp/demo", line)


def main() -> None:
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True, color_system="256")
        for line in AnsiDecoder().decode("\n".join(desktop(played()))):
            console.print(line, overflow="fold")
    drawn = console.export_svg(title="winhost on a simulated Windows 11", theme=DIMMED_MONOKAI)
    FILE.parent.mkdir(exist_ok=True)
    # Nothing is loaded from elsewhere: the fonts are those of the reader.
    FILE.write_text(re.sub(r"@font-face \{.*?\}|<!--.*?-->", "", drawn, flags=re.DOTALL), "utf-8")


if __name__ == "__main__":
    main()
