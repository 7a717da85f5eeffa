"""Reads the file of `vllm serve --config`: a YAML mapping of vLLM's options, without their dashes."""

import re
from collections.abc import Iterator

from winhost.recipes.arguments import full_name
from winhost.recipes.recipe_model import Recipe, RecipeEngine, RecipeForm, Setting
from winhost.recipes.recipe_text import SourceFile
from winhost.recipes.yaml_nodes import YamlNode, find_duplicate_keys, parse_documents
from winhost.serving.vllm_options import names

_KEY = re.compile(r"^([A-Za-z][\w.-]*):(?:[ \t]|\r?$)", re.MULTILINE)
_KEYS_OF_OTHER_FILES = {"model-path", "model_list", "models"}  # keys in files of SGLang, LiteLLM and llama-swap


def is_config(text: str) -> bool:
    """Tell whether most keys are options of vLLM, and one of them has a name that only an engine would use."""
    keys = _KEY.findall(text)
    known = [key for key in keys if f"--{key.replace('_', '-')}" in names("engine")]
    own = [key for key in known if re.search("[_-]", key)]
    return bool(own) and 2 * len(known) > len(keys) and _KEYS_OF_OTHER_FILES.isdisjoint(keys) and "```" not in text


def read_config(source: SourceFile) -> Recipe:
    """Read one engine, whose other options are on its command line. Raises NotYaml."""
    document = next(iter(parse_documents(source)), YamlNode(source, None))
    pairs = list(document.pairs())
    if not pairs:
        return Recipe(RecipeForm.CONFIG, ())
    engine = RecipeEngine(RecipeForm.CONFIG, "config", pairs[0][1].key_text, entry="vllm serve", partial=True)
    engine.options = [setting for name, value in pairs for setting in _setting(name, value)]
    return Recipe(RecipeForm.CONFIG, (engine,), slips=tuple(find_duplicate_keys(document)))


def _setting(key: str, value: YamlNode) -> Iterator[Setting]:
    """Make a setting of a key: `true` is the option alone, `false` is no option, a list is several words, a mapping is
    JSON.
    """
    written, at = f"--{key}", value.key_text
    name = full_name(written)
    if value.is_scalar and not value.quoted and value.tag == "bool":
        if value.value.casefold() in ("true", "yes", "on"):
            yield Setting(name, None, at, None, (at,), written)
    elif value.is_scalar:
        yield Setting.parse(name, at, value.text, (at,), written)
    else:
        text = " ".join(each.value for each in value.items()) or "$"  # JSON is not checked here
        yield Setting(name, text, at, None, (at,), written)
