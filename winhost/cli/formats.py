"""The formats that `winhost schema` publishes: our files, and what commands answer programs with."""

from collections.abc import Mapping

FILES = ("facts", "plan", "fleet", "playbook", "workload", "host", "journal")

# Kind → version of its shape, which `winhost schema KIND` prints. A field that goes or gets another name is a new
# version; a test holds that.
KINDS: Mapping[str, int] = {
    "detection": 2,
    "probe": 1,
    "assessment": 2,
    "assessment-full": 2,
    "report": 1,
    "diff": 3,
    "explanation": 2,
    "diagnosis": 2,
    "codes": 1,
    "known": 1,
    "planning": 2,
    "outcome": 2,
    "check": 2,
    "runs": 1,
    "run": 2,
    "verification": 2,
    "boot": 1,
    "boot-linux": 1,
    "bundle": 1,
    "lint": 2,
    "recipe": 2,
    "install-plan": 1,
    "install-media": 1,
    "install-bmc": 1,
    "profile": 2,
    "serving": 1,
    "serving-change": 1,
    "serving-keys": 1,
    "serving-log": 1,
    "serving-test": 1,
    "yield": 1,
    "hosts": 1,
    "host-test": 1,
    "chat": 1,
    "status": 1,
    "lab": 1,
    "draft": 1,
    "fetched": 1,
    "models": 1,
    "models-refreshed": 1,
    "weights": 1,
    "rendered": 1,
    "error": 1,
}


def schema_of(kind: str) -> str:
    """`winhost.assessment/2` of `assessment`."""
    return f"winhost.{kind}/{KINDS[kind]}"
