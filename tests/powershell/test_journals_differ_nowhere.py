"""Whatever the journal of a run tells and however the host stands by now, PowerShell takes back what Python takes back:
the same properties to the same values, keeps the same for the same reason, and cannot judge the same.
"""

import json
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.core.journalled import Journalled, as_answered, journals
from tests.powershell.twins import Scripts, scripts
from winhost.bundle import bundle_files
from winhost.core.answers import Json
from winhost.core.came_since import judge
from winhost.resources.windows.windows_scripts import agent_text

CASES = 400
IN_ONE_CALL = 20
DECIDE = """
function Invoke-WinhostRequest { [pscustomobject]@{ ok = $false } }

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
        $back = Find-WinhostBack @{ record = $record } $facts
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
        text = bundle_files.scripts()["Winhost.ps1"].decode("ascii").replace(agent_text(), "")
        running.run(text[text.index("# ==== ") :])
        running.run(DECIDE)
        yield running


def by_python(case: Journalled) -> Mapping[str, Json]:
    found = judge(case.changes, case.host)
    titles = {id_: touched.title for id_, touched in case.changes.touched.items()}
    undone = {title: dict(found.rests(id_)) for id_, title in titles.items() if found.rests(id_)}
    return {
        "undone": undone,
        "kept": [f"{titles[id_]}: kept: {why}" for id_, why in found.kept.items()],
        "missing": [titles[id_] for id_ in found.missing],
        "waits": bool(found.waiting),
    }


def asked(case: Journalled) -> Mapping[str, Json]:
    return {"events": list(case.events), "answers": {name: as_answered(each) for name, each in case.answers.items()}}


def many() -> list[Journalled]:
    """Drawn first and asked together: a call of the engine for each would take hours."""
    made: list[Journalled] = []

    @settings(
        max_examples=CASES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(journals())
    def collect(case: Journalled) -> None:
        made.append(case)

    collect()
    return made


def test_what_is_taken_back_is_the_same(engine: Scripts) -> None:
    made = many()
    for some in (made[at : at + IN_ONE_CALL] for at in range(0, len(made), IN_ONE_CALL)):
        quoted = json.dumps([asked(case) for case in some]).replace("'", "''")
        (answer,) = engine.run(f"Find-Back '{quoted}'")
        for case, found in zip(some, json.loads(answer), strict=True):
            assert found == by_python(case), case
