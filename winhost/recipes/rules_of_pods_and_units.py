"""Rules that apply only to manifests of Kubernetes, or only to units of systemd."""

import math
import re
from collections.abc import Iterator, Mapping

from winhost.findings.finding import Observation
from winhost.recipes.command_editor import replace_value
from winhost.recipes.recipe_case import RecipeCase
from winhost.recipes.recipe_model import RecipeForm, Setting

MIN_START_SECONDS = 300  # seconds; a 7B model took 92 s from cold files, and fetching one takes longer
FASTEST_START_SECONDS = 60
_GUARDED = ("/v1", "/v2", "/inference", "/cohere")
_ROUTES = ("/health", "/ping", "/load", "/version", "/metrics", "/is_sleeping", "/is_paused", *_GUARDED)


def check_probes(case: RecipeCase) -> Iterator[Observation]:
    """Report probes that kill an engine while it loads, or that request the wrong path or port."""
    if case.engine.form is not RecipeForm.KUBERNETES or not case.engine.has_command:  # a chart has its own
        return
    found = case.engine.probes
    startup, liveness = found.get("startupProbe"), found.get("livenessProbe")
    if startup is not None and (given := _seconds_until_failure(startup)) < MIN_START_SECONDS:
        code = "startup-too-short" if given < FASTEST_START_SECONDS else "startup-may-be-short"
        yield Observation(code, _offset(case, "startupProbe"), {"seconds": given})
    elif startup is liveness is None or case.recipe.template:
        pass
    elif startup is None and liveness is not None and (given := _seconds_until_failure(liveness)) < MIN_START_SECONDS:
        code = "probe-kills-loading" if given < FASTEST_START_SECONDS else "probe-may-kill-loading"
        yield Observation(code, _offset(case, "livenessProbe"), {"seconds": given})
    if "readinessProbe" not in found:
        yield Observation("no-readiness", case.engine.position.start)
    elif case.engine.sleeps and found["readinessProbe"].get("httpGet.path") == "/health":
        yield Observation("ready-while-asleep", _offset(case, "readinessProbe"))
    for name, probe in found.items():
        yield from _check_target(name, probe, case)


def _seconds_until_failure(probe: Mapping[str, object]) -> float:
    """Return the seconds until a probe fails; infinite if a variable decides that."""

    def number(name: str, default: int) -> float:
        text = str(probe.get(name, ""))
        return math.inf if "$" in text else int(text) if text.isdigit() else default

    return number("initialDelaySeconds", 0) + number("periodSeconds", 10) * number("failureThreshold", 3)


def _check_target(name: str, probe: Mapping[str, object], case: RecipeCase) -> Iterator[Observation]:
    path, port = probe.get("httpGet.path"), str(probe.get("httpGet.port", ""))
    words = {"probe": name, "path": path, "value": port, "port": case.port}
    if path is not None:
        if case.has_key and str(path).startswith(_GUARDED):
            yield Observation("probe-needs-key", _offset(case, name), words)
        elif not str(path).startswith((*_ROUTES, "$")):
            yield Observation("probe-path", _offset(case, name), words)
    if port.isdigit() and case.port.isdigit() and port != case.port and not case.engine.option("--uds"):
        yield Observation("probe-port", _offset(case, name), words)


def _offset(case: RecipeCase, name: str) -> int:
    return case.engine.positions[name].start


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


def check_sandbox(case: RecipeCase) -> Iterator[Observation]:
    """Report what a unit's sandbox denies an engine: the GPU, its files, locked memory."""
    engine = case.engine
    if engine.form is not RecipeForm.SYSTEMD or engine.in_container or not engine.has_command:
        return  # the daemon that starts a container is in no sandbox
    yield from _check_devices(case)
    guard = engine.container_setting("ProtectHome")
    if guard is not None and (_is_yes(guard) or guard.value == "tmpfs"):
        for path in _paths_in_homes(case):
            yield Observation("home-hidden", guard.text.start, {**_values_of(guard), "path": path})
    yield from _check_locked_memory(case)


def _check_devices(case: RecipeCase) -> Iterator[Observation]:
    """Report GPUs that the unit hides or denies."""
    engine = case.engine
    elsewhere = (
        engine.kind in ("llama.cpp", "ollama", "ffmpeg") or case.on_other_platform
    )  # they compute without a GPU as well
    hides = engine.container_setting("PrivateDevices")
    if hides is not None and _is_yes(hides):
        code, edits = ("may-miss-gpu", ()) if elsewhere else ("devices-hidden", replace_value(hides.value_text, "no"))
        yield Observation(code, hides.text.start, _values_of(hides), edits)
    elif (denies := _denying_setting(case)) is not None and not (elsewhere and _DRM.search(denies.value or "")):
        yield Observation("may-miss-gpu" if elsewhere else "devices-denied", denies.text.start, _values_of(denies))


