"""Images of containers, settings of Docker, and the CDI spec by which containers get the GPU."""

from collections.abc import Mapping

from winhost.core.answers import Json
from winhost.core.rules import Condition, ConsentRule, KeepIf, UndoRule
from winhost.resources.base import State, resource
from winhost.resources.shared import LinuxType
from winhost.resources.values import FLAG, SHA256_OR_NOTHING, Value, or_nothing, secret_reference, sizes, text


@resource(
    LinuxType(
        "DockerSetting",
        title="settings of Docker",
        order=65,
        key=("pointer",),
        sets={"value": Value("any value of JSON, or nothing", lambda value: True)},
        after=("AptPackages", "DebianPackage", "LinuxFile"),
        asks=("containers",),
        may_need=(ConsentRule("containers"),),  # where some run, and would end with the daemon
    )
)
class DockerSetting(State):
    """A value in /etc/docker/daemon.json, by its JSON pointer (RFC 6901): `/features/cdi`. Null: it is not set.

    Everything else in the file stays as it is. A Docker that runs is restarted to take it.
    """

    value: Json


@resource(
    LinuxType(
        "CdiSpec",
        title="the CDI spec in Linux",
        order=70,
        sets={"present": FLAG, "fresh": FLAG},
        after=("AptPackages", "DebianPackage", "LinuxFile"),
        undo=UndoRule(
            gone_if=((Condition("present", of="before", one_of=(False,)), Condition("present", one_of=(False,))),),
            remove_if_created={"present": False},
            never="a spec that did not match the driver is of no use to anybody",
        ),
    )
)
class CdiSpec(State):
    """/run/cdi/nvidia.yaml. fresh: it is what nvidia-ctk would write now, for the driver of now.

    devices: all that the specs of this machine name, as `nvidia.com/gpu=all`. A desired state holds `present` and
    `fresh`.
    """

    present: bool
    fresh: bool
    devices: tuple[str, ...]


NO_IMAGE: Mapping[str, Json] = {
    "present": False,
    "id": None,
    **dict.fromkeys(("archive", "archive_sha256", "bytes", "credentials")),
    "used_by": [],
}


@resource(
    LinuxType(
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
        absent=NO_IMAGE,
        credential="credentials",
        timeout=lambda change: 4 * 3600,
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
