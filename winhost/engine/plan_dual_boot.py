"""Planning Ubuntu beside Windows: what Windows does for it, and the proofs before that."""

from functools import cached_property

from winhost.engine.plain_planner import PlainPlanner
from winhost.paths.dual_boot_decisions import DualBootDecisions
from winhost.paths.dual_boot_settings import DualBootSettings


class DualBootPlanner(PlainPlanner[DualBootSettings]):
    """One request for one host."""

    settings_type = DualBootSettings

    @cached_property
    def decisions(self) -> DualBootDecisions:
        return DualBootDecisions(self._facts, self._settings)
