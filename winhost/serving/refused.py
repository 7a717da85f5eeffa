"""Why nothing is handed out."""

from dataclasses import dataclass

from winhost.model.errors import Exit, WinhostError, visible


@dataclass(eq=False)
class NoProfile(WinhostError):
    """The way that profiles are for cannot serve the workload. instead: a path that can as it is."""

    exit_code = Exit.REFUSED

    host: str
    why: tuple[str, ...]
    instead: str | None

    @property
    def what(self) -> str:
        return (
            f"winhost has serving profiles for WSL 2 only, and WSL 2 on {visible(self.host)} does not offer what this "
            "workload takes"
        )

    @property
    def meaning(self) -> str:
        return "\n".join(self.why)

    @property
    def hint(self) -> str:
        hint = "What would change it: winhost assess --facts FACTS --workload WORKLOAD --path wsl2 --explain"
        if self.instead is None:
            return hint
        other = (
            f"Possible as it is: {self.instead}. There is no profile for it yet, so vLLM's options are up to you; "
            "winhost assess --facts FACTS --workload WORKLOAD shows the memory that it has to share out."
        )
        return f"{hint}\n{other}"


@dataclass(eq=False)
class UnsafeSleep(WinhostError):
    """A profile with sleep was asked for where sleeping is known to break."""

    exit_code = Exit.REFUSED

    model: str
    profile: str
    instead: str
    why: tuple[str, ...]

    @property
    def what(self) -> str:
        return f"{visible(self.model)} cannot sleep safely, so the profile {self.profile} is not for it"

    @property
    def meaning(self) -> str:
        return "\n".join(self.why)

    @property
    def hint(self) -> str:
        return f"Take --profile {self.instead}, or leave --profile out."


@dataclass(eq=False)
class CardShared(WinhostError):
    """Several models on one card, and nobody knows what each of them takes."""

    exit_code = Exit.REFUSED

    card: str
    tenants: tuple[str, ...]
    lacking: tuple[str, ...]

    @property
    def what(self) -> str:
        names = ", ".join(map(visible, self.tenants))
        return f"how {self.card} is split cannot be computed; on it: {names}"

    @property
    def meaning(self) -> str:
        lacking = "; ".join(map(visible, self.lacking)) or "whether they fit at all is not known"
        return f"Each engine takes its share at its start, and where shares are too large one fails. Lacking: {lacking}"

    @property
    def hint(self) -> str:
        return "State it in the workload file; winhost assess --workload names the keys that settle it."
