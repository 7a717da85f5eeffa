"""The formats that `winhost schema` publishes: winhost's files, and the answers of commands to programs."""

from collections.abc import Mapping

# Format → its model within `winhost`. `winhost schema` imports only the requested one.
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

# Kind of result → the version of its format and its model, which `winhost schema KIND` prints. Removing or renaming a
# field needs a new version, which a test checks. Any result may be an error instead.
KINDS: Mapping[str, tuple[int, str]] = {
    "detection": (2, "cli.look.detect.Detected"),
    "probe": (1, "cli.look.detect.Probed"),
    "assessment": (3, "compat.assess_answer.Brief"),
    "assessment-full": (4, "compat.assess_answer.Full"),
    "report": (1, "cli.look.report.Reported"),
    "diff": (4, "compat.compare.Diff"),
    "explanation": (3, "model.reason.Explanation"),
    "diagnosis": (3, "symptoms.diagnosis.Diagnosis"),
    "codes": (1, "cli.look.explain.Code"),
    "known": (1, "cli.look.known.KnownSubject"),
    "planning": (2, "cli.plan.show.PlannedHost"),
    "outcome": (2, "cli.change.running.EndedHost"),
    "check": (2, "cli.change.apply.Checked"),
    "runs": (1, "cli.change.runs.ListedRun"),
    "run": (2, "cli.change.runs.ShownRun"),
    "verification": (2, "cli.change.verify.Verified"),
    "boot": (1, "engine.boot.SwitchResult"),
    "boot-linux": (1, "engine.boot.LinuxFirmware"),
    "bundle": (1, "cli.change.offline.Bundled"),
    "lint": (3, "cli.lint.lint.Linted"),
    "recipe": (3, "cli.lint.lint.LintedFile"),
    "install-plan": (1, "cli.install.install.PlannedInstall"),
    "install-media": (1, "cli.install.install.MadeMedia"),
    "install-bmc": (1, "cli.install.install.InsertedMedia"),
    "profile": (4, "cli.serve.serve.Profiled"),
    "serving": (1, "serving.serving_status.ServingStatus"),
    "serving-change": (1, "cli.serve.change.ServingChange"),
    "serving-keys": (1, "cli.serve.keys.KeysOfHost"),
    "serving-log": (1, "cli.serve.status.ServingLine"),
    "serving-test": (1, "cli.serve.status.TestedServing"),
    "yield": (1, "cli.serve.change.Yielding"),
    "hosts": (1, "cli.host.hosts.ListedHost"),
    "host-test": (1, "cli.host.check.CheckedHost"),
    "chat": (1, "cli.endpoint.chat.Chatted"),
    "status": (1, "cli.endpoint.status.HostNow"),
    "lab": (1, "cli.lab.lab.ListedLabHost"),
    "draft": (1, "cli.models.models.Drafted"),
    "fetched": (1, "cli.change.offline.FetchedFolder"),
    "models": (1, "cli.models.models.OfferedModels"),
    "models-refreshed": (1, "hub.refreshed.Refreshed"),
    "weights": (1, "serving.packed_weights.WeightsFile"),
    "rendered": (1, "cli.render.render.Rendered"),
    "error": (1, "model.errors.ErrorResult"),
}


def schema_of(kind: str) -> str:
    """Return the name of a kind's format with its version, such as `winhost.assessment/3` for `assessment`."""
    return f"winhost.{kind}/{KINDS[kind][0]}"
