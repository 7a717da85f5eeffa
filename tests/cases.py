"""Cases: those that stand in files, and those that `make test` leaves to `make real`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

# Hundreds of files are read before the first test begins; the parser in C is ten times faster.
FASTEST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_cases(path: Path) -> Any:
    """What stands in a YAML file."""
    return yaml.load(path.read_text("utf-8"), FASTEST)


def few(cases: Mapping[str, Any], *, one_in: int = 4) -> list[Any]:
    """Of what takes long, one in so many for `make test`, and the others for `make real`, as values for parametrize."""
    return [
        pytest.param(case, id=name, marks=[pytest.mark.real] if number % one_in else [])
        for number, (name, case) in enumerate(cases.items())
    ]
