"""JSON with the place of each value: what JSON says of the text, and the nodes that YAML's parser finds in it."""

import json

from winhost.recipes.recipe_text import SourceFile
from winhost.recipes.yaml_nodes import NotYaml, YamlNode, documents

MARK = "\ufeff"  # the byte order mark as a character


def json_document(source: SourceFile) -> YamlNode:
    """The value of a text. Raises NotYaml, with what is wrong where."""
    text = source.text.replace(MARK, " ", 1)
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise NotYaml(error.msg[:1].lower() + error.msg[1:], min(error.pos, len(source.text))) from None
    except (RecursionError, ValueError):
        raise NotYaml("it is nested too deeply", 0) from None
    # YAML takes no tab between values; a blank in its place leaves every other character where it is.
    found = documents(SourceFile(text.replace("\t", " "), source.encoding, source.bom))
    return YamlNode(source, found[0].node) if found else YamlNode(source, None)
