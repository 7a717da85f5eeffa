"""The container engine in the Linux that a path ends in."""

from collections.abc import Mapping

from winhost.core.answers import Json
from winhost.paths.distro_packages import Repository
from winhost.paths.linux_decisions import LinuxDecisions


class ContainersInside:
    """The decisions about containers that a path's playbook may refer to; all are empty where no containers are wanted.
    They raise MissingFact until that Linux can be read.
    """

    @property
    def inside(self) -> LinuxDecisions | None:
        """None where no containers are wanted. Raises MissingFact."""
        raise NotImplementedError

    @property
    def engines(self) -> tuple[Mapping[str, str], ...]:
        return self.inside.engines if self.inside else ()

    @property
    def units(self) -> tuple[Mapping[str, str], ...]:
        return self.inside.units if self.inside else ()

    @property
    def docker_settings(self) -> tuple[Mapping[str, Json], ...]:
        return self.inside.docker_settings if self.inside else ()

    @property
    def sources(self) -> tuple[Repository, ...]:
        return self.inside.sources if self.inside else ()

    @property
    def packages_inside(self) -> tuple[Mapping[str, str], ...]:
        return self.inside.packages_inside if self.inside else ()
