"""The objects that winhost put into the cluster of a Linux that is its server."""

from collections.abc import Mapping

from winhost.core.answers import Json
from winhost.core.rules import NotRestored, UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS, DISTROS
from winhost.resources.values import Value, or_nothing, secret_reference, text

NO_OBJECTS: Mapping[str, Json] = {"text": None, "serves": False, "token": None}
_ONLY_AWAITED = NotRestored("serves", False, "it is only waited for")
SERVES = Value("true: what serves is only waited for", lambda value: value is True)


@resource(
    ResourceType(
        "ClusterObjects",
        title="what is in a cluster",
        order=85,
        key=("name",),
        sets={
            "text": or_nothing(text(r"(?s)\{.*\}\n", "a List of manifests, in JSON")),
            "serves": SERVES,
            "token": or_nothing(secret_reference("a token of the hub")),
        },
        after=("ClusterNode",),
        requires=ACCESS,
        absent=NO_OBJECTS,
        within=DISTROS,
        credential="token",
        lasts=lambda change: 6 * 3600,
        undo=UndoRule(remove_if_created={"text": None}, not_restored=(_ONLY_AWAITED,)),
    )
)
class ClusterObjects(State):
    """name: of the namespace; text: manifests as they were applied, as far as their objects are there, null where none
    were applied; serves: every Deployment of them is available, and the gateway's /ready says that each model answered;
    token: a secret reference, of what is in the Secret `hub-token` there.

    A new text takes what is no longer in it out of the cluster, but for volumes and the namespace: they may hold what
    is somebody's. Setting serves waits until that is so, and a new text where it was so before.
    """

    text: str | None
    serves: bool
    token: str | None
