"""Manifests as text: one YAML stream, or a folder for kustomize."""

from collections.abc import Iterable, Mapping
from typing import Any

from winhost.cluster.render_request import ManifestSet
from winhost.core.answers import Json


def stream(rendered: ManifestSet) -> str:
    """All of it, for `kubectl apply -f -`; what there is to know stands above as comments."""
    return _comments(rendered.notes) + documents(rendered.manifests)


def folder(rendered: ManifestSet) -> dict[str, str]:
    """Texts by the names of files, one of them for `kubectl apply -k`."""
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(rendered.files),
    }
    written = {name: _comments(()) + documents(manifests) for name, manifests in rendered.files.items()}
    return {"kustomization.yaml": _comments(rendered.notes) + _yaml(kustomization), **written}


def documents(manifests: Iterable[Mapping[str, Json]]) -> str:
    """One after the other."""
    return "---\n".join(map(_yaml, manifests))


def _comments(notes: Iterable[str]) -> str:
    lines = (line for note in notes for line in note.splitlines())
    printable = ("".join(c if c.isprintable() else "?" for c in line) for line in lines)
    return "".join(f"# {line}\n" for line in ("Written by winhost render kubernetes.", *printable))


def _yaml(document: Mapping[str, Any]) -> str:
    import yaml

    class Readable(yaml.SafeDumper):
        """Texts of several lines stand as they are, and nothing is said by reference."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, "|" if "\n" in value else None)

    Readable.add_representer(str, text)
    found: str = yaml.dump(dict(document), Dumper=Readable, sort_keys=False, width=1000, allow_unicode=False)
    return found
