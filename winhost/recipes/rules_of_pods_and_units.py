"""Rules that only manifests of Kubernetes, or only units of systemd, have."""

import math
import re
from collections.abc import Iterator, Mapping

from winhost.findings.finding import Observation
from winhost.recipes.command_editor import replaced
from winhost.recipes.recipe_case import RecipeCase
from winhost.recipes.recipe_model import RecipeForm, Setting

LEAST_START = 300  # seconds; a 7B model took 92 s from cold files, and fetching one takes longer
QUICKEST_START = 60
_GUARDED = ("/v1", "/v2", "/inference", "/cohere")
_ROUTES = ("/health", "/ping", "/load", "/version", "/metrics", "/is_sleeping", "/is_paused", *_GUARDED)


def probes(case: RecipeCase) -> Iterator[Observation]:
    """Probes that kill an engine while it loads, or ask at the wrong place."""
    if case.engine.form is not RecipeForm.KUBERNETES or not case.engine.known:  # a chart has its own
        return
    found = case.engine.probes
    startup, liveness = found.get("startupProbe"), found.get("livenessProbe")
    if startup is not None and (given := _patience(startup)) < LEAST_START:
        code = "startup-too-short" if given < QUICKEST_START else "startup-may-be-short"
        yield Observation(code, _at(case, "startupProbe"), {"seconds": given})
    elif startup is liveness is None or case.recipe.template:
        pass
    elif startup is None and liveness is not None and (given := _patience(liveness)) < LEAST_START:
        code = "probe-kills-loading" if given < QUICKEST_START else "probe-may-kill-loading"
        yield Observation(code, _at(case, "livenessProbe"), {"seconds": given})
    if "readinessProbe" not in found:
        yield Observation("no-readiness", case.engine.at.start)
    elif case.engine.sleeps and found["readinessProbe"].get("httpGet.path") == "/health":
        yield Observation("ready-while-asleep", _at(case, "readinessProbe"))
    for name, probe in found.items():
        yield from _asks(name, probe, case)


def _patience(probe: Mapping[str, object]) -> float:
    """Seconds until it gives up; without end where a variable tells."""

    def number(name: str, default: int) -> float:
        text = str(probe.get(name, ""))
        return math.inf if "$" in text else int(text) if text.isdigit() else default

    return number("initialDelaySeconds", 0) + number("periodSeconds", 10) * number("failureThreshold", 3)


def _asks(name: str, probe: Mapping[str, object], case: RecipeCase) -> Iterator[Observation]:
    path, port = probe.get("httpGet.path"), str(probe.get("httpGet.port", ""))
    words = {"probe": name, "path": path, "value": port, "port": case.port}
    if path is not None:
        if case.has_key and str(path).startswith(_GUARDED):
            yield Observation("probe-needs-key", _at(case, name), words)
        elif not str(path).startswith((*_ROUTES, "$")):
            yield Observation("probe-path", _at(case, name), words)
    if port.isdigit() and case.port.isdigit() and port != case.port and not case.engine.option("--uds"):
        yield Observation("probe-port", _at(case, name), words)


def _at(case: RecipeCase, name: str) -> int:
    return case.engine.places[name].start


_YES = ("yes", "true", "on", "1", "y", "t")
_HOMES = re.compile(r"(?:^|[=:,])((?:/home|/root|/run/user|%h|~)(?=/|$)[^\s:,]*)")
_SPANS = {
    "": 1,
    "s": 1,
    "sec": 1,
    "m": 60,
    "min": 60,
    "h": 3600,
    "hr": 3600,
    "d": 86400,
    "month": 2_629_800,
    "ms": 0.001,
}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)")
_FETCHES = re.compile(
    r"\b(docker|podman|nerdctl)\b.* pull\b|\b(hf|huggingface-cli) download\b|\bollama pull\b|\bgit clone\b"
)
_WAITS = re.compile(r"/health\b|/v1/models\b|/api/tags\b|wait-for|\buntil\b|\bwhile\b")
_DRM = re.compile(r"/dev/dri|char-drm|/dev/kfd")  # the GPUs of other makers, and what Vulkan may use
DEFAULT_START = 90  # seconds: DefaultTimeoutStartSec of systemd


def sandbox(case: RecipeCase) -> Iterator[Observation]:
    """Find what a unit's sandbox takes away that an engine needs: the GPU, its files, locked memory."""
    engine = case.engine
    if engine.form is not RecipeForm.SYSTEMD or engine.in_container or not engine.known:
        return  # a container is started by a daemon that is in no sandbox
    yield from _devices(case)
    guard = engine.boxed("ProtectHome")
    if guard is not None and (_is_yes(guard) or guard.value == "tmpfs"):
        for path in _below_homes(case):
            yield Observation("home-hidden", guard.text.start, {**_said(guard), "path": path})
    yield from _locked(case)


