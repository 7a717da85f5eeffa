"""Names of container images, as `docker.io/vllm/vllm-openai:v0.33.0`: their parts, and what engines leave out."""

import re
from dataclasses import replace

from winhost.core.dataclass import dataclass
from winhost.model.errors import UsageError, visible

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_HOST = r"localhost(?::\d{1,5})?|\[[0-9a-f:]+\]:\d{1,5}|[a-z0-9-]+(?:\.[a-z0-9-]+)+(?::\d{1,5})?|[a-z0-9-]+:\d{1,5}"
_NAME = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:({_HOST})/)?({_NAME}(?:/{_NAME})*)(?::([A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}}))?(?:@(sha256:[0-9a-f]{{64}}))?"
)
_LONGEST = 512
DOCKER_HUB = "docker.io"


@dataclass(frozen=True)
class ImageName:
    """registry: its host, and port; repository: the rest before the tag."""

    registry: str
    repository: str
    tag: str | None = None
    digest: str | None = None

    @classmethod
    def parse(cls, text: str) -> "ImageName":
        """Raises UsageError (NoImageName)."""
        found = _IMAGE.fullmatch(text) if len(text) <= _LONGEST else None
        if found is None:
            hint = "Write REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:…, for example docker.io/vllm/vllm-openai:v0.33.0"
            raise UsageError("NoImageName", what=f"'{visible(text[:_LONGEST])}' is not the name of an image", hint=hint)
        registry, repository, tag, digest = found.groups()
        if registry in (None, "index.docker.io", "registry-1.docker.io"):
            registry, repository = DOCKER_HUB, repository if "/" in repository else f"library/{repository}"
        return cls(registry, repository, tag or (None if digest else "latest"), digest)

    @property
    def address(self) -> str:
        """Where its registry is asked."""
        host = "registry-1.docker.io" if self.registry == DOCKER_HUB else self.registry
        loopback = re.fullmatch(r"(localhost|127\.[0-9.]+|\[::1\])(:\d+)?", self.registry)
        return f"{'http' if loopback else 'https'}://{host}"

    @property
    def wanted(self) -> str:
        """What names its manifest: the digest, or else the tag."""
        return self.digest or str(self.tag)

    @property
    def pinned(self) -> str:
        """As engines pull it, without a tag that may move."""
        return f"{self.registry}/{self.repository}@{self.digest}"

    def at(self, digest: str) -> "ImageName":
        return replace(self, digest=digest)

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.registry}/{self.repository}{tag}" + (f"@{self.digest}" if self.digest else "")
