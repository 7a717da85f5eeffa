"""What forbids a plan of the WSL 2 path under the names that it was given."""

from collections.abc import Iterator

from winhost.model.facts import MissingFact, Unavailable
from winhost.paths.refusal import Refusal
from winhost.paths.wsl2_settings import Settings
from winhost.resources.host import HostFacts
from winhost.resources.linux import LinuxGpuDriver
from winhost.resources.windows import LocalAccount, WslDistro


def refusals(facts: HostFacts, settings: Settings) -> Iterator[Refusal]:
    """Raises MissingFact where accounts or distros could not be read."""
    account = facts.of(LocalAccount, {"account": settings.account})
    if account is not None and account.there:
        yield from _of_account(account, settings.account)
    distro = _distro(facts, settings)
    if distro is not None and distro.installed and distro.image is None:
        yield Refusal(
            "wsl.distro-taken",
            f"{settings.account} has a distro {settings.distro} already that winhost did not make.",
            "Choose another name: --set distro=NAME",
        )
    yield from _of_linux(facts)


def _of_linux(facts: HostFacts) -> Iterator[Refusal]:
    """Nothing, as long as nobody gets in to look."""
    try:
        driver = facts.the(LinuxGpuDriver)
    except MissingFact as missing:
        if isinstance(missing.missing, Unavailable):
            return
        raise
    if driver.packages:
        yield Refusal(
            "wsl.linux-driver",
            f"The distro has a Linux GPU driver: {', '.join(driver.packages)}.",
            f"Remove it there: apt-get purge {' '.join(driver.packages)}",
        )


def _distro(facts: HostFacts, settings: Settings) -> WslDistro | None:
    """None where the account has no tasks of ours yet, and so no distro of ours."""
    try:
        return facts.of(WslDistro, {"account": settings.account, "distro": settings.distro})
    except MissingFact as missing:
        if isinstance(missing.missing, Unavailable):
            return None
        raise


def _of_account(account: LocalAccount, name: str) -> Iterator[Refusal]:
    if not account.ours:
        yield Refusal(
            "wsl.account-taken",
            f"There is an account {name} already that winhost did not make: its password would be changed.",
            "Choose another name: --set account=NAME",
        )
    if account.sessions:
        yield Refusal(
            "wsl.account-logged-on",
            f"Somebody is logged on as {name} ({account.sessions} session(s)): with their logoff its WSL would end.",
            f"Log {name} off on the host, and let nobody log on with it.",
        )
