"""Going back: undo exactly what a run changed, in reverse, and keep what others now use."""

from collections.abc import Iterable, Iterator, Mapping, Set

from winhost.engine.failures import ConsentNeeded
from winhost.engine.order import Id, identity, state_of, steps_for
from winhost.engine.record import Record, Touched
from winhost.engine.run import Means, Outcome, Runner
from winhost.engine.verify import Check, check
from winhost.model.facts import Facts, Json, Key, MissingFact, Unavailable
from winhost.model.plan import Step, Wanted, in_order
from winhost.resources.base import Keep, Undo
from winhost.resources.nouns import NOUNS


def rollback(run: str, accepted: Iterable[str], means: Means) -> Outcome:
    """Give the host back. Safe to repeat: what is undone already needs nothing. Raises ConsentNeeded first."""
    with means.store.lock(means.way.host, f"rollback {run}"):
        runner = Runner(run, means)
        with runner.reaching():
            return _back(runner, frozenset(accepted))


def look(run: str, means: Means) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    """The same as `preview`, of the host as it is now. Changes nothing."""
    with means.store.lock(means.way.host, f"rollback {run}"):
        runner = Runner(run, means)
        with runner.reaching():
            runner.hands.reach()
            return preview(runner.record, runner.seen())


def preview(record: Record, facts: Facts) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    """What rollback would do now, and what it would keep."""
    wanted, kept = _wanted(record, facts)
    return tuple(step for part in _parts(wanted) for step in _steps(part, facts, record)), tuple(kept.values())


def _back(runner: Runner, accepted: frozenset[str]) -> Outcome:
    facts = runner.settle()
    wanted, kept = _wanted(runner.record, facts)
    _ask_first(runner, wanted, facts, accepted)
    if not runner.record.going_back or accepted - runner.record.accepted:
        # Consents given for going there are not consents for going back.
        runner.write("back", accepted=sorted(accepted))
    for part in _parts(wanted):
        runner.do(_steps(part, facts, runner.record), facts)
        facts = runner.hands.facts()
        wanted, seen = _wanted(runner.record, facts)
        kept = {**_out_of_sight(kept, runner.record, facts), **seen}
    for sentence in kept.values():
        runner.tell("kept", sentence)
    checks = tuple(_left_to_undo(wanted, facts))
    outcome = "rolled back" if not checks else "not all rolled back"
    if runner.record.outcome != outcome:
        runner.write("outcome", outcome=outcome)
    return Outcome(runner.run, runner.record.host, outcome, runner.changed, checks, tuple(kept.values()))


def _ask_first(runner: Runner, wanted: tuple[Wanted, ...], facts: Facts, accepted: frozenset[str]) -> None:
    """All consents before the first step back, so that a refusal leaves the run as it was."""
    needed = in_order(
        risk for part in _parts(wanted) for step in _steps(part, facts, runner.record) for risk in step.risks
    )
    lacking = tuple(risk for risk in needed if risk not in accepted)
    if lacking:
        raise ConsentNeeded(runner.record.host, runner.run, lacking, True, runner.record.going_back)


def _left_to_undo(wanted: tuple[Wanted, ...], facts: Facts) -> Iterator[Check]:
    return (found for wish in wanted for found in check(wish, facts) if not found.holds)


def _parts(wanted: tuple[Wanted, ...]) -> list[tuple[Wanted, ...]]:
    """What needs no restart first: without the role there would be no VM left to give its settings back to."""
    late = tuple(wish for wish in wanted if NOUNS[wish.noun].restarts)
    soon = tuple(wish for wish in wanted if not NOUNS[wish.noun].restarts)
    return [part for part in (soon, late) if part]


def _steps(wanted: tuple[Wanted, ...], facts: Facts, record: Record) -> tuple[Step, ...]:
    titles = {id_: touched.title for id_, touched in record.touched.items()}
    return steps_for(wanted, facts, prefix="u", role="undo", backwards=True, titles=titles)


def _wanted(record: Record, facts: Facts) -> tuple[tuple[Wanted, ...], Mapping[Id, str]]:
    """What is to be put back, and what is kept and why."""
    undone = {id_: _undo(touched, facts, record) for id_, touched in record.touched.items()}
    taken = {id_ for id_, result in undone.items() if _rest(result)}
    wanted: list[Wanted] = []
    kept: dict[Id, str] = {}
    for id_, touched in record.touched.items():
        result = _unless_used(touched, undone[id_], taken, facts)
        if isinstance(result, Keep):
            kept[id_] = f"{touched.title}: kept: {result.reason}"
        if rest := _rest(result):
            wanted.append(Wanted(touched.noun, touched.key, rest, touched.title, "As it was found."))
    return tuple(wanted), kept


def _out_of_sight(kept: Mapping[Id, str], record: Record, facts: Facts) -> Mapping[Id, str]:
    """What was kept and cannot be seen any more: it stays kept, though the way to it is gone by now.

    But not what was a part of something that this run had made and has taken away.
    """
    return {
        id_: sentence
        for id_, sentence in kept.items()
        if _missing(record.touched[id_], facts) and not _went_along(record.touched[id_], record, facts)
    }


def _went_along(touched: Touched, record: Record, facts: Facts) -> bool:
    return any(
        NOUNS[touched.noun].requires == whole.noun
        and whole.key.items() <= touched.key.items()
        and whole.before == NOUNS[whole.noun].absent
        and _is_as_found(whole, facts)
        for whole in record.touched.values()
    )


def _is_as_found(touched: Touched, facts: Facts) -> bool:
    """Or was last seen so on the way back, where the way to it is gone by now."""
    if _missing(touched, facts):
        return bool(touched.moved) and all(state.items() <= touched.before.items() for state in touched.moved)
    return state_of(facts, touched.noun, touched.key) == touched.before


def _missing(touched: Touched, facts: Facts) -> bool:
    try:
        state_of(facts, touched.noun, touched.key)
    except MissingFact:
        return True
    return False


def _rest(undo: Undo) -> Mapping[str, Json]:
    return undo.rest if isinstance(undo, Keep) else undo


def _unless_used(touched: Touched, undo: Undo, taken: Set[Id], facts: Facts) -> Undo:
    """What came since, from another run or by hand, stands on what this run made: to undo that would break it."""
    if not _rest(undo):
        return undo
    try:
        users = tuple(NOUNS[touched.noun].users(touched.key, facts))
    except MissingFact as missing:
        return Keep(str(missing))
    since = [_named(noun, key) for noun, key in users if identity(noun, key) not in taken | touched.users]
    return Keep(f"for {', '.join(since)}, which came since; take that back, then this again") if since else undo


def _named(noun: str, key: Key) -> str:
    return key[NOUNS[noun].key[0]] if key else noun


def _undo(touched: Touched, facts: Facts, record: Record) -> Undo:
    try:
        now = state_of(facts, touched.noun, touched.key)
    except MissingFact as missing:
        # What is there only since we installed the role went with it, once we are on the way back from that.
        ours = {other.noun for other in record.touched.values() if record.going_back and other.moved}
        gone = isinstance(missing.missing, Unavailable) and missing.missing.unavailable in ours
        return {} if gone else Keep(str(missing))
    if now is None:
        return Keep("it is not there any more")
    before = {name: touched.before[name] for name in touched.changed}
    moved = {name: now[name] for name in before for state in touched.moved if state.get(name) == now[name]}
    return NOUNS[touched.noun].undo(before, {**touched.after, **moved}, now)
