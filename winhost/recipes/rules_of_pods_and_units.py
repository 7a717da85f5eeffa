"""Rules that only manifests of Kubernetes, or only units of systemd, have."""

import math
from collections.abc import Iterator, Mapping

from winhost.findings.finding import Found
from winhost.recipes.command_editor import replaced
from winhost.recipes.misspelt import suggested
from winhost.recipes.recipe_case import RecipeCase
from winhost.recipes.recipe_model import RecipeForm
from winhost.recipes.words import container_options

LEAST_START = 300  # seconds; a 7B model took 92 s from cold files, and fetching one takes longer
QUICKEST_START = 60
_ALWAYS = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "LeaderWorkerSet")
_GUARDED = ("/v1", "/v2", "/inference", "/cohere")
_ROUTES = ("/health", "/ping", "/load", "/version", "/metrics", "/is_sleeping", "/is_paused", *_GUARDED)


def manifest(case: RecipeCase) -> Iterator[Found]:
    """Find values that Kubernetes refuses, and names that it turns into variables."""
    places = case.engine.places
    if found := places.get("service vllm"):
        yield Found("service-named-vllm", found.start)
    restart = case.engine.boxed("--restart") if case.is_pod else None
    if (
        restart is not None
        and restart.value != "Always"
        and "$" not in (restart.value or "")
        and case.engine.where.startswith(_ALWAYS)
    ):
        words = {"value": restart.value, "kind": case.engine.where.partition(" ")[0]}
        yield Found("restart-not-always", restart.text.start, words, replaced(restart.shown, "Always"))
    for name, text in places.items():
        if name.startswith("no text "):
            quoted = replaced(text, f'"{text.value}"')
            yield Found("value-is-no-text", text.start, {"name": name.removeprefix("no text ")}, quoted)


def probes(case: RecipeCase) -> Iterator[Found]:
    """Probes that kill an engine while it loads, or ask at the wrong place."""
    if not case.is_pod or not case.engine.known:
        return
    found = case.engine.probes
    startup, liveness = found.get("startupProbe"), found.get("livenessProbe")
    if startup is not None and (given := _patience(startup)) < LEAST_START:
        yield Found("startup-too-short", _at(case, "startupProbe"), {"seconds": given})
    elif startup is liveness is None or case.recipe.template:
        pass
    elif startup is None and liveness is not None and (given := _patience(liveness)) < LEAST_START:
        code = "probe-kills-loading" if given < QUICKEST_START else "probe-may-kill-loading"
        yield Found(code, _at(case, "livenessProbe"), {"seconds": given})
    if "readinessProbe" not in found:
        yield Found("no-readiness", case.engine.at.start)
    elif case.engine.sleeps and found["readinessProbe"].get("httpGet.path") == "/health":
        yield Found("ready-while-asleep", _at(case, "readinessProbe"))
    for name, probe in found.items():
        yield from _asks(name, probe, case)


def _patience(probe: Mapping[str, object]) -> float:
    """Seconds until it gives up; without end where a variable tells."""

    def number(name: str, default: int) -> float:
        text = str(probe.get(name, ""))
        return math.inf if "$" in text else int(text) if text.isdigit() else default

    return number("initialDelaySeconds", 0) + number("periodSeconds", 10) * number("failureThreshold", 3)


def _asks(name: str, probe: Mapping[str, object], case: RecipeCase) -> Iterator[Found]:
    path, port = probe.get("httpGet.path"), str(probe.get("httpGet.port", ""))
    words = {"probe": name, "path": path, "value": port, "port": case.port}
    if path is not None:
        if case.has_key and str(path).startswith(_GUARDED):
            yield Found("probe-needs-key", _at(case, name), words)
        elif not str(path).startswith((*_ROUTES, "$")):
            yield Found("probe-path", _at(case, name), words)
    if port.isdigit() and case.port.isdigit() and port != case.port and not case.engine.option("--uds"):
        yield Found("probe-port", _at(case, name), words)


def _at(case: RecipeCase, name: str) -> int:
    return case.engine.places[name].start


def unit(case: RecipeCase) -> Iterator[Found]:
    """Find what systemd or Podman's generator of services refuses or takes otherwise than meant."""
    places = case.engine.places
    first = places.get("command") if case.engine.form is RecipeForm.SYSTEMD else None
    if first is not None and "/" not in first.value and not first.value.startswith("$"):
        yield Found("not-absolute", first.start, {"word": first.value})
    elif first is not None and not first.value.startswith(("/", "%")):
        yield Found("relative-program", first.start, {"word": first.value})
    if again := places.get("ExecStart again"):
        yield Found("several-programs", again.start)
    for name, text in places.items():
        if name.startswith("unknown key "):
            known = container_options().quadlet
            yield Found("unknown-quadlet-key", text.start, {"name": text.value, "near": suggested(text.value, known)})
        elif name.startswith("not expanded "):
            yield Found("variable-not-expanded", text.start, {"name": text.value.partition("=")[0]})


RULES = (manifest, probes, unit)
