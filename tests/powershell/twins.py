"""The same host twice: one answers by the lab's contract, the other runs the real scripts in a real PowerShell."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

from winhost.bundle import bundle_files
from winhost.core.answers import Json
from winhost.lab.contract.agent_answers import AgentAnswers
from winhost.lab.hostfile import expand_all
from winhost.lab.lab_host import INVOKE
from winhost.lab.physics.lab_section import LabSection
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.powershell_host import EngineHost, EngineRunspace
from winhost.lab.wire.served_host import RemoteCommand
from winhost.model.facts import Facts
from winhost.resources.windows.parts import session_text
from winhost.resources.windows.windows_scripts import agent_text

Call = Mapping[str, Any]
Answer = dict[str, Any]
Case = TypeVar("Case")

# What the engine says of itself, or what only a host file can tell.
ENGINES_OWN = {"Session": ("powershell", "language_mode", "is_64bit"), "Firmware": ("address_width",)}
NO_PIPELINE_STOPS = threading.Event()
DRAWN = 400

hosts = cache(expand_all)


def machine(host: str, **lab: Any) -> Machine:
    facts, section = hosts()[host]
    return of(facts, section, **lab)


def of(facts: Facts, section: LabSection, **lab: Any) -> Machine:
    return Machine(facts, LabSection.model_validate(section.model_dump() | lab))


class Scripts:
    """One PowerShell process, which is led from machine to machine: starting one takes longer than most cases."""

    def __init__(self, host: EngineHost, runspace: EngineRunspace) -> None:
        self._host = host
        self.runspace = runspace

    def use(self, on: Machine) -> None:
        self._host.loopback.machine = on

    def run(self, text: str) -> list[str]:
        """Any script, beside the agent; the endpoint would refuse it."""
        return self.runspace.engine.ask({"script": text})

    def of_bundles(self) -> None:
        """Loads what the scripts of a bundle share, without the agent, which is there."""
        text = bundle_files.scripts()["Winhost.ps1"].decode("ascii").replace(agent_text(), "")
        self.run(text[text.index("# ==== ") :])

    def answers(self, on: Machine, *calls: Call) -> list[Answer]:
        self.use(on)
        request = {"Json": json.dumps({"exclusive": False, "calls": calls})}
        (answer,) = self.runspace.invoke(
            [RemoteCommand(INVOKE, is_script=False, parameters=request)], NO_PIPELINE_STOPS
        )
        found: list[Answer] = json.loads(str(answer))["answers"]
        return found


@contextmanager
def scripts() -> Iterator[Scripts]:
    with EngineHost(machine("server2025-3gpu")) as host:
        runspace = host.open_runspace("someone")
        try:
            runspace.invoke([RemoteCommand(session_text(), is_script=True)], NO_PIPELINE_STOPS)
            yield Scripts(host, runspace)
        finally:
            runspace.close()


def compare(
    engine: Scripts,
    function: str,
    cases: SearchStrategy[Case],
    asked: Callable[[Case], Mapping[str, Json]],
    by_python: Callable[[Case], Mapping[str, Json]],
    *,
    in_one_call: int,
) -> None:
    """Asserts that a function of PowerShell, given the JSON of many cases, decides each of them as Python does."""
    drawn = _drawn(cases)
    for some in (drawn[at : at + in_one_call] for at in range(0, len(drawn), in_one_call)):
        quoted = json.dumps([asked(case) for case in some]).replace("'", "''")
        (answer,) = engine.run(f"{function} '{quoted}'")
        for case, found in zip(some, json.loads(answer), strict=True):
            assert found == by_python(case), case


def _drawn(cases: SearchStrategy[Case]) -> list[Case]:
    """Drawn first and asked together: a call of the engine for each would take hours."""
    made: list[Case] = []

    @settings(
        max_examples=DRAWN,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def collect(case: Case) -> None:
        made.append(case)

    collect()
    return made


def contract(on: Machine, *calls: Call) -> list[Answer]:
    found: list[Answer] = json.loads(AgentAnswers(on).invoke(json.dumps({"calls": calls})))["answers"]
    return found


def comparable(calls: Sequence[Call], answers: Sequence[Answer]) -> list[Answer]:
    """Without an order of instances, which Windows does not promise, without what is the engine's own, and without the
    texts of winhost's own refusals: the script says them in its words, the lab in fewer.
    """
    return [_comparable(call, answer) for call, answer in zip(calls, answers, strict=True)]


def _comparable(call: Call, answer: Answer) -> Answer:
    own = ENGINES_OWN.get(call.get("resource", ""), ())
    if verdict(answer).startswith("Winhost."):
        answer["error"]["message"] = "its own"
    states = [each["state"] for each in answer.get("instances", ())] + [answer.get("state")]
    for state in states:
        for name in own if state else ():
            state[name] = "its own"
    if "instances" in answer:
        answer["instances"].sort(key=lambda each: json.dumps(each["key"], sort_keys=True))
    return answer


def verdict(answer: Answer) -> str:
    """Summarize an answer in one word: ok, drift, unavailable, or the first word of its error's code."""
    if answer["ok"]:
        return "ok"
    if "error" in answer:
        return str(answer["error"]["code"]).split(",")[0]
    return "drift" if "drift" in answer else "unavailable"
