"""Models of what people write, with known keys alone."""

from pydantic import BaseModel, ConfigDict


class Closed(BaseModel):
    """A mapping with no unknown keys. What it takes to check one is built when the first one is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
