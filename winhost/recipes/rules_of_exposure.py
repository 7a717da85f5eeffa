"""Rules on who can reach an engine, and on secrets in a recipe."""

import re
from collections.abc import Iterator, Sequence

from winhost.findings.finding import Observation, TextEdit
from winhost.recipes.command_editor import replace_value
from winhost.recipes.recipe_case import RecipeCase
from winhost.recipes.recipe_model import SECRET_OPTIONS, RecipeEngine, RecipeForm, Setting, is_secret

_INSTEAD = {
    RecipeForm.COMPOSE: "Take it from the environment or a file: `${NAME}`, env_file or secrets.",
    RecipeForm.KUBERNETES: "Take it from a Secret, by valueFrom.secretKeyRef.",
    RecipeForm.HELM: "Name a Secret that is there: a mapping with secretName and secretKey in its place.",
    RecipeForm.SYSTEMD: "Take it from a file that only root reads: EnvironmentFile= or LoadCredential=.",
    RecipeForm.QUADLET: "Take it from podman's secrets: Secret=NAME,type=env.",
}
_NAME_ONLY = "Pass its name alone (-e NAME), with the value in the shell's environment from a file."


def secret_settings(engine: RecipeEngine) -> list[Setting]:
    """Return the options and variables whose value is a secret."""
    return [each for each in (*engine.options, *engine.variables, *engine.shell_variables) if is_secret(each.name)]


def secrets_of(engine: RecipeEngine) -> list[str]:
    """Return the secrets of an engine, which are masked in all findings."""
    words = {part for each in secret_settings(engine) for part in (each.value or "", *(each.value or "").split())}
    return sorted((word for word in words if len(word) > 3 and not _is_reference(word)), key=len, reverse=True)


def _is_reference(value: str) -> bool:
    placeholder = value.startswith(("<", "{{", "%")) or value.endswith(">") or re.fullmatch(r"[A-Z]+(_[A-Z]+)+", value)
    return not value or "$" in value or bool(placeholder)


def check_secrets(case: RecipeCase) -> Iterator[Observation]:
    """Report keys and tokens in plain text."""
    engine = case.engine
    for setting in secret_settings(engine):
        if _is_reference(setting.value or ""):
            continue
        if engine.form in (RecipeForm.ENVIRONMENT, RecipeForm.CONFIG):
            yield Observation("secret-in-variables", setting.text.start, {"name": setting.name})
        elif setting.name in SECRET_OPTIONS:
            instead = (
                case.other_engine.keeps
                if case.other_engine
                else "Set VLLM_API_KEY from a file that only its owner reads."
            )
            yield Observation("key-in-command", setting.text.start, {"name": setting.name, "instead": instead})
        elif engine.form is not RecipeForm.COMMAND or engine.in_container:
            # Only keys of the chart itself accept such a mapping; entries of env are like those of a pod.
            of_pod = engine.form is RecipeForm.HELM and setting.written == setting.name
            instead = _INSTEAD.get(RecipeForm.KUBERNETES if of_pod else engine.form, _NAME_ONLY)
            yield Observation("secret-in-recipe", setting.text.start, {"name": setting.name, "instead": instead})


def check_exposure(case: RecipeCase) -> Iterator[Observation]:
    """Report routes that others can reach without a key."""
    engine, how = case.engine, case.exposure
    if how is None:
        return
    dev = engine.variable("VLLM_SERVER_DEV_MODE")
    if dev is not None and dev.is_on and "$" not in (dev.value or ""):
        yield Observation("dev-mode-exposed", dev.text.start, {"how": how}, _bind_to_loopback(case))
    if case.has_key:
        key = engine.option("--api-key") or engine.variable("VLLM_API_KEY")
        if key is not None and case.other_engine is None:
            yield Observation("key-guards-little", key.text.start, {"how": how})
    elif not (dev and dev.is_on):
        service = engine.container_setting("service")
        at = service or case.open_port
        code = "service-without-key" if service else "open-to-all"
        words = {"how": how, "verb": "Publish" if case.open_port else "Listen"}
        yield Observation(code, at.text.start if at else engine.position.start, words, _bind_to_loopback(case))


def _bind_to_loopback(case: RecipeCase) -> Sequence[TextEdit]:
    """Return an edit that publishes the port on the loopback address, or makes the engine listen there."""
    engine = case.engine
    if engine.in_container:
        ports = engine.container_settings("--publish")
        found = ports[0].value or "" if len(ports) == 1 else ""
        plain = re.fullmatch(r"(?:0\.0\.0\.0:)?(\d+:\d+(?:/tcp)?)", found)
        return replace_value(ports[0].value_text, f"127.0.0.1:{plain[1]}") if plain else ()
    host = engine.option("--host")
    if case.other_engine is not None and host is None:
        return ()
    return replace_value(host.value_text, "127.0.0.1") if host else engine.editor.add_option("--host=127.0.0.1")


RULES = (check_secrets, check_exposure)
