"""Reads values of vLLM's Helm chart, production-stack: each model of `servingEngineSpec` is an engine of vLLM.

Settings that the chart adds by itself (probes, shared memory for several GPUs, the port) are not expected in the
values.
"""

import re
from collections.abc import Iterator

from winhost.findings.finding import Observation
from winhost.recipes.arguments import IMAGE, full_name, read_vllm_arguments
from winhost.recipes.recipe_model import Recipe, RecipeEngine, RecipeForm, Setting
from winhost.recipes.recipe_text import SourceFile
from winhost.recipes.yaml_nodes import YamlNode, find_duplicate_keys, parse_documents

VALUES = re.compile(
    r"^servingEngineSpec:[ \t]*(?:#[^\n]*)?\r?$(?=[\s\S]*^\s+(?:- )?(?:modelSpec|modelURL):)", re.MULTILINE
)
_SWITCHES = {"enableChunkedPrefill": "--enable-chunked-prefill", "enablePrefixCaching": "--enable-prefix-caching"}
_SHM = "20Gi"  # the default of the chart if a tensor parallel size is set
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def read_helm(source: SourceFile) -> Recipe:
    """Read every model of the values. Raises NotYaml."""
    engines: list[RecipeEngine] = []
    slips: list[Observation] = []
    for document in parse_documents(source):
        slips += find_duplicate_keys(document)
        spec = document.get("servingEngineSpec")
        for model in spec.get("modelSpec").items():
            if model.is_map and _has_value(model.get("modelURL")):
                engines.append(_engine(model, spec, first=not engines))
    return Recipe(RecipeForm.HELM, tuple(engines), slips=tuple(slips))


def _has_value(node: YamlNode) -> bool:
    """Tell whether a node is a text or number. Helm removes the default of a key that is null."""
    return bool(node) and node.is_scalar


def _engine(model: YamlNode, spec: YamlNode, *, first: bool) -> RecipeEngine:
    url, name = model.get("modelURL"), model.get("name")
    at = name.text if _has_value(name) else url.key_text
    engine = RecipeEngine(
        RecipeForm.HELM, f"model {name.value}", at, entry="vllm serve", in_container=True, partial=True
    )
    engine.model, engine.model_first = url.text, True
    config = model.get("vllmConfig")
    engine.options = list(_options(config))
    read_vllm_arguments([each.text for each in config.get("extraArgs").items() if each.is_scalar], engine)
    ray = model.get("raySpec")
    if ray.get("enabled").value.casefold() == "true":  # several pods hold one model
        engine.options.append(Setting("--distributed-executor-backend", "ray", ray.key_text, None, (), "raySpec"))
    engine.container = list(_container(model))
    engine.variables = [*_environment(model), *_secrets(model, spec, first=first)]
    return engine


def _options(config: YamlNode) -> Iterator[Setting]:
    for key, value in config.pairs():
        at = value.key_text
        if key in _SWITCHES:
            if value.value.casefold() == "true":
                yield Setting(_SWITCHES[key], None, at, None, (at,), key)
        elif key not in ("extraArgs", "v0", "v1") and _has_value(value):
            name = full_name(f"--{_HUMP.sub('-', key).lower()}")
            yield Setting.parse(name, at, value.text, (at,), key)


def _container(model: YamlNode) -> Iterator[Setting]:
    repository, tag = model.get("repository"), model.get("tag")
    if _has_value(repository):
        image = f"{repository.value}:{tag.value}" if _has_value(tag) else repository.value
        yield Setting(IMAGE, image, repository.key_text, None, (), "repository")
    for option, node in (("--gpus", model.get("requestGPU")), ("--memory", model.get("limitMemory"))):
        if _has_value(node) and (option != "--gpus" or node.value != "0"):
            yield Setting(option, node.value, node.key_text, node.text, (node.text,), node.key_text.value)
    size, several = model.get("shmSize"), model.get("vllmConfig", "tensorParallelSize")
    if _has_value(size):
        yield Setting("--shm-size", size.value, size.key_text, size.text, (size.text,), "shmSize")
    elif _has_value(several):
        yield Setting("--shm-size", _SHM, several.key_text, None, (), "shmSize")


def _environment(model: YamlNode) -> Iterator[Setting]:
    for each in model.get("env").items():
        name, value = each.get("name"), each.get("value")
        if name.is_scalar:
            text = value.text if value.is_scalar else None
            yield Setting(name.value, value.value if text else None, name.text, text, (name.text,), name.value)


def _secrets(model: YamlNode, spec: YamlNode, *, first: bool) -> Iterator[Setting]:
    """Yield secrets that are values. The chart makes a Secret of them; a mapping names an existing one. All engines
    share the key.
    """
    keys = [("HF_TOKEN", model.get("hf_token"))]
    keys += [("VLLM_API_KEY", spec.get("vllmApiKey"))] if first else []
    for name, node in keys:
        if _has_value(node) and node.value:
            yield Setting(name, node.value, node.key_text, node.text, (node.text,), node.key_text.value)
