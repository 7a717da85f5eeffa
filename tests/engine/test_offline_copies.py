"""Plans for a host without a network: what is there as it was desired is not taken for what was never asked for."""

from winhost.core.steps import DesiredResource, Step
from winhost.engine.offline_copies import use_copies_in_plan
from winhost.model.plan import Offline, OfflineImage, Plan, PlanRequest, Stage

HUB, OLD, NEW = "https://hub.example.com/org/model", "a" * 40, "b" * 40
IMAGE = "r.example.com/x@sha256:" + "0" * 64
OFFLINE = Offline({IMAGE: OfflineImage("/srv/x.tar", "0" * 64, "r.example.com/x:1")}, {f"{HUB}@{NEW}": "/srv/copy"})


def from_copies(wanted: DesiredResource, before: dict[str, object], desired: dict[str, object]) -> Step:
    step = Step("1.1", wanted.resource, wanted.key, "desired", before, desired, wanted.title, "")
    request = PlanRequest("linux", {})
    plan = Plan("llm-01", "m", "recorded", "", "", request, (Stage(1, (wanted,), (step,), ()),))
    (after,) = use_copies_in_plan(plan, OFFLINE).stages[0].steps
    return after


def test_another_revision_of_a_model_is_taken_from_its_copy_instead_of_where_the_old_one_came_from() -> None:
    wanted = {"source": HUB, "revision": NEW, "files": ["b"], "token": None}
    model = DesiredResource("ModelFiles", {"folder": "/srv/models/one"}, wanted, "one", "")
    step = from_copies(model, {"revision": OLD, "files": ["a"]}, {"revision": NEW, "files": ["b"]})
    assert (step.before["source"], step.desired["source"]) == (HUB, "/srv/copy")
    assert step.desired.keys() == {"source", "revision", "files"}


def test_a_unit_names_an_image_as_it_is_called_once_it_is_loaded() -> None:
    text = f"ExecStart=/usr/bin/podman run {IMAGE}\n"
    unit = DesiredResource("EngineUnit", {"unit": "winhost-engine-x.service"}, {"text": text}, "x", "")
    step = from_copies(unit, {"text": None}, {"text": text})
    assert step.desired["text"] == "ExecStart=/usr/bin/podman run r.example.com/x:1\n"
