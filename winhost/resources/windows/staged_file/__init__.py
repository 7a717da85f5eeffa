"""Files that winhost brings to the host."""

from winhost.core.answers import Key
from winhost.core.rules import DependentRule, UndoRule
from winhost.core.steps import Change
from winhost.resources.base import Attachment, ResourceType, State, resource
from winhost.resources.values import FLAG


def file_beside_the_plan(change: Change) -> Attachment | None:
    """./name is a file in the folder of the plan, on the computer that winhost runs on."""
    before, _, name = change.key["source"].partition("./")
    return Attachment(name, change.key["sha256"]) if not before and change.desired.get("present") else None


def fetched_by_the_host(change: Change) -> str | None:
    """An https address that the host can reach."""
    source = change.key["source"]
    return source if source.startswith("https://") and change.desired.get("present") else None


def received_at(key: Key) -> str:
    """The path of what was received of it, on a host whose %ProgramData% is where Windows puts it."""
    return rf"C:\ProgramData\winhost\files\{key['sha256']}-{key['name']}.part"


@resource(
    ResourceType(
        "StagedFile",
        title="staged files",
        order=260,
        key=("sha256", "name", "source"),
        sets={"present": FLAG},
        absent={"present": False},
        dependents=(
            DependentRule("Wsl", at=("package", "{sha256}")),
            DependentRule("WslDistro", at=("image", "{sha256}")),
        ),
        upload=file_beside_the_plan,
        download=fetched_by_the_host,
        # What is there in part is nobody else's, and never put back.
        undo=UndoRule(instead={"present": (None, False)}, transitional_states={"present": (None,)}),
    )
)
class StagedFile(State):
    """A file that winhost brings, in a folder of administrators: %ProgramData%\\winhost\\files\\<sha256>-<name>.

    source: an https address that the host can reach, the absolute path of a file on a drive of the host, or ./ and the
    name of a file next to the plan; name: letters, digits, dot, dash and underscore. present: it is there with
    this SHA-256; with any other it is as good as absent, and replaced. null: a part of it is there, and the rest is
    still to come.
    """

    present: bool | None
