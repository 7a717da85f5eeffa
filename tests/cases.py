"""Cases that stand in files."""

from pathlib import Path
from typing import Any

import yaml

# Hundreds of files are read before the first test begins; the parser in C is ten times faster.
FASTEST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_cases(path: Path) -> Any:
    """Return the data of a YAML file."""
    return yaml.load(path.read_text("utf-8"), FASTEST)
