"""Every noun that winhost knows: those of Windows, and those of the Linux in its WSL distro."""

from winhost.model.facts import Answer, Facts, Unavailable
from winhost.resources import linux, windows
from winhost.resources.base import Noun, State
from winhost.resources.linux.system import ACCESS

STATES: tuple[type[State], ...] = (*windows.STATES, *linux.STATES)
NOUNS: dict[str, Noun] = {**windows.NOUNS, **linux.NOUNS}


def answer(facts: Facts, noun: str) -> Answer:
    """What facts tell of a noun. A host whose Linux lets nobody in has nothing to tell of it, and its facts lack it."""
    if noun in linux.NOUNS and noun not in facts.nouns:
        return Unavailable(ACCESS)
    return facts.answer(noun)
