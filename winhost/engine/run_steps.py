"""A run at work on a host that is reached over a connection: what core's loop asks of the host and says of the run."""

from collections.abc import Iterable, Mapping, Sequence

from winhost.connect.wire_errors import Drifted, NotAvailable, RemoteError
from winhost.core.answers import Id, Json, Key
from winhost.core.host_answers import HostAnswers
from winhost.core.loop import Loop, NotSet
from winhost.core.steps import SetAnswer, Step
from winhost.engine import amending
from winhost.engine.endings import stop_if_asked
from winhost.engine.failures import ConsentNeeded, EndOfRun, not_taken, step_failed
from winhost.engine.installing import Installation, check_switched, installing, starts_other
from winhost.engine.open_run import OpenRun
from winhost.engine.run_state import RunState
from winhost.model.facts import Facts
from winhost.model.plan import in_order
from winhost.resources.host import HostFacts
from winhost.resources.registry import RESOURCE_TYPES, host_answers


class WorkingRun(OpenRun, Loop):
    """facts: the host as it was read last."""

    UNAVAILABLE = NotAvailable
    record: RunState
    facts: Facts
    host: HostAnswers
    _installation = Installation()

    def settle(self, *, back: bool = False) -> Facts:
        """Bring the run to rest: wait out what still runs on the host and a restart under way, then read. On the way
        back the other system is not started: what is to start next is taken back first.
        """
        if self.journal is not None:
            self.session.reach()
            if not (back and starts_other(self)):
                self.finish_restart()
        return self.seen()

    # ---- what the host is asked

    def read(self, *, settled: bool = False) -> Facts:
        self.facts = super().read(settled=settled)
        self.host = host_answers(self.facts)
        return self.facts

    def look(self) -> None:
        self.read()

    def set(self, step: Step, mark: str | None) -> SetAnswer | NotSet:
        try:
            return self.session.set(step, self.record.accepted, mark)
        except Drifted as error:
            return NotSet(error, {"error": str(error)}, drifted=True)
        except (RemoteError, NotAvailable) as error:
            # What it rests on was lost meanwhile: how far it came nobody can tell then.
            after = error.after if isinstance(error, RemoteError) else None
            failed = self._failed(step, error)
            failed.__cause__ = error
            return NotSet(failed, {"error": str(error)}, after=after)

    def _failed(self, step: Step, error: RemoteError | NotAvailable) -> EndOfRun:
        back = self.record.going_back
        return step_failed(
            self.record.host,
            self.name,
            step,
            error,
            going_back=back,
            lacking=tuple(risk for risk in step.may_need if risk not in self.record.accepted),
            alone=len(self.record.touched) == 1,
            retry_options=None if back else amending.words_for(self.record.plan, step.resource),
            facts=HostFacts(self.facts),
        )

    def state(self, resource: str, key: Key, *, settled: bool = False) -> Mapping[str, Json] | None:
        return self.session.state(resource, key, settled=settled)

    def boot_id(self) -> str:
        return self.session.boot_id()

    def restart_host(self, boot: str) -> str:
        with installing(self) as self._installation:
            self.tell("restart", "restarting")
            return self.session.restart(boot, self._installation.longer)

    def check_restarted(self) -> None:
        check_switched(self, self._installation)

    def restarts(self, resource: str) -> bool:
        """True if a change of this resource restarts the host or its VM."""
        return RESOURCE_TYPES[resource].restarts

    def forget(self, but: Iterable[Id]) -> None:
        self.forget_marks(self.facts, but)

    # ---- what ends it before its end

    def refuse_without_consent(self, steps: Sequence[Step]) -> None:
        lacking = self.lacking(steps, self.record.accepted)
        if lacking:
            record = self.record
            raise ConsentNeeded(record.host, self.begun, lacking, record.going_back, not record.unchanged)

    @staticmethod
    def lacking(steps: Sequence[Step], accepted: frozenset[str]) -> tuple[str, ...]:
        """Consents that these steps need and nobody gave."""
        return tuple(risk for risk in in_order(risk for step in steps for risk in step.risks) if risk not in accepted)

    def stop_if_asked(self) -> None:
        stop_if_asked(self)

    def not_taken(self, step: Step, lacking: Mapping[str, tuple[Json, Json]]) -> Exception:
        return not_taken(self.record.host, self.name, step, lacking, self.record.going_back)
