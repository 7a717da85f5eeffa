"""Commands on hostile input, in a process that may take no more than a little memory beyond what it starts with.

Reads a list of commands as JSON; writes what each said: its exit code, and how many characters it printed.
"""

import contextlib
import io
import json
import resource
import sys
from pathlib import Path

from winhost.cli import run

# What every command loads is there before memory is bounded. The worst case takes about 370 MiB; nearer to that the
# bound itself is the fault: pydantic's core, out of memory, may wait for itself for ever while it tells of it.
MORE = 800 << 20


def main() -> None:
    commands = json.load(sys.stdin)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MORE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    said = []
    for words in commands:
        stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
            code = run(words)
        stream.flush()
        printed = stream.buffer.getvalue()  # type: ignore[attr-defined]
        said.append({"code": code, "bytes": len(printed), "told": printed[:500].decode(errors="replace")})
    json.dump(said, sys.__stdout__)


main()
