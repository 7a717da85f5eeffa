"""Container images, Docker's settings, and the CDI spec that gives containers the GPUs."""

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
        may_need=(ConsentRule("containers"),),  # if running containers would stop with the daemon
    )
)
class DockerSetting(State):
    """A value in /etc/docker/daemon.json, by its JSON pointer (RFC 6901): `/features/cdi`. null: not set.

    Other values of the file are not changed. A running Docker is restarted, so that it reads the file.
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
    """The CDI spec /run/cdi/nvidia.yaml. fresh: it is what nvidia-ctk would generate now, for the current driver.

    devices: all devices in the CDI specs of this machine, as `nvidia.com/gpu=all`. A desired state has `present` and
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

    - id: the engine's id of the image, by which an image from an archive is run.
    - archive, archive_sha256: a file on the Linux from which the image is loaded, instead of being pulled.
    - bytes: the disk space that it takes, to check the free space.
    - credentials: a secret reference to USER:PASSWORD of the registry.
    - used_by: the names of containers that use it.

    archive, archive_sha256, bytes and credentials are null if winhost never set them.
    """

    present: bool
    id: str | None
    archive: str | None
    archive_sha256: str | None
    bytes: int | None
    credentials: str | None
    used_by: tuple[str, ...]
