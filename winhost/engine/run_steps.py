"""Core's loop for a host that is reached over a connection: how it is read and restarted, and errors of steps."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from winhost.connect.wire_errors import Drifted, NotAvailable, RemoteError
from winhost.core.answers import HostAnswers, Id, Json
from winhost.core.loop import Loop, StepFailure
from winhost.core.steps import Step
from winhost.engine import amend
from winhost.engine.failures import ConsentNeeded, NextStep, RunInterrupted, describe_error, next_steps_of
from winhost.engine.host_session import HostSession
from winhost.engine.installing import Installation, check_booted_system, offering_settings, will_boot_linux
from winhost.engine.open_run import OpenRun
from winhost.engine.run_state import RunState
from winhost.model.facts import Facts
from winhost.model.plan import RISKS, sort_risks
from winhost.resources.host import HostFacts
from winhost.resources.registry import RESOURCE_TYPES, host_answers


class WorkingRun(OpenRun, Loop):
    """A run that changes a host. facts: the last facts of the host."""

    UNAVAILABLE_ERROR = NotAvailable
    STEP_ERRORS = (Drifted, RemoteError, NotAvailable)
    session: HostSession
    record: RunState
    facts: Facts
    host: HostAnswers
    _installation = Installation()

    def wait_until_settled(self, *, rolling_back: bool = False) -> Facts:
        """Wait until the host can be reached, finish a pending restart, then read the host. rolling_back: do not
        restart into the other system, because the rollback first undoes that choice.
        """
        if self.journal is not None:
            self.session.wait_until_reachable()
            if not (rolling_back and will_boot_linux(self)):
                self.finish_restart()
        return self.read_planned_host()

    # ---- what the host is asked

    def read(self, *, settled: bool = False) -> Facts:
        self.facts = super().read(settled=settled)
        self.host = host_answers(self.facts)
        return self.facts

    def read_host(self) -> None:
        self.read()

    @property
    def consents(self) -> frozenset[str]:
        return self.record.accepted

    def step_failure(self, step: Step, error: Exception) -> StepFailure:
        if not isinstance(error, RemoteError | NotAvailable):
            return StepFailure(error, {"error": str(error)}, drifted=True)
        # After NotAvailable the state cannot be read, so it is not known how far the step came.
        after = error.after if isinstance(error, RemoteError) else None
        interruption = self._step_failed_error(step, error)
        interruption.__cause__ = error
        return StepFailure(interruption, {"error": str(error)}, after=after)

    def _step_failed_error(self, step: Step, error: RemoteError | NotAvailable) -> RunInterrupted:
        """Make the error for a step that the host refused, or that lost what it needs."""
        record, back = self.record, self.record.going_back
        is_first = len(record.touched) == 1
        sentences = ["It was the first step." if is_first else "Steps before this one are done and journalled."]
        for risk in (risk for risk in step.may_need if risk not in record.accepted):
            sentences.append(f"{_HELPS.get(risk, 'If the host asks for it')}, --accept {risk} allows: {RISKS[risk]}.")
        # If only this step can check a value of the request, offer to choose another one.
        retry_options = None if back else amend.retry_options_for_step(record.plan, step.resource)
        steps = next_steps_of(self.name, back, retry_options=retry_options)
        return RunInterrupted(
            "StepFailed",
            what=f"{step.title}: {describe_error(error)}",
            meaning="\n".join((" ".join(sentences), *_likely_cause(error, HostFacts(self.facts)))),
            host=record.host,
            run=self.name,
            going_back=back,
            next_steps=(*steps, *_replan_with_width(record.host, error)),
        )

    def restart_host(self, boot: str) -> str:
        with offering_settings(self) as self._installation:
            self.report("restart", "restarting")
            return self.session.restart(boot, self._installation.extra_wait)

    def check_restarted(self) -> None:
        check_booted_system(self, self._installation)

    def takes_effect_with_restart(self, resource: str) -> bool:
        """Tell whether a change of this resource restarts the host or its VM."""
        return RESOURCE_TYPES[resource].restarts

    def remove_marks(self, keep: Iterable[Id]) -> None:
        self.forget_marks(self.facts, keep)

    # ---- what ends it before its end

    def require_consents(self, steps: Sequence[Step]) -> None:
        missing = self.missing_consents(steps, self.record.accepted)
        if missing:
            record = self.record
            raise ConsentNeeded(record.host, self.name_if_started, missing, record.going_back, not record.unchanged)

    @staticmethod
    def missing_consents(steps: Sequence[Step], accepted: frozenset[str]) -> tuple[str, ...]:
        """Return the consents that these steps need and that were not given."""
        return tuple(risk for risk in sort_risks(risk for step in steps for risk in step.risks) if risk not in accepted)

    def not_applied(self, step: Step, unmet: Mapping[str, tuple[Json, Json]]) -> Exception:
        """Make the error for a step that the host accepted without applying it. unmet: property → (desired,
        present).
        """
        listed = "; ".join(f"{name} should be {desired!r}, is {found!r}" for name, (desired, found) in unmet.items())
        return self.interrupted("NotTaken", f"{step.title}: accepted without error, but {listed}")


# The cases in which a consent that a step may need would have helped.
_HELPS = {
    "force-dismount": "If the host says that nothing contains this device",
    "vm-turn-off": "If the guest does not shut down by itself",
    "containers": "If containers run that would end with Docker",
}


def _replan_with_width(host: str, error: RemoteError | NotAvailable) -> Iterator[NextStep]:
    """Offer to plan again for an MMIO window that ends too high: a resumed run would fail again."""
    from winhost.symptoms.codes import address_bits  # only failures need it

    bits = address_bits(error.fault.message) if isinstance(error, RemoteError) else None
    if bits is not None:
        command = f"winhost plan {host} --path dda --set address_width={bits} (with the same VM and GPUs)"
        yield f"After rolling back, plan with the {bits} address bits that the host names", command


def _likely_cause(error: RemoteError | NotAvailable, facts: HostFacts) -> Iterator[str]:
    """Yield the likeliest cause of the host's error that the facts do not rule out."""
    from winhost.symptoms.diagnosis import explain_fault  # only failures need it

    diagnosis = explain_fault(error.fault, facts) if isinstance(error, RemoteError) else None
    cause = next((cause for cause in diagnosis.causes if cause.standing != "ruled-out"), None) if diagnosis else None
    if diagnosis and cause and cause.remedy:
        yield f"Likely cause: {cause.sentence} To tell: {cause.tell}"
        yield f"Remedy: {cause.remedy.do} Other causes and sources: winhost explain {diagnosis.code}"
