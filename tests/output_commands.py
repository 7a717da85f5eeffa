"""The commands that `python -m tests.outputs record` gives: every example host, workload and case that there is."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from tests.autoinstall.test_lint import CASES as INSTALLS
from tests.cases import read_cases
from tests.findings.linted import Case, data_of, whole
from tests.findings.test_linter_rows import rows
from tests.house.tree import ROOT
from tests.public_cases import CASES as PUBLIC
from tests.recipes.test_recipes import EVERY as RECIPES
from tests.symptoms.pastes import pastes, read
from tests.wslconfig.test_wslconfig import CASES as SETTINGS
from winhost.knowledge import catalogue
from winhost.knowledge.lint_codes import lint_codes
from winhost.lab.hostfile import expand_all
from winhost.model.documents import write_document
from winhost.paths.vocabulary import VOCABULARIES
from winhost.symptoms.table import symptoms

Command: TypeAlias = tuple[str, ...]
_VM = re.compile(rb'"vm": "([^"]+)"')


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
    for name, (command, case) in RECIPES.items():
        version = ("--vllm", str(case["vllm"])) if "vllm" in case and command == "serve" else ()
        on = hosts.get(case.get("host") or case.get("linux", ""))
        where = ("--facts", on) if on else ("--path", case["path"]) if "path" in case else ()
        every.ask("lint", command, every.file("recipes", name, data_of(case)), *version, *where)
    for name, case in _with_rows(SETTINGS, "wslconfig").items():
        command, version = case.get("file", "wslconfig"), ("--wsl", case["wsl"]) if "wsl" in case else ()
        file = every.file("settings", name, data_of(case))
        every.ask("lint", command, file, *version, *((hosts[case["host"]],) if "host" in case else ()))
    for name, case in _with_rows(INSTALLS, "autoinstall").items():
        version = ("--installer", case["installer"]) if "installer" in case else ()
        every.ask("lint", "autoinstall", every.file("installs", name, whole(case)[1].encode()), *version)


def _with_rows(cases: Mapping[str, Case], linter: str) -> dict[str, Case]:
    of_linter = {f"row: {code}": row.case for code, (row, *_) in rows().items() if code.startswith(f"{linter}.")}
    return {**cases, **of_linter}


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
