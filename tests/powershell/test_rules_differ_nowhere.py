"""Whatever a resource declares, PowerShell decides as Python does: what is put back, kept and why, or cannot be judged;
which VMs have to be off, and which consents a change asks for.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import Phase, given, settings

from tests.core.declared import Case, cases
from tests.powershell.twins import Scripts, scripts
from winhost.bundle import bundle_files
from winhost.core.answers import Json, MissingFact, Unknown
from winhost.core.requirements import consents_of, needs_of
from winhost.core.rules import as_json
from winhost.core.steps import Change
from winhost.core.undo import Keep
from winhost.resources.windows.windows_scripts import agent_text

CASES = 400
IN_ONE_CALL = 100
KEY = {"vm": "of the key"}
DECIDE = """
function Find-Decisions {
    param([string]$Text)
    $decided = @(foreach ($case in (ConvertFrom-Json -InputObject $Text)) {
        $script:WinhostResources = @(@{
            name = 'Made'; title = 'made things'; sets = $true
            undo = $case.undo; needs = $case.needs; risks = $case.risks
        })
        $after = @{}
        Copy-WinhostState $case.after $after
        $touched = @{
            resource = 'Made'
            changed = @($case.changed)
            before = $case.before
            after = $after
            transitional = @($case.transitional)
        }
        $undo = Find-WinhostUndo $touched $case.now
        $change = @{ before = [ordered]@{}; desired = [ordered]@{} }
        Copy-WinhostState $case.change.before $change.before
        Copy-WinhostState $case.change.desired $change.desired
        $goal = [pscustomobject]@{ resource = 'Made'; key = [pscustomobject]@{ vm = 'of the key' } }
        [ordered]@{
            keep = $undo.keep
            desired = $undo.desired
            lacks = $undo.lacks
            off = @(Find-WinhostVmsToStop $goal $change)
            asks = @(Find-WinhostConsents $goal $change)
        }
    })
    ConvertTo-Json -InputObject $decided -Depth 8 -Compress
}
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[Scripts]:
    with scripts() as running:
        text = bundle_files.scripts()["Winhost.ps1"].decode("ascii").replace(agent_text(), "")
        running.run(text[text.index("# ==== ") :])
        running.run(DECIDE)
        yield running


def change_of(case: Case) -> Change:
    return Change(KEY, case.found, {name: case.after[name] for name in case.changed})


def asked(case: Case) -> Mapping[str, Json]:
    change = change_of(case)
    rules = {name: json.dumps(as_json(getattr(case.rules, name))) for name in ("undo", "needs", "risks")}
    states = {name: getattr(case, name) for name in ("changed", "before", "after", "transitional", "now")}
    return {**rules, **states, "change": {"before": change.before, "desired": change.desired}}


def by_python(case: Case) -> Mapping[str, Json]:
    change = change_of(case)
    needs = [need.key["vm"] for need in needs_of(case.rules.needs, change)]
    return {**undone(case), "off": needs, "asks": list(consents_of(case.rules.risks, change))}


def undone(case: Case) -> Mapping[str, Json]:
    undo = case.undo()
    if isinstance(undo, MissingFact):
        return {"keep": "", "desired": {}, "lacks": in_words(undo)}
    if isinstance(undo, Keep):
        return {"keep": undo.reason, "desired": dict(undo.rest), "lacks": ""}
    return {"keep": "", "desired": dict(undo), "lacks": ""}


def in_words(missing: MissingFact) -> str:
    """As the scripts say it."""
    if isinstance(missing.missing, Unknown):
        fault = missing.missing.unknown
        return f"made things ({missing.fact.removeprefix('Made.')}): {fault.message} [{fault.code}]"
    until = missing.missing.unavailable
    if until == "Elsewhere":
        return f"{missing.fact}: {until} has to be there first"
    return f"{missing.fact} cannot be told before {until} is there"


def many() -> list[Case]:
    """Drawn first and asked together: a call of the engine for each would take hours."""
    made: list[Case] = []

    @settings(max_examples=CASES, deadline=None, database=None, phases=[Phase.generate])
    @given(cases())
    def collect(case: Case) -> None:
        made.append(case)

    collect()
    return made


def test_every_decision_is_the_same(engine: Scripts) -> None:
    made = many()
    for some in (made[at : at + IN_ONE_CALL] for at in range(0, len(made), IN_ONE_CALL)):
        quoted = json.dumps([asked(case) for case in some]).replace("'", "''")
        (answer,) = engine.run(f"Find-Decisions '{quoted}'")
        decided: list[Any] = json.loads(answer)
        for case, found in zip(some, decided, strict=True):
            assert found == by_python(case), case
