"""Reading a host: one batch, one document."""

from collections.abc import Iterable
from datetime import UTC, datetime

from winhost import __version__
from winhost.connect.agent import Agent
from winhost.model.facts import Answer, Facts
from winhost.resources.windows import NOUNS


def read_facts(agent: Agent, *, settled: bool = False) -> Facts:
    """Every noun of the host. With `settled`, after a call that may still be running there has ended."""
    nouns = agent.read(tuple(NOUNS), settled=settled)
    return Facts(
        host=agent.host,
        origin="synthetic" if _simulated(nouns["Session"]) else "recorded",
        read_at=datetime.now(UTC).isoformat(timespec="seconds"),
        winhost=__version__,
        nouns=nouns,
    )


def _simulated(session: Answer) -> bool:
    return isinstance(session, tuple) and any(record.state.get("simulated") is True for record in session)


def missing(facts: Facts) -> Iterable[tuple[str, str]]:
    """What could not be read and why, noun or noun.property: what a lack of rights has cost."""
    for noun, answer in facts.nouns.items():
        if not isinstance(answer, tuple):
            yield noun, str(answer)
            continue
        for record in answer:
            for name, value in record.state.items():
                if isinstance(value, dict) and set(value) == {"unknown"}:
                    yield f"{noun}.{name}", value["unknown"].get("message") or value["unknown"]["category"]
