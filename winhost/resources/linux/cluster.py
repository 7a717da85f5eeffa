"""A Linux as a node of a cluster, and the objects that winhost applied to the cluster."""

from collections.abc import Mapping

from winhost.core.answers import Json
from winhost.core.rules import NotRestored, UndoRule
from winhost.resources.base import State, resource
from winhost.resources.shared import NOTHING_TO_UNDO, LinuxType
from winhost.resources.values import AWAITED, or_nothing, secret_reference, text


@resource(
    LinuxType(
        "ClusterNode",
        title="nodes of a cluster",
        order=61,
        key=("node",),
        sets={"ready": AWAITED},
        after=("SystemdUnit", "ReleaseFile", "SecretFile"),
        timeout=lambda change: 900,
        undo=NOTHING_TO_UNDO,
    )
)
class ClusterNode(State):
    """A node, as the API server reports it to this machine's kubelet. ready: pods can be scheduled on it. Setting it
    waits until the node is ready, and changes nothing.
    """

    ready: bool


NO_OBJECTS: Mapping[str, Json] = {"text": None, "serves": False, "token": None}


@resource(
    LinuxType(
        "ClusterObjects",
        title="what is in a cluster",
        order=85,
        key=("name",),
        sets={
            "text": or_nothing(text(r"(?s)\{.*\}\n", "a List of manifests, in JSON")),
            "serves": AWAITED,
            "token": or_nothing(secret_reference("a token of the hub")),
        },
        after=("ClusterNode",),
        absent=NO_OBJECTS,
        credential="token",
        timeout=lambda change: 6 * 3600,
        undo=UndoRule(
            remove_if_created={"text": None}, not_restored=(NotRestored("serves", False, "it is only waited for"),)
        ),
    )
)
class ClusterObjects(State):
    """The objects that winhost applied to a namespace, by its name.

    text: the applied manifests whose objects exist, null if none were applied; serves: every Deployment is available,
    and the gateway's /ready reports that each model answered; token: a secret reference to the content of the Secret
    `hub-token`.

    A new text deletes objects that it no longer contains, except volume claims and the namespace, which may contain
    others' data. Setting `serves` waits until it is true; so does setting a new text if it was true before.
    """

    text: str | None
    serves: bool
    token: str | None
