"""Planning Ubuntu beside Windows: what Windows does for it, the proofs before that, and the installation itself."""

from collections.abc import Mapping
from functools import cached_property

from winhost.core.answers import Id, MissingFact, identity
from winhost.engine.plain_planner import PlainPlanner
from winhost.paths.dual_boot_decisions import DualBootDecisions
from winhost.paths.dual_boot_settings import DualBootSettings
from winhost.resources.shared import RUNNING
from winhost.resources.windows.running_system import RunningSystem


class DualBootPlanner(PlainPlanner[DualBootSettings]):
    """One request for one host."""

    settings_type = DualBootSettings

    @cached_property
    def decisions(self) -> DualBootDecisions:
        return DualBootDecisions(self._facts, self._settings)

    def risks(self) -> Mapping[Id, tuple[str, ...]]:
        """The risks of the start that installs: a partition is formatted, and this computer opens a port for its
        settings.
        """
        if self._settings.system is None or self._is_installed:
            return {}
        return {identity(RUNNING, {}): ("network", "data")}

    @property
    def _is_installed(self) -> bool:
        try:
            return self._facts.the(RunningSystem).linux is not None
        except MissingFact:
            return False
