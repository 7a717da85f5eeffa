"""Settings of Docker's daemon."""

from winhost.core.answers import Json
from winhost.core.rules import ConsentRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS, DISTROS
from winhost.resources.values import Value


@resource(
    ResourceType(
        "DockerSetting",
        title="settings of Docker",
        order=65,
        key=("pointer",),
        sets={"value": Value("any value of JSON, or nothing", lambda value: True)},
        after=("AptPackages", "DebianPackage", "LinuxFile"),
        requires=ACCESS,
        within=DISTROS,
        asks=("containers",),
        may_need=(ConsentRule("containers"),),  # where some run, and would end with the daemon
    )
)
class DockerSetting(State):
    """A value in /etc/docker/daemon.json, by its JSON pointer (RFC 6901): `/features/cdi`. Null: it is not set.

    Everything else in the file stays as it is. A Docker that runs is restarted to take it.
    """

    value: Json
