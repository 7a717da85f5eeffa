"""Every answer about the examples and the cases, to compare two states of winhost: `python -m tests.outputs record DIR`
in each of them, then `python -m tests.outputs compare OLD NEW [--mapping FILE]`.

A mapping in YAML says what was meant to change in JSON, for each kind of answer or for `all`. `*` stands for a position
in a list: `fields` are moved (`findings.*.where: findings.*.subject`; what is empty and moves into an object becomes a
null instead of the object), then `values` replaced (`{field: {old: new}}`); `dropped` and `added` list fields, with all
that is in them. Every other difference is shown.
"""

import io
import json
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import click

from tests.cases import read_cases
from tests.output_commands import Command, asked
from winhost.cli import run, watch

_ANSWERED = (0, 1, 3)  # 3: no path works, which is an answer; all else is an error
_MADE_AT = re.compile(r'("made_at": ")[^"]+')  # of a plan, the only time in an answer
_POSITION = re.compile(r"(?<=\.)\d+(?=\.|$)")
_HERE = {"WINHOST_STATE": "state", "WINHOST_DATA": "data", "WINHOST_FLEET": "", "COLUMNS": "120", "NO_COLOR": "1"}


def record(to: Path, most: int | None = None) -> Counter[tuple[str, int]]:
    """Write a file for each kind of answer, with a line for each command, or for the first of them.

    Returns how many ended with each exit code.
    """
    codes, every, to = Counter[tuple[str, int]](), asked(), to.resolve()
    to.mkdir(parents=True)
    with (
        TemporaryDirectory() as folder,
        chdir(folder),
        patch.dict(os.environ, _HERE),
        patch.object(watch, "SILENCE_S", 1e9),
    ):
        for path, data in every.files.items():
            Path(path).parent.mkdir(exist_ok=True)
            Path(path).write_bytes(data)
        for kind, commands in every.commands.items():
            with (to / f"{kind}.jsonl").open("w", encoding="utf-8") as lines:
                for command in dict.fromkeys(commands[:most]):
                    answer = answered(command)
                    codes[kind, answer["code"]] += 1
                    lines.write(json.dumps({"command": command, **answer}, ensure_ascii=False) + "\n")
    return codes


def answered(command: Command) -> dict[str, Any]:
    """The exit code, what stands on stderr, and the document or the text on stdout."""
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", newline="\n") for _ in range(3)]
    with redirect_stdout(streams[0]), redirect_stderr(streams[1]), patch.object(sys, "stdin", streams[2]):
        code = run(list(command))
    for stream in streams:
        stream.seek(0)
    said, told, _ = (_MADE_AT.sub(r"\1", stream.read()) for stream in streams)
    return {"code": code, "err": told, "out": json.loads(said) if "--json" in command and said else said}


def differences(old: Path, new: Path, meant: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, str], list[str]]:
    """The differences beyond the mapping: for each kind and field, where and how."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for kind in sorted({file.stem for folder in (old, new) for file in folder.glob("*.jsonl")}):
        before, after = (_lines(folder / f"{kind}.jsonl") for folder in (old, new))
        for command in {**before, **after}:
            was, now = (dict(_leaves(lines.get(command))) for lines in (before, after))
            for each in (meant.get("all", {}), meant.get(kind, {})):
                was = dict(_mapped(was, each))
                now = {path: value for path, value in now.items() if not _is_in(_starred(path), each.get("added", ()))}
            for path in {**was, **now}:
                if change := _change(*(repr(leaves.get(path, "nothing")) for leaves in (was, now))):
                    found[kind, _starred(path)].append(f"{command}: {path}: {change}")
    return found


def _lines(file: Path) -> dict[str, Any]:
    lines = map(json.loads, file.read_text("utf-8").splitlines()) if file.exists() else ()
    return {" ".join(line.pop("command")): line for line in lines}


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each text, number, and empty list or object, with its path."""
    parts = value.items() if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else ()
    for name, part in parts:
        yield from _leaves(part, f"{path}.{name}".removeprefix("."))
    if not parts:
        yield path, value


def _starred(path: str) -> str:
    """The field, whatever its positions in lists."""
    return _POSITION.sub("*", path).removeprefix("out.results.*.")


def _mapped(leaves: Mapping[str, Any], meant: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for path, value in leaves.items():
        name = _starred(path)
        moved = meant.get("fields", {}).get(name, "")
        if moved.count(".") > name.count(".") and not value:
            moved, value = moved.rpartition(".")[0], None
        if moved:
            path = f"out.results.*.{moved}".replace("*", "{}").format(*_POSITION.findall(path))
        if not _is_in(name, meant.get("dropped", ())):
            yield path, meant.get("values", {}).get(moved or name, {}).get(str(value), value)


def _is_in(name: str, fields: Iterable[str]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in fields)


def _change(was: str, now: str) -> str:
    if was == now:
        return ""
    first = next(at for at, pair in enumerate(zip_longest(was, now)) if pair[0] != pair[1])
    return " → ".join(text[max(0, first - 60) : first + 100] for text in (was, now))


@click.command()
@click.argument("do", type=click.Choice(["record", "compare"]))
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--mapping", type=click.Path(path_type=Path, exists=True))
def main(do: str, folders: tuple[Path, ...], mapping: Path | None) -> None:
    if do == "record":
        for (kind, code), count in sorted(record(*folders).items()):
            click.echo(f"{kind}: {count} with exit code {code}{'' if code in _ANSWERED else ', an error'}")
        return
    found = differences(*folders, read_cases(mapping) if mapping else {})
    for (kind, name), changes in found.items():
        click.echo(f"{kind}: {name}: {len(changes)} differences, the first: {changes[0]}")
    click.echo(f"{sum(map(len, found.values()))} differences")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
