"""Whatever the journal of a run tells and however the host stands by now, PowerShell takes back what Python takes back:
the same properties to the same values, keeps the same for the same reason, and cannot judge the same.
"""

from collections.abc import Iterator, Mapping

import pytest

from tests.core.journalled import Journalled, as_answered, journals
from tests.powershell.twins import Scripts, compare, scripts
from winhost.core.answers import Json
from winhost.core.undo import judge

DECIDE = """
function Invoke-WinhostRequest {
    param($Calls)
    # No other run has left a mark, and nothing else can be read.
    if ($Calls[0].resource -ceq 'RunMarks') {
        return [pscustomobject]@{ ok = $true; state = [pscustomobject]@{ marks = @() } }
    }
    [pscustomobject]@{ ok = $false }
}

function Find-Back {
    param([string]$Text)
    $decided = @(foreach ($case in (ConvertFrom-Json -InputObject $Text)) {
        $record = New-WinhostRecord
        foreach ($event in $case.events) {
            Add-WinhostEntry $record $event
        }
        $facts = @{}
        foreach ($answer in $case.answers.PSObject.Properties) {
            $facts[$answer.Name] = $answer.Value
        }
        $back = Find-WinhostOutlook @{ record = $record } $facts
        $undone = [ordered]@{}
        foreach ($goal in $back.goals) {
            $undone[$goal.title] = $goal.desired
        }
        [ordered]@{
            undone = $undone
            kept = @($back.kept)
            missing = @(foreach ($each in $back.missing) { $each.title })
            waits = $back.waits
        }
    })
    ConvertTo-Json -InputObject $decided -Depth 12 -Compress
}
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[Scripts]:
    with scripts() as running:
        running.of_bundles()
        running.run(DECIDE)
        yield running


def by_python(case: Journalled) -> Mapping[str, Json]:
    found = judge(case.changes, case.host)
    titles = {id_: touched.title for id_, touched in case.changes.touched.items()}
    undone = {title: dict(found.restored(id_)) for id_, title in titles.items() if found.restored(id_)}
    return {
        "undone": undone,
        "kept": [f"{titles[id_]}: kept: {why}" for id_, why in found.kept.items()],
        "missing": [titles[id_] for id_ in found.missing],
        "waits": bool(found.waiting),
    }


def asked(case: Journalled) -> Mapping[str, Json]:
    return {"events": list(case.events), "answers": {name: as_answered(each) for name, each in case.answers.items()}}


def test_what_is_taken_back_is_the_same(engine: Scripts) -> None:
    compare(engine, "Find-Back", journals(), asked, by_python, in_one_call=20)
