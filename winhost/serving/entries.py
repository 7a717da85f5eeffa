"""Entries of `resources` in a playbook."""

from collections.abc import Mapping
from typing import Any

from winhost.core.answers import Json


def entry(resource: str, title: str, key: Mapping[str, str], desired: Mapping[str, Any], why: str) -> dict[str, Any]:
    return {"resource": resource, "title": title, "key": dict(key), "desired": dict(desired), "why": why}


def file_entry(title: str, path: str, text: str, why: str, mode: str = "0644") -> dict[str, Json]:
    return entry("LinuxFile", title, {"path": path}, {"text": text, "mode": mode, "owner": "root:root"}, why)
