"""The file .wslconfig of an account."""

from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import DISTROS_OF, NO_PROFILE, WHOLE
from winhost.resources.values import Value, one_of, or_nothing


@resource(
    ResourceType(
        "WslConfig",
        title=".wslconfig files",
        order=310,
        key=("account",),
        sets={
            "text": Value("text, or nothing", lambda value: value is None or isinstance(value, str)),
            "encoding": or_nothing(one_of("utf-8", "utf-8-bom", "utf-16le")),
        },
        after=("AccountTasks",),
        absent={"text": NO_PROFILE, "encoding": NO_PROFILE},
        dependents=(DISTROS_OF,),
        undo=WHOLE,
    )
)
class WslConfig(State):
    """The file .wslconfig in an account's profile, whole and to the letter; both are null where there is none.

    WSL reads it when its VM starts. Bytes that it could not read either are unknown.
    """

    text: str | None
    encoding: str | None
