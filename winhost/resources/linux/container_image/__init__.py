"""Images of containers, by their digest."""

from collections.abc import Mapping

from winhost.core.answers import Json
from winhost.core.rules import Condition, KeepIf, UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS, DISTROS
from winhost.resources.values import FLAG, SHA256_OR_NOTHING, or_nothing, secret_reference, sizes, text

NO_IMAGE: Mapping[str, Json] = {
    "present": False,
    "id": None,
    **dict.fromkeys(("archive", "archive_sha256", "bytes", "credentials")),
    "used_by": [],
}


@resource(
    ResourceType(
        "ContainerImage",
        title="images of containers",
        order=75,
        key=("engine", "image"),
        sets={
            "present": FLAG,
            "archive": or_nothing(text(r"/[^\0]+", "the path of an archive of images there")),
            "archive_sha256": SHA256_OR_NOTHING,
            "bytes": or_nothing(sizes(1)),
            "credentials": or_nothing(secret_reference("USER:PASSWORD")),
        },
        after=("AptPackages", "DebianPackage", "SystemdUnit", "DockerSetting"),
        requires=ACCESS,
        absent=NO_IMAGE,
        within=DISTROS,
        credential="credentials",
        lasts=lambda change: 4 * 3600,
        undo=UndoRule(
            keep_if=(
                KeepIf(
                    (Condition("used_by", gained=True), Condition("present", of="before", one_of=(False,))),
                    "{used_by} uses it now",
                ),
            ),
            remove_if_created={"present": False},
        ),
    )
)
class ContainerImage(State):
    """An image in the store of Docker or Podman, as `docker.io/vllm/vllm-openai@sha256:…`.

    id: what the engine calls it, by which one that came from an archive is run; archive, archive_sha256: a file on the
    Linux that it is loaded from, instead of being pulled; bytes: that it takes there, to check the room for it;
    credentials: a secret reference to USER:PASSWORD of the registry; used_by: containers. What was asked for is null
    where winhost never was.
    """

    present: bool
    id: str | None
    archive: str | None
    archive_sha256: str | None
    bytes: int | None
    credentials: str | None
    used_by: tuple[str, ...]
