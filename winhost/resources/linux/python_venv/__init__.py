"""A Python environment of winhost's own, made of wheels that are known by their hash."""

from collections.abc import Mapping

from winhost.core.answers import Json
from winhost.core.rules import UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS, DISTROS
from winhost.resources.values import lines, or_nothing, seconds_of_download, text

NO_VENV: Mapping[str, Json] = {"python": None, "wheels": None, "source": None}
_WHEEL = r"sha256:[0-9a-f]{64} [0-9]{1,15} [A-Za-z0-9._+/-]{1,400}\.whl"


@resource(
    ResourceType(
        "PythonVenv",
        title="Python environments",
        order=82,
        key=("folder",),
        sets={
            "python": or_nothing(text(r"3\.[0-9]{1,2}", "a version of Python, as 3.12")),
            "wheels": or_nothing(lines(_WHEEL, "a list of `sha256:HASH SIZE PATH.whl`")),
            "source": or_nothing(text(r"https?://[!-~]+|/[^\0]+", "the address of a server, or a folder there")),
        },
        requires=ACCESS,
        absent=NO_VENV,
        within=DISTROS,
        lasts=lambda change: 1800 + seconds_of_download(change.desired.get("wheels")),
        undo=UndoRule(remove_if_created={"wheels": None}, transitional_states={"wheels": ([],)}),
    )
)
class PythonVenv(State):
    """A virtual environment in /opt/winhost/python-HASH. python: the machine's, which it uses; source: the server of
    the wheels, or a folder of that Linux; wheels: `sha256:HASH SIZE PATH`, of which it was made without pip, and
    nothing else.

    It is made beside its place and moved there whole; meanwhile, and where that broke off, it has no wheels.
    """

    python: str | None
    wheels: tuple[str, ...] | None
    source: str | None
