"""Python environments of a stack: from a lock to the wheels that the Linux which serves takes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from winhost.cli.foreign_errors import from_os_error
from winhost.cli.stack_options import StackWords
from winhost.hub.wheel_index import PYPI, PythonPlace, locked_packages, wheels_of
from winhost.model.errors import UsageError, visible
from winhost.model.workload import LoadFormat, Workload
from winhost.paths.linux_engine import python_of
from winhost.resources.host import HostFacts
from winhost.serving.packed_weights import NVCOMP, NVCOMP_LOCK
from winhost.serving.python_entries import PythonWheels

Once = Callable[[str, Callable[[], Any]], Any]
"""Asks for what has this name no second time."""


def engine_wheels(words: StackWords, facts: HostFacts, once: Once) -> PythonWheels | None:
    """None where vLLM comes otherwise. Raises UsageError (WhichPython, NotLocked), WinhostError (NoWheel)."""
    if words.engine_lock is None:
        return None
    return _wheels(lock_text(words.engine_lock), str(words.engine_lock), words, facts, once)


def nvcomp_wheels(words: StackWords, facts: HostFacts, workload: Workload, once: Once) -> PythonWheels | None:
    """None where no model is packed. Raises as `engine_wheels` does."""
    if all(each.load_format is not LoadFormat.PACKED for each in workload.models):
        return None
    return _wheels(NVCOMP_LOCK, NVCOMP, words, facts, once)


def _wheels(text: str, where: str, words: StackWords, facts: HostFacts, once: Once) -> PythonWheels:
    found = python_of(facts, words.python)
    if found is None:
        raise UsageError(
            "WhichPython",
            what=f"which Python the Linux of {visible(facts.host)} has is not known, so no wheel can be chosen for it",
            hint="Say it, as python3 --version does there: --python 3.12",
            host=facts.host,
        )
    place = PythonPlace(*found)
    packages = locked_packages(text, where, place.version, place.machine)
    index = words.index or PYPI
    wheels = once(f"wheels {where} {place}", lambda: wheels_of(packages, place, index))
    return PythonWheels(place.version, wheels[0].server, tuple(each.line for each in wheels))


def lock_text(file: Path) -> str:
    """Raises UsageError."""
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise from_os_error(error) from error
    except ValueError:
        raise UsageError("LockUnreadable", what=f"{visible(str(file))} is no text in UTF-8", hint="") from None
