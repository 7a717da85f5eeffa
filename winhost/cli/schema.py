"""winhost schema: our file formats, for editors and validators."""

from collections.abc import Mapping
from typing import Any

from winhost.cli.apply import Checked
from winhost.cli.bundle import Bundled
from winhost.cli.chat import Chatted
from winhost.cli.detect import Detected, Probed
from winhost.cli.envelope import print_json
from winhost.cli.explain import Code
from winhost.cli.fetch import FetchedFolder
from winhost.cli.formats import schema_of
from winhost.cli.host import ListedHost
from winhost.cli.host_check import CheckedHost
from winhost.cli.jsonl import EndLine, EventLine
from winhost.cli.known import KnownSubject
from winhost.cli.lab import ListedLabHost
from winhost.cli.lint import Linted, LintedFile
from winhost.cli.media_install import InsertedMedia, MadeMedia
from winhost.cli.models import OfferedModels
from winhost.cli.plan_install import PlannedInstall
from winhost.cli.render import Rendered
from winhost.cli.report import Reported
from winhost.cli.running import EndedHost
from winhost.cli.runs import ListedRun, ShownRun
from winhost.cli.serve import Profiled
from winhost.cli.serve_change import ServingChange, Yielding
from winhost.cli.serve_keys import KeysOfHost
from winhost.cli.serve_status import ServingLine
from winhost.cli.serve_test import TestedServing
from winhost.cli.show_plan import PlannedHost
from winhost.cli.status import HostNow
from winhost.cli.verify import Verified
from winhost.cli.workload import Drafted
from winhost.compat.assess_answer import Brief, Full
from winhost.compat.compare import Diff
from winhost.engine.boot import LinuxFirmware, Switched
from winhost.engine.events import AnyEvent
from winhost.hub.refreshed import Refreshed
from winhost.lab.hostfile import HostFile
from winhost.model.documents import answer_schema, json_schema
from winhost.model.errors import ErrorResult
from winhost.model.facts import Facts
from winhost.model.fleetfile import FleetFile
from winhost.model.plan import Plan
from winhost.model.reason import Explanation
from winhost.model.workload import WorkloadFile
from winhost.paths.playbook import Playbook
from winhost.serving.packed_weights import WeightsFile
from winhost.serving.serving_status import ServingStatus
from winhost.symptoms.answer import Diagnosis

FILES: Mapping[str, Any] = {
    "facts": Facts,
    "plan": Plan,
    "fleet": FleetFile,
    "playbook": Playbook,
    "workload": WorkloadFile,
    "host": HostFile,
    "journal": AnyEvent,
}
LINES: Any = EventLine | EndLine

# The kinds of winhost.cli.formats. Any result may be an error instead.
RESULTS: Mapping[str, Any] = {
    "detection": Detected,
    "probe": Probed,
    "assessment": Brief,
    "assessment-full": Full,
    "report": Reported,
    "diff": Diff,
    "explanation": Explanation,
    "diagnosis": Diagnosis,
    "codes": Code,
    "known": KnownSubject,
    "planning": PlannedHost,
    "outcome": EndedHost,
    "check": Checked,
    "runs": ListedRun,
    "run": ShownRun,
    "verification": Verified,
    "boot": Switched,
    "boot-linux": LinuxFirmware,
    "bundle": Bundled,
    "lint": Linted,
    "recipe": LintedFile,
    "install-plan": PlannedInstall,
    "install-media": MadeMedia,
    "install-bmc": InsertedMedia,
    "profile": Profiled,
    "serving": ServingStatus,
    "serving-change": ServingChange,
    "serving-keys": KeysOfHost,
    "serving-log": ServingLine,
    "serving-test": TestedServing,
    "yield": Yielding,
    "hosts": ListedHost,
    "host-test": CheckedHost,
    "chat": Chatted,
    "status": HostNow,
    "lab": ListedLabHost,
    "draft": Drafted,
    "fetched": FetchedFolder,
    "weights": WeightsFile,
    "models": OfferedModels,
    "models-refreshed": Refreshed,
    "rendered": Rendered,
    "error": ErrorResult,
}


def schema(name: str) -> None:
    """Print the JSON Schema of a winhost file or output format."""
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", **_schema(name)}
    print_json(document, indent=2)


def _schema(name: str) -> dict[str, Any]:
    if name == "event":
        return answer_schema(LINES)
    return json_schema(FILES[name]) if name in FILES else results_schema(name)


def results_schema(kind: str) -> dict[str, Any]:
    """The JSON Schema of a document of this kind. Whoever reads one can rely on every field."""
    result = answer_schema(RESULTS[kind] | ErrorResult)
    return {
        "title": schema_of(kind),
        "type": "object",
        "properties": {
            "schema": {"const": schema_of(kind), "type": "string"},
            "results": {"type": "array", "items": {name: part for name, part in result.items() if name != "$defs"}},
        },
        "required": ["schema", "results"],
        "additionalProperties": False,
        "$defs": result["$defs"],
    }
