"""The cases of Linux resources in their cases.yaml, as steps of `[OUTCOME, VERB, RESOURCE, KEY, DESIRED, MORE]`. An
outcome is ok, drift, unavailable or the code of an error. The rest of an answer is not written down, because a test
compares the lab's answers with those of the agent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cases import read_cases
from winhost import resources

FILES = sorted(Path(resources.__path__[0]).glob("linux/*/cases.yaml"))


@dataclass(frozen=True)
class LinuxCase:
    """A case. calls: of the agent's protocol, and their outcomes."""

    calls: Sequence[dict[str, Any]]
    say: Sequence[str]


def get(resource: str, key: Any = None) -> dict[str, Any]:
    return {"resource": resource, "verb": "get", **({} if key is None else {"key": key})}


def put(resource: str, key: Any, desired: Any, expect: Any = None) -> dict[str, Any]:
    return {"resource": resource, "verb": "set", "key": key, "desired": desired, "expect": expect or {}}


def _call(verb: str, resource: str, key: Any = None, desired: Any = None, more: Any = None) -> dict[str, Any]:
    if verb == "get":
        return get(resource, key)
    return {**put(resource, key, desired), **(more or {})}


def _read(file: Path) -> dict[str, LinuxCase]:
    given = read_cases(file)["cases"]
    return {
        name: LinuxCase([_call(*step[1:]) for step in steps], [step[0] for step in steps])
        for name, steps in given.items()
    }


CASES = {f"{file.parent.name}: {name}": case for file in FILES for name, case in _read(file).items()}
