"""Every option and command that an error, a refusal or a verdict prints leads to another result than the same error."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from tests.cases import read_cases
from tests.cli.conftest import Line
from tests.house.advice import MENTION, commands, every_text, options_of, sites
from tests.house.tree import ROOT
from tests.hub.stand_in_hub import COMMIT, StandInHub
from tests.rows import each_row
from tests.serving.one_plan import MODEL
from tests.serving.stacks import FILES, IMAGE
from winhost.cli.plan.options import RequestBuilder
from winhost.cli.plan.stack_parts import StackParts
from winhost.core.answers import MissingFact
from winhost.engine.planning import make_plan
from winhost.lab.hostfile import expand, find, host_files
from winhost.model.documents import write_document
from winhost.model.errors import WinhostError
from winhost.model.yamlfile import kinds_at
from winhost.paths.playbook import PathRequest
from winhost.paths.vocabulary import VOCABULARIES
from winhost.resources.host import HostFacts

CASES: dict[str, list[dict[str, Any]]] = read_cases(ROOT / "tests/data/advice.yaml")
SILENT: list[Any] = CASES.pop("no advice")
NEW_VM = "--new-vm llm --cpus 4 --memory 64GiB --disk 200GiB"
PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me"


def rows() -> list[Any]:
    return [pytest.param(name, case, id=f"{name} {n}") for name, found in CASES.items() for n, case in enumerate(found)]


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for a hub, a registry and a secret store."""
    monkeypatch.setenv("ALICE", "key-of-alice-that-nobody-guesses")
    monkeypatch.setattr(StackParts, "files", property(lambda parts: {m.name: FILES for m in parts.workload.models}))


