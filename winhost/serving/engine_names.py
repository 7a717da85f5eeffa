"""The names of an engine on the Linux that serves: its unit, its socket and its folders."""

import hashlib
import re

UNITS = "/usr/local/lib/systemd/system"
SOCKETS = "/run/winhost-engines"
MODELS = "/srv/winhost/models"
MODEL = "/model"
"""The folder in which an engine in a container finds its model."""
CACHE = "winhost-vllm"
"""The volume with compiled graphs."""
_MAX_SLUG_LENGTH = 40


def slug(name: str) -> str:
    """Make lower-case letters, digits and dashes of a published model's name. A name that changes by that gets a part
    of its hash, so that no two names share a slug.
    """
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_MAX_SLUG_LENGTH].strip("-")
    if plain and plain == name:
        return plain
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    return f"{plain}-{digest}" if plain else f"model-{digest}"


def unit(name: str) -> str:
    """Return the unit of a model's engine."""
    return f"winhost-engine-{slug(name)}.service"


def socket_folder(name: str) -> str:
    """Return the folder of an engine's socket: only root and the gateway's group get in."""
    return f"{SOCKETS}/{slug(name)}"


def socket(name: str) -> str:
    """Return the socket that an engine listens on."""
    return f"{socket_folder(name)}/engine.sock"


def kv_folder(name: str) -> str:
    """Return the folder that a model's KV cache is written through to."""
    return f"/var/lib/winhost-kv-{slug(name)}"


def lmcache(name: str) -> str:
    """Return the container of a model's LMCache server, and its unit without `.service`. No slug has two dashes in a
    row.
    """
    return f"winhost-engine-{slug(name)}--lmcache"


def packed_folder(name: str) -> str:
    """Return the folder of a model's packed weights. No slug has two dashes in a row."""
    return f"{model_folder(name)}--packed"


def model_folder(name: str) -> str:
    """Return the folder of a model's files."""
    return f"{MODELS}/{slug(name)}"
