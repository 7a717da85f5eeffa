"""The formats that `winhost schema` publishes: our files, and what commands answer programs with."""

from collections.abc import Mapping

# Each format with where in `winhost` its model stands; schema.py imports the one that is asked for.
FILES: Mapping[str, str] = {
    "facts": "model.facts.Facts",
    "plan": "model.plan.Plan",
    "fleet": "model.fleet.FleetFile",
    "playbook": "paths.playbook.Playbook",
    "workload": "model.workload.WorkloadFile",
    "host": "lab.hostfile.HostFile",
    "journal": "engine.events.AnyEvent",
}
LINES = "cli.jsonl.AnyLine"

# Kind of result → the version of its shape and its model, which `winhost schema KIND` prints. A field that goes or gets
# another name is a new version; a test holds that. Any result may be an error instead.
KINDS: Mapping[str, tuple[int, str]] = {
    "detection": (2, "cli.detect.Detected"),
    "probe": (1, "cli.detect.Probed"),
    "assessment": (3, "compat.assess_answer.Brief"),
    "assessment-full": (4, "compat.assess_answer.Full"),
    "report": (1, "cli.report.Reported"),
    "diff": (4, "compat.compare.Diff"),
    "explanation": (3, "model.reason.Explanation"),
    "diagnosis": (3, "symptoms.diagnosis.Diagnosis"),
    "codes": (1, "cli.explain.Code"),
    "known": (1, "cli.known.KnownSubject"),
    "planning": (2, "cli.show_plan.PlannedHost"),
    "outcome": (2, "cli.running.EndedHost"),
    "check": (2, "cli.apply.Checked"),
    "runs": (1, "cli.runs.ListedRun"),
    "run": (2, "cli.runs.ShownRun"),
    "verification": (2, "cli.verify.Verified"),
    "boot": (1, "engine.boot.Switched"),
    "boot-linux": (1, "engine.boot.LinuxFirmware"),
    "bundle": (1, "cli.offline.Bundled"),
    "lint": (3, "cli.lint.Linted"),
    "recipe": (3, "cli.lint.LintedFile"),
    "install-plan": (1, "cli.install.PlannedInstall"),
    "install-media": (1, "cli.install.MadeMedia"),
    "install-bmc": (1, "cli.install.InsertedMedia"),
    "profile": (4, "cli.serve.Profiled"),
    "serving": (1, "serving.serving_status.ServingStatus"),
    "serving-change": (1, "cli.serve_change.ServingChange"),
    "serving-keys": (1, "cli.serve_keys.KeysOfHost"),
    "serving-log": (1, "cli.serve_status.ServingLine"),
    "serving-test": (1, "cli.serve_status.TestedServing"),
    "yield": (1, "cli.serve_change.Yielding"),
    "hosts": (1, "cli.host.ListedHost"),
    "host-test": (1, "cli.host_check.CheckedHost"),
    "chat": (1, "cli.chat.Chatted"),
    "status": (1, "cli.status.HostNow"),
    "lab": (1, "cli.lab.ListedLabHost"),
    "draft": (1, "cli.models.Drafted"),
    "fetched": (1, "cli.offline.FetchedFolder"),
    "models": (1, "cli.models.OfferedModels"),
    "models-refreshed": (1, "hub.refreshed.Refreshed"),
    "weights": (1, "serving.packed_weights.WeightsFile"),
    "rendered": (1, "cli.render.Rendered"),
    "error": (1, "model.errors.ErrorResult"),
}


def schema_of(kind: str) -> str:
    """`winhost.assessment/3` of `assessment`."""
    return f"winhost.{kind}/{KINDS[kind][0]}"
