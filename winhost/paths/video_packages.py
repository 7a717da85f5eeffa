"""The packages with which FFmpeg encodes and decodes on a GPU: itself, and the driver's libraries where they are
separate.
"""

import re
from contextlib import suppress

from winhost.core.answers import MissingFact
from winhost.model.errors import UsageError
from winhost.paths.linux_driver import wanted_driver
from winhost.resources.host import HostFacts

_BRANCH = re.compile(r"nvidia-headless-no-dkms-(\d+(?:-server)?)")


def video_packages(facts: HostFacts) -> str:
    """One key of AptPackages. Ubuntu's sets of the driver for servers lack the libraries for video; NVIDIA's installer
    brings them, and WSL has those of Windows.
    """
    names = ["ffmpeg"]
    if facts.is_linux:
        with suppress(MissingFact, UsageError):
            choice = wanted_driver(facts)
            found = _BRANCH.search(choice.packages) if choice else None
            names += [f"libnvidia-{what}-{found[1]}" for what in ("decode", "encode")] if found else []
    return " ".join(sorted(names))
