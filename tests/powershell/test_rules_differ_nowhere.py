"""Whatever a resource declares, PowerShell decides as Python does: what is put back, kept and why, or cannot be judged;
which VMs have to be off, and which consents a change asks for.
"""

import json
from collections.abc import Iterator, Mapping

import pytest

from tests.core.declared import Case, cases
from tests.powershell.twins import Scripts, compare, scripts
from winhost.core.answers import Json, MissingFact, Unknown
from winhost.core.conditions import consents_of, needs_of
from winhost.core.rules import as_json
from winhost.core.steps import Change
from winhost.core.undo import Keep

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
            missing = $undo.missing
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
        running.of_bundles()
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
        return {"keep": "", "desired": {}, "missing": in_words(undo)}
    if isinstance(undo, Keep):
        return {"keep": undo.reason, "desired": dict(undo.still_restored), "missing": ""}
    return {"keep": "", "desired": dict(undo), "missing": ""}


def in_words(missing: MissingFact) -> str:
    """As the scripts say it."""
    if isinstance(missing.missing, Unknown):
        fault = missing.missing.unknown
        return f"made things ({missing.fact.removeprefix('Made.')}): {fault.message} [{fault.code}]"
    until = missing.missing.unavailable
    if until == "Elsewhere":
        return f"{missing.fact}: {until} has to be there first"
    return f"{missing.fact} cannot be told before {until} is there"


def test_every_decision_is_the_same(engine: Scripts) -> None:
    compare(engine, "Find-Decisions", cases(), asked, by_python, in_one_call=100)
