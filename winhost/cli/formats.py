"""The formats that `winhost schema` publishes: our files, and what commands answer programs with."""

from collections.abc import Mapping

FILES = ("facts", "plan", "fleet", "playbook", "workload", "host", "journal")

# Kind → version of its shape, which `winhost schema KIND` prints. Those at 2 had another shape before the envelope.
KINDS: Mapping[str, int] = {
    "detection": 1,
    "assessment": 2,
    "assessment-full": 2,
    "report": 1,
    "diff": 2,
    "explanation": 2,
    "codes": 1,
    "planning": 1,
    "outcome": 1,
    "check": 1,
    "runs": 1,
    "run": 1,
    "verification": 1,
    "bundle": 1,
    "lint": 1,
    "profile": 1,
    "lab": 1,
    "error": 1,
}


def schema_of(kind: str) -> str:
    """`winhost.assessment/2` of `assessment`."""
    return f"winhost.{kind}/{KINDS[kind]}"
