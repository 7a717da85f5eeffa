"""The error for a name that nothing on the host has, or several things have."""

from collections.abc import Mapping

from winhost.model.errors import UsageError, did_you_mean, visible


def listed(known: Mapping[str, str]) -> str:
    """Key and name of each, one a line."""
    return "\n".join(f"  {key}  {visible(name)}" for key, name in known.items())


class NotOnHost(UsageError):
    """A GPU, VM or network adapter that the host does not have, or a name that several of them share."""

    def __init__(self, host: str, kind: str, asked: str, known: Mapping[str, str], several: bool = False) -> None:
        name = visible(asked)
        super().__init__(
            "NoSuchThing",
            what=f"{host} has several {kind}s called '{name}'"
            if several
            else f"{host} has no {kind} '{name}'{did_you_mean(asked, known.values())}",
            hint=f"Name one of these, by its first column where names repeat:\n{listed(known)}" if known else None,
            host=host,
        )
        self.kind = kind
