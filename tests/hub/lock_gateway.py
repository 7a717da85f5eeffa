"""`make lock`: the lock of the gateway, narrowed to the wheels of the Pythons and machines that it runs on.

uv pip compile … | python -m tests.hub.lock_gateway > winhost/serving/gateway-requirements.txt
"""

import re
import sys
from collections import defaultdict

from packaging.utils import canonicalize_name

from winhost.hub.locked_requirements import locked_packages
from winhost.hub.wheel_index import PythonPlace, wheels_of

# Python and the glibc of the oldest distribution that has it.
PYTHONS = {"3.10": 35, "3.11": 36, "3.12": 39, "3.13": 41, "3.14": 41}
MACHINES = ("x86_64", "aarch64")


def narrowed(text: str) -> str:
    kept: defaultdict[str, set[str]] = defaultdict(set)
    for python, glibc in PYTHONS.items():
        for machine in MACHINES:
            packages = locked_packages(text, "uv", python, machine)
            for package, wheel in zip(packages, wheels_of(packages, PythonPlace(python, glibc, machine)), strict=True):
                kept[package.name].add(wheel.sha256)
    lines: list[str] = []
    for stanza in re.split(r"\n(?=\S)", text.strip()):
        wanted, _, _ = stanza.partition("\\")
        name = canonicalize_name(re.split(r"[=; ]", wanted)[0])
        if kept[name]:
            hashes = [f"    --hash=sha256:{each}" for each in sorted(kept[name])]
            lines.append(" \\\n".join([wanted.strip(), *hashes]))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(narrowed(sys.stdin.read()))
