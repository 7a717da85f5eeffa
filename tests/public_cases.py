"""Public cases put to winhost, and how its answers score. `python -m tests.public_cases` prints the score of each."""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias

from tests.cases import read_cases
from tests.processes import PATIENCE_S
from winhost.lab.hostfile import expand, find
from winhost.model.documents import write_document
from winhost.resources.host import HostFacts
from winhost.symptoms.diagnosis import Diagnosed, SymptomFinding, diagnose

CASES = Path(__file__).parent / "data" / "cases"
Score: TypeAlias = Literal["right", "partly", "nothing known", "missed", "confidently wrong"]
WORST: Sequence[Score] = ("confidently wrong", "missed", "nothing known", "partly", "right")
COMMANDED = {"source", "of", "do", "name", "file", "host", "change", "gpu", "right", "partly", "wrong", "unknown"}


def score(case: Mapping[str, Any], leading: Sequence[str], everything: str) -> Score:
    """leading: what an answer says first, of each problem that it found; everything: the whole answer."""
    if case.get("unknown"):
        return "confidently wrong" if leading else "right"
    if leading and any(_matches(each, leading[0]) for each in case.get("wrong", ())):
        return "confidently wrong"
    if any(all(_matches(each, text) for each in case["right"]) for text in leading):
        return "right"
    if any(_matches(each, everything) for each in case.get("partly", ())) or (
        everything and all(_matches(each, everything) for each in case["right"])
    ):
        return "partly"
    return "missed" if everything else "nothing known"


def _matches(expression: str, text: str) -> bool:
    return re.search(expression, text, re.DOTALL) is not None


def explained(case: Mapping[str, Any]) -> Score:
    facts = HostFacts(expand(find(case["facts"]))[0]) if "facts" in case else None
    answer = diagnose([case["text"]], "text", facts)
    return score(case, [*_leading(answer)], "\n".join(_told(found, len(found.causes)) for found in answer.found))


def _leading(answer: Diagnosed) -> Iterator[str]:
    for found in answer.found:
        yield _told(found, 1)


def _told(found: SymptomFinding, causes: int) -> str:
    open_causes = [cause for cause in found.causes if cause.standing != "ruled-out"][:causes]
    told = [f"{cause.sentence} {cause.tell} {cause.remedy.do if cause.remedy else ''}" for cause in open_causes]
    return "\n".join([found.code, found.sentence, f"severity {found.severity}", *told])


def commanded(case: Mapping[str, Any], folder: Path) -> Score:
    """By the command line, in a process of its own: what it prints is the answer."""
    import subprocess

    assert case.keys() <= COMMANDED, case.keys() - COMMANDED
    words = case["do"].split()
    if "file" in case:
        (folder / case["name"]).write_text(case["file"], encoding="utf-8")
    if "host" in case:
        (folder / "facts.json").write_text(write_document(_facts(case, folder).document), encoding="utf-8")
    named = {"FILE": case.get("name", ""), "FACTS": "facts.json"}
    command = [sys.executable, "-m", "winhost", *(named.get(word, word) for word in words)]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=PATIENCE_S
    )
    said = " ".join((done.stdout + done.stderr).split())
    if any(_matches(each, said) for each in case.get("wrong", ())):
        return "confidently wrong"
    return score(case, [said] if said else [], said)


def _facts(case: Mapping[str, Any], folder: Path) -> HostFacts:
    from tests.compat.test_situations import facts_of

    return facts_of(case, folder)


def cases(name: str) -> dict[str, Any]:
    read: dict[str, Any] = read_cases(CASES / f"{name}.yaml")
    return read


def scores(*names: str) -> dict[str, Score]:
    """By case, the worst of what it asks."""
    found: dict[str, Score] = {}
    for file in names:
        for name, case in cases(file).items():
            with TemporaryDirectory() as folder:
                got = commanded(case, Path(folder)) if "do" in case else explained(case)
            whole = case.get("of", name)
            found[whole] = min(got, found.get(whole, got), key=WORST.index)
    return found


def main(names: Sequence[str]) -> None:
    found = scores(*names)
    for name, got in found.items():
        sys.stdout.write(f"{got:18} {name}\n")
    sys.stdout.write(json.dumps({"cases": len(found), **Counter(found.values())}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:] or ["explain", "commands"])
