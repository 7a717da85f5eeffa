"""What of a run's changes can be taken back, by what a journal tells and how the host stands."""

from winhost.core import changes
from winhost.core.answers import HostAnswers, Record, identity
from winhost.core.changes import Changes
from winhost.core.rules import ResourceRules
from winhost.core.steps import Step
from winhost.core.undo import Keep, judge

MADE = ResourceRules("Made", "made things", sets=("word", "other"))


def test_what_a_last_step_did_not_set_is_not_taken_for_its_doing() -> None:
    """Somebody took the word away since. That the step in flight says nothing of it does not make it the run's."""
    record = Changes()
    for name in ("word", "other"):
        step = Step("1.1", "Made", {}, "desired", {name: "found"}, {name: "set"}, "it", "")
        record = changes.record_step_start(record, step, {"word": "found", "other": "found"})
    assert record.touched[identity("Made", {})].transitional == ({"other": "found"},)
    now = HostAnswers({"Made": (Record({"word": None, "other": "set"}),)}, {"Made": MADE})
    found = judge(record, now).undone[identity("Made", {})]
    assert found == Keep("word changed since by somebody else", {"other": "found"})
