"""python -m winhost_weights pack|replace|unpack|verify FOLDER [TARGET]: a line of JSON for each file that is finished.

It runs in the Python of an engine, which has torch.
"""

import json
import sys
from pathlib import Path

from winhost_weights.container import BadContainer


def main(arguments: list[str]) -> int:
    try:
        import torch
        from nvidia import nvcomp  # noqa: F401

        from winhost_weights import packing
    except ImportError as error:
        return _failed(lacks=f"it has no module {error.name}")
    if not torch.cuda.is_available():
        return _failed(lacks="its torch sees no NVIDIA GPU")
    command, folders = arguments[0], [Path(path) for path in arguments[1:]]
    try:
        getattr(packing, command)(*folders, _report)
    except (BadContainer, OSError) as error:
        return _failed(error=str(error))
    return 0


def _report(name: str, before: int, after: int) -> None:
    print(json.dumps({"file": name, "before": before, "after": after}), flush=True)  # noqa: T201


def _failed(**why: str) -> int:
    print(json.dumps(why), flush=True)  # noqa: T201
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
