"""Files that hold one secret, for programs that read none in any other way."""

from winhost.core.rules import UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS, DISTROS
from winhost.resources.values import or_nothing, secret_reference


@resource(
    ResourceType(
        "SecretFile",
        title="files with a secret",
        order=32,
        key=("path",),
        sets={"secret": or_nothing(secret_reference("what the file holds"))},
        requires=ACCESS,
        absent={"secret": None},
        within=DISTROS,
        credential="secret",
        undo=UndoRule(remove_if_created={"secret": None}),
    )
)
class SecretFile(State):
    """A file that root alone reads. secret: the reference by which winhost found what it wrote there, never the secret;
    null where there is no such file, or another one than winhost wrote, and with `, begun` where that broke off.
    """

    secret: str | None
