"""The helpers of our agent that look for files without reading them."""

from collections.abc import Iterable
from typing import Any

from winhost.lab.powershell.calls.cmdlet_process import Cmdlets, Given, answers


@answers("Test-WinhostEmpty", "Path")
def _empty(desk: Cmdlets, given: Given) -> Iterable[Any]:
    files = desk.machine.files
    return [files.read(given["Path"]) is None and not any(True for _ in files.below(given["Path"]))]


@answers("Read-WinhostFileTime", "Path")
def _time(desk: Cmdlets, given: Given) -> Iterable[Any]:
    found = desk.machine.distros.config_time(given["Path"])
    return [] if found is None else [found]