def prepare(case: dict[str, Any], folder: Path) -> dict[str, str]:
    """Create the files that a command names."""
    (folder / "id.pub").write_text(f"{PUBLIC}\n", encoding="utf-8")
    model = {**MODEL, "revision": COMMIT, **case.get("model", {})}
    document = {"schema": "winhost.workload/1", "models": {"chat": model}, "versions": {"vllm": "0.33.0"}}
    document = {**document, **case.get("workload", {})}
    (folder / "w.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    serves = f"--api-key alice=env:ALICE --digest {IMAGE.pinned.partition('@')[2]}"
    given = {
        "pub": "id.pub",
        "serves": serves,
        "work": f"--workload w.yaml {serves}",
        "imports": f"{ROOT}/tests/data/imports/synthetic",
        "playbooks": f"{ROOT}/playbooks",
        "linux": f"{ROOT}/examples/linux/ubuntu-2xh100.json",
        "tmp": str(folder),
        "digest": IMAGE.pinned.partition("@")[2],
        "image": IMAGE.pinned,
        "sha256": "ab" * 32,
        "anyvm": NEW_VM,
        "vhdx": "--vhdx ./x.vhdx",
        "newvm": f"{NEW_VM} --vhdx ./x.vhdx",
        "ubuntu": "--path dual-boot --allow-unverified --set keys.by=entra",
        "system": f"--set system.hostname=a --set system.key=@id.pub --set system.sha256={'ab' * 32}",
    }
    (folder / "x.vhdx").write_bytes(b"vhdxfile" + bytes(2048))
    (folder / "run.sh").write_text("vllm serve org/model\n", encoding="utf-8")
    if "linux" in case:
        facts = json.loads(Path(given["linux"]).read_text("utf-8"))
        for resource, change in case["linux"].items():
            records = facts["resources"].get(resource, [])
            merged = (
                [{**each, "state": {**each["state"], **change}} for each in records]
                if isinstance(change, dict)
                else change
            )
            facts["resources"][resource] = merged
        given["linux"] = "linux.json"
        (folder / "linux.json").write_text(json.dumps(facts), encoding="utf-8")
    if "host" in case:
        delta = {"schema": "winhost.host/2", "origin": "synthetic", "about": "a case", "base": case["host"]}
        delta |= {"change": case["change"]} if "change" in case else {}
        (folder / "delta.yaml").write_text(yaml.safe_dump(delta), encoding="utf-8")
        host = folder / "delta.yaml" if "change" in case else find(case["host"])
        (folder / "facts.json").write_text(write_document(expand(host)[0]), encoding="utf-8")
        given["facts"] = "facts.json"
    return given


def said(line: Line, words: str, given: dict[str, str]) -> tuple[int, str]:
    filled = [word for each in words.split() for word in each.format(**given).split()]
    done = line(*filled)
    return done.code, " ".join(done.err.split())


@pytest.mark.costly
@pytest.mark.parametrize(("name", "case"), rows())
def test_advice_is_followed(
    line: Line,
    known: None,
    hub: StandInHub,
    name: str,
    case: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "test" in case:
        file, _, test = case["test"].partition("::")
        assert f"def {test}(" in (ROOT / file).read_text("utf-8")
        return
    monkeypatch.chdir(tmp_path)
    given = {**prepare(case, tmp_path), "hub": hub.url}
    code, error = said(line, case["words"], given)
    assert code != 0
    assert case["says"] in error
    after, then = said(line, case.get("instead") or f"{case['words']} {case['follow']}", given)
    assert case["says"] not in then
    assert "then" in case or after == 0, then
    assert case.get("then", "") in then


@pytest.mark.costly
def test_each_error_that_advises_an_option_has_its_case() -> None:
    advising = Counter(site.name[:60] for site in sites() if site.options)
    held = Counter({name: len(found) for name, found in CASES.items()}) + Counter(SILENT)
    assert advising.keys() == held.keys()
    assert {name: count for name, count in advising.items() if count > held[name]} == {}


BARE = {"runs", "lab list", "schema", "demo", "up", "down"}  # they go without an argument
SETTING = re.compile(r"--set '?([a-z_]+(?:\.[a-z_]+)*)=")


@pytest.mark.costly
def test_each_command_that_is_printed_can_be_typed() -> None:
    wrong = [f"{text.place}: {words}: {why}" for text in every_text() for words, why in faults_of_commands(text.text)]
    assert wrong == []


def faults_of_commands(text: str) -> Iterator[tuple[str, str]]:
    groups = {name.partition(" ")[0] for name in commands()} - commands().keys()
    for found in MENTION.finditer(text):
        words = found[1].split()
        name = next((" ".join(words[:length]) for length in (3, 2, 1) if " ".join(words[:length]) in commands()), None)
        if name is None:
            if words[0] in groups and words[1:2] != ["{}"] and is_typed(text, found):
                yield found[0], "is no command"
            continue
        command, given = commands()[name], words[len(name.split()) :]
        unknown = {each.partition("=")[0] for each in given if each.startswith("--")} - options_of(command)
        if unknown:
            yield found[0], f"has no {unknown}"
        about = any(isinstance(each, click.Argument) for each in command.params)
        if about and name not in BARE and is_typed(text, found) and not given:
            yield found[0], "lacks what it is about"


def is_typed(text: str, found: re.Match[str]) -> bool:
    """Tell whether a command is printed to be typed, after a colon, and not only mentioned."""
    return text[: found.start()].endswith((": ", ":\n", "  ")) and text[found.end() :][:1] in ("", ".", ",", ";", "\n")


def test_each_setting_that_is_printed_is_one_of_a_path() -> None:
    settings = [words.settings for words in VOCABULARIES.values()]
    printed = {(text.place, name) for text in every_text() for name in SETTING.findall(text.text)}
    unknown = {
        (place, name)
        for place, name in printed
        if name != "gpu" and not any(kinds_at(each, tuple(name.split("."))) for each in settings)
    }
    assert unknown == set()


@pytest.mark.costly
@each_row("host", [*host_files()], ids=lambda path: path.stem)
def test_a_refusal_that_advises_to_allow_what_is_unverified_can_be_planned_so(host: Path) -> None:
    facts = HostFacts(expand(host)[0])
    for path in ("wsl2", "dda", "dual-boot"):
        for vm in (None, *(each.key["vm"] for each in facts.vms)) if path == "dda" and knows_vms(facts) else (None,):
            try:
                make_plan(facts, asked(path, vm, unverified=False))
            except WinhostError as refused:
                if "Plan it all the same: --allow-unverified" in (refused.hint or ""):
                    make_plan(facts, asked(path, vm, unverified=True))


def knows_vms(facts: HostFacts) -> bool:
    try:
        return bool(facts.vms)
    except MissingFact:
        return False


def asked(path: str, vm: str | None, *, unverified: bool) -> PathRequest:
    return RequestBuilder(path, vm, allow_unverified=unverified).request(path)
