"""End work on a run before the run ends: say why, in its journal too, and how to resume it or roll it back."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from winhost.connect.ways_in import GuestSilent
from winhost.connect.wire_errors import WireError, error_of
from winhost.core.answers import MissingFact
from winhost.engine.failures import EndOfRun, halted
from winhost.engine.open_run import OpenRun
from winhost.engine.uploads import UploadInterrupted
from winhost.model.errors import WinhostError, visible
from winhost.resources.registry import unread

_NOTHING_LOST = "The journal knows what was begun and the host what is true: nothing is lost."


@contextmanager
def reaching(run: OpenRun, *, looking: bool = False) -> Iterator[None]:
    """Close the wire in the end; a run that ends before its end says why, in its journal too, and how to go on.

    looking: the run is only looked at, which is no part of it and leaves no line.
    Raises EndOfRun, and what stands in the way of a run that has changed nothing as it is.
    """
    try:
        yield
    except (WinhostError, MissingFact, KeyboardInterrupt, UploadInterrupted) as error:
        ending = _ending(run, error)
        if not looking:
            _write_stopped(run, ending)
        if ending is error:
            raise
        raise ending from error
    finally:
        run.session.close()


def _ending(
    run: OpenRun, error: WinhostError | MissingFact | KeyboardInterrupt | UploadInterrupted
) -> WinhostError | KeyboardInterrupt:
    """The error with the ways on and back, where there are any."""
    host, back = run.record.host, run.record.going_back
    if isinstance(error, MissingFact):
        error = error_of(error, host) or error
    if isinstance(error, UploadInterrupted):
        return _stopped(run)
    if isinstance(error, MissingFact):
        return EndOfRun(
            "CannotTell",
            what=f"{host}: {visible(unread(error))}",
            meaning="Nothing is changed without it: neither what to do nor how to undo it would be known.",
            host=host,
            run=run.begun,
            going_back=back,
        )
    if isinstance(error, EndOfRun) or run.journal is None:
        return error
    if isinstance(error, KeyboardInterrupt):
        return EndOfRun(
            "CutShort",
            what=f"{host}: stopped in the middle of a step, as you asked",
            meaning="That step may still be going on there. Whoever goes on or back waits for it and reads again.",
            host=host,
            run=run.name,
            going_back=back,
        )
    if isinstance(error, WireError):
        return EndOfRun(
            "OutOfReach",
            what=error.what,
            meaning=error.meaning if _has_advice(error) else _NOTHING_LOST,
            host=host,
            run=run.name,
            going_back=back,
            exit_code=error.exit_code,
        )
    return error if run.record.unchanged else halted(host, run.name, error, back)


def _has_advice(error: WireError) -> bool:
    """It says what to look at where nobody answers."""
    return isinstance(error, GuestSilent) or error.code == "NotBack"


def _write_stopped(run: OpenRun, ending: WinhostError | KeyboardInterrupt) -> None:
    """Record the reason for `winhost runs`: where a terminal was, there may be none by now. Not for a mere preview."""
    if run.journal is None or not isinstance(ending, WinhostError):
        return
    if run.record.outcome is not None and len(run.journal.entries) == run.began_at:
        return
    next_ = [command for _, command in ending.next_steps] if isinstance(ending, EndOfRun) else []
    with suppress(EndOfRun):  # then it is the journal that stopped it
        run.write("stopped", why=ending.what, next=next_)
        if run.record.unchanged and not run.record.going_back:
            with suppress(WinhostError):  # a mark of what was not done says nothing
                run.forget_marks()
            run.write("outcome", outcome="nothing changed")


def stop_if_asked(run: OpenRun) -> None:
    """Stop between two steps if somebody asked. Raises EndOfRun: Stopped."""
    if run.context.stop():
        raise _stopped(run)


def _stopped(run: OpenRun) -> EndOfRun:
    """Stopped from outside, after a step or between two pieces of a file that it sends."""
    record = run.record
    changes = f"{run.changed} {'change' if run.changed == 1 else 'changes'}"
    return EndOfRun(
        "Stopped",
        what=f"{record.host}: stopped after {changes}, {run.context.why()}",
        meaning=f"Until it goes on or back: {'; '.join(record.midway)}." if record.midway else None,
        host=record.host,
        run=run.begun,
        going_back=record.going_back,
    )
