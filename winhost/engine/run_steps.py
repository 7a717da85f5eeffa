"""A run at work on a host that is reached over a connection: what core's loop asks of the host and says of the run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from winhost.connect.wire_errors import Drifted, NotAvailable, RemoteError
from winhost.core.answers import HostAnswers, Id, Json
from winhost.core.loop import Loop, NotSet
from winhost.core.steps import Step
from winhost.engine import amend
from winhost.engine.failures import ConsentNeeded, EndOfRun, NextStep, in_words, next_steps_of
from winhost.engine.host_session import HostSession
from winhost.engine.installing import Installation, check_switched, installing, starts_other
from winhost.engine.open_run import OpenRun
from winhost.engine.run_state import RunState
from winhost.model.facts import Facts
from winhost.model.plan import RISKS, sort_risks
from winhost.resources.host import HostFacts
from winhost.resources.registry import RESOURCE_TYPES, host_answers


class WorkingRun(OpenRun, Loop):
    """facts: the host as it was read last."""

    UNAVAILABLE = NotAvailable
    NOT_DONE = (Drifted, RemoteError, NotAvailable)
    session: HostSession
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

    @property
    def consents(self) -> frozenset[str]:
        return self.record.accepted

    def not_set(self, step: Step, error: Exception) -> NotSet:
        if not isinstance(error, RemoteError | NotAvailable):
            return NotSet(error, {"error": str(error)}, drifted=True)
        # What the step depends on is gone, so nobody can tell how far it came.
        after = error.after if isinstance(error, RemoteError) else None
        failed = self._failed(step, error)
        failed.__cause__ = error
        return NotSet(failed, {"error": str(error)}, after=after)

    def _failed(self, step: Step, error: RemoteError | NotAvailable) -> EndOfRun:
        """Make the error for a step that the host refused, or that lost what it needs."""
        record, back = self.record, self.record.going_back
        alone = len(record.touched) == 1
        said = ["It was the first step." if alone else "Steps before this one are done and journalled."]
        for risk in (risk for risk in step.may_need if risk not in record.accepted):
            said.append(f"{_HELPS.get(risk, 'If the host asks for it')}, --accept {risk} allows: {RISKS[risk]}.")
        # Where only this step could tell that a value does not work, another one is chosen.
        retry_options = None if back else amend.options_for(record.plan, step.resource)
        steps = next_steps_of(self.name, back, retry_options=retry_options)
        return EndOfRun(
            "StepFailed",
            what=f"{step.title}: {in_words(error)}",
            meaning="\n".join((" ".join(said), *_likely(error, HostFacts(self.facts)))),
            host=record.host,
            run=self.name,
            going_back=back,
            next_steps=(*steps, *_with_the_width(record.host, error)),
        )

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
        return tuple(risk for risk in sort_risks(risk for step in steps for risk in step.risks) if risk not in accepted)

    def not_taken(self, step: Step, lacking: Mapping[str, tuple[Json, Json]]) -> Exception:
        """Make the error for a step that the host accepted without doing it. lacking: property → (desired, found)."""
        listed = "; ".join(f"{name} should be {desired!r}, is {found!r}" for name, (desired, found) in lacking.items())
        return self.end_of_run("NotTaken", f"{step.title}: accepted without error, but {listed}")


# When a consent that a step may need would have helped.
_HELPS = {
    "force-dismount": "If the host says that nothing contains this device",
    "vm-turn-off": "If the guest does not shut down by itself",
    "containers": "If containers run that would end with Docker",
}


def _with_the_width(host: str, error: RemoteError | NotAvailable) -> Iterator[NextStep]:
    """Offer another plan for a window that ends too high: it would fail again however often this run goes on."""
    from winhost.symptoms.codes import address_bits  # what only a failure needs

    bits = address_bits(error.fault.message) if isinstance(error, RemoteError) else None
    if bits is not None:
        command = f"winhost plan {host} --path dda --set address_width={bits} (with the same VM and GPUs)"
        yield f"After rolling back, plan with the {bits} address bits that the host names", command


def _likely(error: RemoteError | NotAvailable, facts: HostFacts) -> Iterator[str]:
    """The likeliest cause of the host's error that the facts do not contradict."""
    from winhost.symptoms.diagnosis import explain_fault  # what only a failure needs

    known = explain_fault(error.fault, facts) if isinstance(error, RemoteError) else None
    cause = next((cause for cause in known.causes if cause.standing != "ruled-out"), None) if known else None
    if known and cause and cause.remedy:
        yield f"Likely cause: {cause.sentence} To tell: {cause.tell}"
        yield f"Remedy: {cause.remedy.do} Other causes and sources: winhost explain {known.code}"
