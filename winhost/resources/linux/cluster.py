"""A Linux as a node of its cluster, and what winhost put into that."""

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
    """The node's state, as the API server tells the kubelet of this machine. ready: pods can be scheduled on it.
    Setting it waits until it is, and changes nothing.
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
    """name: of the namespace; text: manifests as they were applied, as far as their objects are there, null where none
    were applied; serves: every Deployment of them is available, and the gateway's /ready says that each model answered;
    token: a secret reference, of what is in the Secret `hub-token` there.

    A new text takes what is no longer in it out of the cluster, but for volumes and the namespace: they may hold what
    is somebody's. Setting serves waits until that is so, and a new text where it was so before.
    """

    text: str | None
    serves: bool
    token: str | None