def _is_yes(setting: Setting) -> bool:
    return (setting.value or "").strip().casefold() in _YES


def _values_of(setting: Setting) -> dict[str, object]:
    return {"name": setting.name, "value": setting.display_value}


def _denying_setting(case: RecipeCase) -> Setting | None:
    """Return the setting that denies all devices except pseudo devices; None if GPUs are allowed."""
    allowed = [each for each in case.engine.container_settings("DeviceAllow") if each.value]
    policy = case.engine.container_setting("DevicePolicy")
    closed = policy if policy is not None and policy.value in ("closed", "strict") else None
    if any(re.search(r"nvidia|/dev/dxg|char-\*|\$|%", each.value or "") for each in allowed):
        return None
    return closed or (allowed[-1] if allowed else None)


def _paths_in_homes(case: RecipeCase) -> Iterator[str]:
    """Yield the first path of the engine in a folder that ProtectHome= hides, unless it is mounted again."""
    engine = case.engine
    texts = [each.value for each in engine.words] or [engine.model.value if engine.model else ""]
    texts += [each.value or "" for each in (*engine.options, *engine.variables)]
    texts += [each.value or "" for each in engine.container_settings("WorkingDirectory")]
    texts.append(engine.positions["command"].value if "command" in engine.positions else "")
    mounted = [
        each.value or "" for name in ("BindPaths", "BindReadOnlyPaths") for each in engine.container_settings(name)
    ]
    parts = [part.lstrip("-").split(":") for value in mounted for part in value.split()]  # source[:place[:options]]
    back = tuple(part[min(1, len(part) - 1)].rstrip("/") + "/" for part in parts)
    found = dict.fromkeys(match[1] for text in texts for match in _HOMES.finditer(text))
    yield from [path for path in found if not f"{path}/".startswith(back)][:1]


def _check_locked_memory(case: RecipeCase) -> Iterator[Observation]:
    """Report engines that lock more memory than the 8 MiB that systemd allows accounts other than root."""
    user, engine = case.engine.container_setting("User"), case.engine
    if user is None or user.value in ("root", "0") or engine.container_setting("LimitMEMLOCK"):
        return
    locks = engine.option("--kv-transfer-config") or any(word.value == "--mlock" for word in engine.words)
    if locks or engine.spans_machines:
        yield Observation("memlock-of-unit", user.text.start)


def check_start_time(case: RecipeCase) -> Iterator[Observation]:
    """Report starts that systemd aborts, because they take longer than its time limit."""
    engine = case.engine
    limit = engine.container_setting("TimeoutStartSec") or engine.container_setting("TimeoutSec")
    given = _seconds(limit.value or "") if limit else DEFAULT_START
    if given is None or given >= MIN_START_SECONDS:
        return
    oneshot = any(each.value == "oneshot" for each in engine.container_settings("Type"))
    if engine.form is RecipeForm.QUADLET:
        healthy = engine.container_setting("Notify")
        waits = healthy if healthy is not None and healthy.value == "healthy" else None
    elif engine.form is RecipeForm.SYSTEMD and not (oneshot and limit is None):
        waits = next((each for each in engine.container if _is_slow(each)), None)
    else:
        return
    if waits is not None:
        offset = (limit or waits).text.start
        yield Observation("start-too-short", offset, {**_values_of(waits), "seconds": f"{given:g}"})


def _is_slow(setting: Setting) -> bool:
    slow = {"ExecStartPre": _FETCHES, "ExecStartPost": _WAITS}.get(setting.name)
    return slow is not None and slow.search(setting.value or "") is not None


def _seconds(span: str) -> float | None:
    """Parse a time span of systemd into seconds; None if it is infinite or invalid."""
    span = re.sub(r"(?<![A-Za-z])M(?![A-Za-z])", "months", span).casefold()  # the one unit whose case counts
    parts = _PART.findall(span)
    if not parts or _PART.sub("", span).strip():
        return None
    if not all(unit.rstrip("s") in _SPANS or unit in _SPANS for _, unit in parts):
        return None
    whole = sum(float(number) * _SPANS.get(unit, _SPANS.get(unit.rstrip("s"), 1)) for number, unit in parts)
    return whole or None  # 0 waits without end


RULES = (check_probes, check_sandbox, check_start_time)
