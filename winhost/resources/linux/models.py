"""Model files, the environments and units of engines, and the endpoint."""

from collections.abc import Mapping

from winhost.core.answers import Json
from winhost.core.rules import UndoRule
from winhost.resources.base import State, resource
from winhost.resources.shared import NOTHING_TO_UNDO, LinuxType
from winhost.resources.values import AWAITED, FLAG, download_seconds, lines, or_nothing, secret_reference, text, texts

NO_MODEL: Mapping[str, Json] = {"source": None, "revision": None, "files": None, "token": None}
_FILE = r"(sha256:[0-9a-f]{64}|git-sha1:[0-9a-f]{40}) ([0-9]{1,15}) (.+)"


@resource(
    LinuxType(
        "ModelFiles",
        title="model files",
        order=80,
        key=("folder",),
        sets={
            "source": or_nothing(text(r"https?://[!-~]+|/[^\0]+", "the address of a model, or a folder there")),
            "revision": or_nothing(text(r"[0-9a-f]{40}", "a commit: 40 hexadecimal digits")),
            "files": or_nothing(lines(_FILE, "a list of `sha256:HASH SIZE PATH`")),
            "token": or_nothing(secret_reference("a token of the hub")),
        },
        after=("SystemdUnit", "Mount"),
        absent=NO_MODEL,
        credential="token",
        timeout=lambda change: 600 + download_seconds(change.desired.get("files")),
        undo=UndoRule(remove_if_created={"source": None}),
    )
)
class ModelFiles(State):
    """A folder of model files.

    source: `https://huggingface.co/ORG/NAME`, or a folder on that Linux; revision: the commit; files: the existing
    files that were verified, as `sha256:HASH SIZE PATH`, or `git-sha1:HASH` if the hub publishes no SHA-256; token: a
    secret reference, null while files are missing. A file counts as verified as long as its size and times are
    unchanged.
    """

    source: str | None
    revision: str | None
    files: tuple[str, ...] | None
    token: str | None


NO_PACKED_MODEL: Mapping[str, Json] = {"source": None, "files": None, "command": None}


@resource(
    LinuxType(
        "PackedModel",
        title="packed models",
        order=82,
        key=("folder",),
        sets={
            "source": or_nothing(text(r"/[^\0]+", "a folder there")),
            "files": or_nothing(lines(r"sha256:[0-9a-f]{64} [0-9]{1,15} [^/\0]+", "a list of `sha256:HASH SIZE NAME`")),
            "command": or_nothing(texts(r"(?s).+", "a program and its arguments")),
        },
        after=("ModelFiles", "PythonVenv", "LinuxFolder", "LinuxFile", "ContainerImage", "CdiSpec"),
        absent=NO_PACKED_MODEL,
        timeout=lambda change: 3600 + download_seconds(change.desired.get("files")),
        undo=UndoRule(remove_if_created={"source": None}),
    )
)
class PackedModel(State):
    """The packed copy of a model in `/srv/winhost/models/NAME--packed`, a folder that only winhost uses. The original
    is not changed.

    source: the folder of the original; files: the original weights that exist in packed form, as `sha256:HASH SIZE
    NAME`; command: docker, podman or systemd-run with the arguments that run the packer in the engine's Python. A
    packed file counts as long as its size and times are unchanged.
    """

    source: str | None
    files: tuple[str, ...] | None
    command: tuple[str, ...] | None


NO_VENV: Mapping[str, Json] = {"python": None, "wheels": None, "source": None}
_WHEEL = r"sha256:[0-9a-f]{64} [0-9]{1,15} [A-Za-z0-9._+/-]{1,400}\.whl"


@resource(
    LinuxType(
        "PythonVenv",
        title="Python environments",
        order=82,
        key=("folder",),
        sets={
            "python": or_nothing(text(r"3\.[0-9]{1,2}", "a version of Python, as 3.12")),
            "wheels": or_nothing(lines(_WHEEL, "a list of `sha256:HASH SIZE PATH.whl`")),
            "source": or_nothing(text(r"https?://[!-~]+|/[^\0]+", "the address of a server, or a folder there")),
        },
        absent=NO_VENV,
        timeout=lambda change: 1800 + download_seconds(change.desired.get("wheels")),
        undo=UndoRule(remove_if_created={"wheels": None}, transitional_states={"wheels": ([],)}),
    )
)
class PythonVenv(State):
    """A virtual environment in /opt/winhost/python-HASH. python: the version of the machine's Python, which it uses;
    source: the server of the wheels, or a folder on that Linux; wheels: `sha256:HASH SIZE PATH`, its only contents,
    which are installed without pip.

    It is built in another folder and then renamed. Until then, and if that is interrupted, `wheels` is empty.
    """

    python: str | None
    wheels: tuple[str, ...] | None
    source: str | None


@resource(
    LinuxType(
        "EngineUnit",
        title="units of engines",
        order=82,
        key=("unit",),
        sets={"text": or_nothing(text(r"(?s).+", "the text of a unit")), "enabled": FLAG, "active": FLAG},
        after=(
            "ContainerImage",
            "ModelFiles",
            "PackedModel",
            "LinuxGroup",
            "LinuxFile",
            "SystemdUnit",
            "CdiSpec",
            "FirewallPort",
        ),
        absent={"text": None, "enabled": False, "active": False, "failed": False},
        timeout=lambda change: 3600,
        undo=UndoRule(whole=True),
    )
)
class EngineUnit(State):
    """The unit `winhost-engine-NAME.service`; its text is null if there is none. The image, the model and the files
    that it needs are set up before it, and removed after it by a rollback.

    enabled: it starts at boot; active: the engine runs and has answered; failed: it ended with an error. A new text
    restarts a unit that is to be active: by default one that is enabled and that runs, has failed, or was not enabled
    before. The gateway starts the others when they are needed. Setting `active` waits until the unit has started, which
    means that the engine answers.
    """

    text: str | None
    enabled: bool
    active: bool
    failed: bool


@resource(
    LinuxType(
        "ServingReady",
        title="the endpoint of the models",
        order=84,
        sets={"ready": AWAITED},
        after=("EngineUnit", "FirewallPort"),
        timeout=lambda change: 3600,
        undo=NOTHING_TO_UNDO,
    )
)
class ServingReady(State):
    """ready: the gateway's /ready reports that each model of /etc/winhost/serving.json answered a completion of one
    token at most 15 seconds ago. Setting it waits until it is true, and changes nothing.
    """

    ready: bool