def _devices(case: RecipeCase) -> Iterator[Observation]:
    """Find GPUs that the unit hides or denies."""
    engine = case.engine
    elsewhere = engine.kind in ("llama.cpp", "ollama", "ffmpeg") or case.on_others  # they compute without a GPU as well
    hides = engine.boxed("PrivateDevices")
    if hides is not None and _is_yes(hides):
        code, edits = ("may-miss-gpu", ()) if elsewhere else ("devices-hidden", replaced(hides.shown, "no"))
        yield Observation(code, hides.text.start, _said(hides), edits)
    elif (denies := _denied(case)) is not None and not (elsewhere and _DRM.search(denies.value or "")):
        yield Observation("may-miss-gpu" if elsewhere else "devices-denied", denies.text.start, _said(denies))


def _is_yes(setting: Setting) -> bool:
    return (setting.value or "").strip().casefold() in _YES


def _said(setting: Setting) -> dict[str, object]:
    return {"name": setting.name, "value": setting.told}


def _denied(case: RecipeCase) -> Setting | None:
    """The setting that leaves no device but the pseudo ones; systemd allows all where neither is there."""
    allowed = [each for each in case.engine.all_boxed("DeviceAllow") if each.value]
    policy = case.engine.boxed("DevicePolicy")
    closed = policy if policy is not None and policy.value in ("closed", "strict") else None
    if any(re.search(r"nvidia|/dev/dxg|char-\*|\$|%", each.value or "") for each in allowed):
        return None
    return closed or (allowed[-1] if allowed else None)


def _below_homes(case: RecipeCase) -> Iterator[str]:
    """Paths of the engine below the folders that ProtectHome= empties, but for those that are mounted back."""
    engine = case.engine
    texts = [each.value for each in engine.words] or [engine.model.value if engine.model else ""]
    texts += [each.value or "" for each in (*engine.options, *engine.variables)]
    texts += [each.value or "" for each in engine.all_boxed("WorkingDirectory")]
    texts.append(engine.places["command"].value if "command" in engine.places else "")
    mounted = [each.value or "" for name in ("BindPaths", "BindReadOnlyPaths") for each in engine.all_boxed(name)]
    parts = [part.lstrip("-").split(":") for value in mounted for part in value.split()]  # source[:place[:options]]
    back = tuple(part[min(1, len(part) - 1)].rstrip("/") + "/" for part in parts)
    found = dict.fromkeys(match[1] for text in texts for match in _HOMES.finditer(text))
    yield from [path for path in found if not f"{path}/".startswith(back)][:1]


def _locked(case: RecipeCase) -> Iterator[Observation]:
    """Find engines that lock more memory than the 8 MiB that systemd lets an account other than root lock."""
    user, engine = case.engine.boxed("User"), case.engine
    if user is None or user.value in ("root", "0") or engine.boxed("LimitMEMLOCK"):
        return
    locks = engine.option("--kv-transfer-config") or any(word.value == "--mlock" for word in engine.words)
    if locks or engine.spread:
        yield Observation("memlock-of-unit", user.text.start)


def start_time(case: RecipeCase) -> Iterator[Observation]:
    """Find starts that systemd ends although they go on: what it waits for takes longer than it waits."""
    engine = case.engine
    limit = engine.boxed("TimeoutStartSec") or engine.boxed("TimeoutSec")
    given = _seconds(limit.value or "") if limit else DEFAULT_START
    if given is None or given >= LEAST_START:
        return
    oneshot = any(each.value == "oneshot" for each in engine.all_boxed("Type"))
    if engine.form is RecipeForm.QUADLET:
        healthy = engine.boxed("Notify")
        waits = healthy if healthy is not None and healthy.value == "healthy" else None
    elif engine.form is RecipeForm.SYSTEMD and not (oneshot and limit is None):
        waits = next((each for each in engine.container if _is_slow(each)), None)
    else:
        return
    if waits is not None:
        offset = (limit or waits).text.start
        yield Observation("start-too-short", offset, {**_said(waits), "seconds": f"{given:g}"})


def _is_slow(setting: Setting) -> bool:
    slow = {"ExecStartPre": _FETCHES, "ExecStartPost": _WAITS}.get(setting.name)
    return slow is not None and slow.search(setting.value or "") is not None


def _seconds(span: str) -> float | None:
    """A time span of systemd; None for one without end or that cannot be read."""
    span = re.sub(r"(?<![A-Za-z])M(?![A-Za-z])", "months", span).casefold()  # the one unit whose case counts
    parts = _PART.findall(span)
    if not parts or _PART.sub("", span).strip():
        return None
    if not all(unit.rstrip("s") in _SPANS or unit in _SPANS for _, unit in parts):
        return None
    whole = sum(float(number) * _SPANS.get(unit, _SPANS.get(unit.rstrip("s"), 1)) for number, unit in parts)
    return whole or None  # 0 waits without end


RULES = (probes, sandbox, start_time)
