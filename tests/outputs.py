"""Every answer about the examples and the cases, to compare two states of winhost: `python -m tests.outputs record DIR`
in each of them, then `python -m tests.outputs compare OLD NEW [--mapping FILE]`.

A mapping in YAML says what was meant to change in JSON, for each kind of answer or for `all`. `*` stands for a position
in a list: `fields` are moved (`findings.*.where: findings.*.subject`), then `values` replaced (`{field: {old: new}}`);
`dropped` and `added` list fields. Every other difference is shown.
"""

import io
import json
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias
from unittest.mock import patch

import click

from tests.autoinstall.test_lint import CASES as INSTALLS
from tests.autoinstall.test_lint import Case as Install
from tests.cases import read_cases
from tests.house.tree import ROOT
from tests.public_cases import CASES as PUBLIC
from tests.recipes.test_recipes import CASES as RECIPES
from tests.symptoms.pastes import pastes, read
from tests.wslconfig.test_wslconfig import CASES as SETTINGS
from winhost.cli import run, watch
from winhost.knowledge import catalogue
from winhost.knowledge.lint_codes import lint_codes
from winhost.lab.hostfile import expand_all
from winhost.model.documents import write_document
from winhost.paths.vocabulary import VOCABULARIES
from winhost.symptoms.table import symptoms

Command: TypeAlias = tuple[str, ...]
ANSWERED = (0, 1, 3)  # 3: no path works, which is an answer; all else is an error
_VM = re.compile(rb'"vm": "([^"]+)"')
_POSITION = re.compile(r"(?<=\.)\d+(?=\.|$)")
_HERE = {"WINHOST_STATE": "state", "WINHOST_DATA": "data", "WINHOST_FLEET": "", "COLUMNS": "120", "NO_COLOR": "1"}


@dataclass
class Asked:
    """The commands of each kind, and the files that they name, which are called after their cases."""

    files: dict[str, bytes] = field(default_factory=dict)
    commands: dict[str, list[Command]] = field(default_factory=lambda: defaultdict(list))

    def file(self, folder: str, name: str, data: bytes) -> str:
        path = f"{folder}/{re.sub(r'[^A-Za-z0-9._-]+', '-', name)}"
        assert self.files.setdefault(path, data) == data, f"two files are called {path}"
        return path

    def ask(self, *words: str, kind: str = "", forms: Iterable[Command] = ((), ("--json",))) -> None:
        own = kind or "-".join(words[: 2 if words[0] in ("lint", "serve") else 1])
        self.commands[own] += [(*words, *form) for form in forms]


def asked() -> Asked:
    every = Asked()
    facts = {name: write_document(host).encode() for name, (host, _) in expand_all().items()}
    facts |= {file.stem: file.read_bytes() for file in sorted((ROOT / "examples/linux").glob("*.json"))}
    hosts = {name: every.file("hosts", f"{name}.json", data) for name, data in sorted(facts.items())}
    loads = sorted((ROOT / "examples/workloads").glob("*.yaml"))
    workloads = [every.file("workloads", file.name, file.read_bytes()) for file in loads]
    for name, host in hosts.items():
        every.ask("assess", host, forms=((), ("--json",), ("--explain",)))
        every.ask("assess", host, kind="assess-full", forms=(("--full", "--json"),))
        for path in VOCABULARIES:
            vm = _VM.search(facts[name]) if path == "dda" else None
            every.ask("plan", host, "--path", path, "--allow-unverified", *(("--vm", vm[1].decode()) if vm else ()))
        every.ask("plan", host)
        for workload in workloads:
            every.ask("assess", host, "--workload", workload)
            every.ask("serve", "profile", host, "--workload", workload)
    _ask_linters(every, hosts)
    _ask_explain(every, hosts)
    return every


def _ask_linters(every: Asked, hosts: Mapping[str, str]) -> None:
    for name, case in RECIPES.items():
        command = {"daemon": "docker-daemon", "cdi": "cdi"}.get(name.partition(":")[0], "serve")
        file = every.file("recipes", name, case["text"].encode(case.get("encoding", "utf-8")))
        version = ("--vllm", str(case["vllm"])) if "vllm" in case and command == "serve" else ()
        on = hosts.get(case.get("host", {}).get("base") or case.get("linux", ("",))[0])
        where = ("--facts", on) if on else ("--path", case["path"]) if "path" in case else ()
        every.ask("lint", command, file, *version, *where)
    for name, case in SETTINGS.items():
        command = case.get("file", "wslconfig")
        file = every.file("settings", name, case["text"].encode(case.get("encoding", "utf-8")))
        version = ("--wsl", case["wsl"]) if "wsl" in case else ()
        every.ask("lint", command, file, *version, *((hosts[case["host"]],) if "host" in case else ()))
    for name, case in INSTALLS.items():
        install = Install(**{key: value for key, value in case.items() if key != "is"})
        file = every.file("installs", name, install.file(case["is"]).encode())
        every.ask("lint", "autoinstall", file, *(("--installer", install.installer) if install.installer else ()))


def _ask_explain(every: Asked, hosts: Mapping[str, str]) -> None:
    names = {"code": (*catalogue.entries(), *catalogue.gaps(), *lint_codes()), "symptom": symptoms()}
    for kind, each in names.items():
        for name in each:
            every.ask("explain", name, kind=f"explain-{kind}")
    public = {name: case for file in sorted(PUBLIC.glob("*.yaml")) for name, case in read_cases(file).items()}
    texts = {paste.symptom: paste.data for paste in pastes()}
    texts |= {name: case["text"].encode() for name, case in public.items() if "text" in case}
    for name, data in texts.items():
        file = every.file("texts", f"{name}.log", data)
        every.ask("explain", file)
        if host := hosts.get(public.get(name, {}).get("facts", "")):
            every.ask("explain", file, "--facts", host, kind="explain-with-facts")
    for case in read("ruled.yaml"):
        every.ask("explain", case["text"], "--facts", hosts[Path(case["host"]).stem], kind="explain-with-facts")


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
        patch.object(watch, "SILENT", 1e9),
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
    said, told, _ = (stream.read() for stream in streams)
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
                now = {path: value for path, value in now.items() if _starred(path) not in each.get("added", ())}
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
        if moved := meant.get("fields", {}).get(name):
            path = f"out.results.*.{moved}".replace("*", "{}").format(*_POSITION.findall(path))
        if name not in meant.get("dropped", ()):
            yield path, meant.get("values", {}).get(moved or name, {}).get(str(value), value)


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
            click.echo(f"{kind}: {count} with exit code {code}{'' if code in ANSWERED else ', an error'}")
        return
    found = differences(*folders, read_cases(mapping) if mapping else {})
    for (kind, name), changes in found.items():
        click.echo(f"{kind}: {name}: {len(changes)} differences, the first: {changes[0]}")
    click.echo(f"{sum(map(len, found.values()))} differences")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
