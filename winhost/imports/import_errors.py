"""Errors of several importers: a file that cannot be imported, and two files that contradict each other."""

from winhost.model.errors import UsageError, visible


def unreadable(file: str, why: str, hint: str | None = None) -> UsageError:
    """A file that is broken, or of no kind that can be imported. `why` goes on after its name."""
    return UsageError("NotReadable", what=f"{visible(file)} {visible(why)}", hint=hint)


def contradiction(fact: str, first: tuple[str, str], second: tuple[str, str]) -> UsageError:
    """Two files, each with its value for one fact, neither of which is more reliable."""
    values = ", ".join(f"{visible(value)} ({visible(file)})" for file, value in (first, second))
    return UsageError(
        "Contradiction",
        what=f"two files differ in {visible(fact)}: {values}",
        meaning="They are from different machines, or the machine changed in between.",
        hint="Import files of one machine and one time, or leave one of these out.",
    )
