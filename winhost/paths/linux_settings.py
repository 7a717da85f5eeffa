"""The settings of the path to a Linux of its own."""

from typing import Literal

from packaging.version import Version
from pydantic import field_validator

from winhost.model.written import Closed
from winhost.paths.setting_values import Debian

Engine = Literal["auto", "docker", "podman", "none"]
NO_TOOLKIT = "none"
FIRST_TOOLKIT = Version("1.18.0")  # it renews its CDI specification by itself


class LinuxSettings(Closed):
    """`settings` of the playbook, or `winhost plan --set NAME=VALUE`."""

    toolkit: Literal["none"] | Debian
    """Version of nvidia-container-toolkit; it is pinned, and not upgraded automatically. none: no container there gets
    GPUs from winhost, as where vLLM runs without one.
    """

    engine: Engine = "auto"
    """What runs containers. auto: the one that is there, else Docker of the distribution; none: whatever there is is
    left alone.
    """

    @field_validator("toolkit")
    @classmethod
    def _renews_its_spec(cls, version: str) -> str:
        if version != NO_TOOLKIT and Version(version.partition("-")[0]) < FIRST_TOOLKIT:
            raise ValueError(f"should be {FIRST_TOOLKIT} or later: before it, no CDI specification outlives a restart")
        return version
