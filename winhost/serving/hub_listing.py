"""The files of a model as a hub lists them at one revision, with their sizes and hashes: what a plan has of them."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

from winhost.core.answers import Json
from winhost.model.errors import WinhostError, visible
from winhost.model.secrets import Secret, SecretRef

HUB = "https://huggingface.co"
_TIMEOUTS_S = (30, 60)
_MOST_PAGES = 100


def model_files(model: str, revision: str, reference: str | None = None, hub: str = HUB) -> dict[str, Json]:
    """The desired state of `ModelFiles`. model: ORG/NAME; revision: a commit; reference: to the token.

    Raises WinhostError (NotListed) and UsageError (SecretUnreadable).
    """
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?", model) is None:
        raise _not_listed(model, "is not the name of a model", "Write it as ORG/NAME")
    if re.fullmatch(r"[0-9a-f]{40}", revision) is None:
        hint = "Give all 40 digits: a branch may lead elsewhere tomorrow"
        raise _not_listed(model, f"{visible(revision)} is not a commit", hint)
    token = SecretRef.parse(reference).resolve() if reference else None
    files = sorted(
        _line(model, entry) for entry in _entries(model, revision, token, hub) if entry.get("type") == "file"
    )
    if not files:
        raise _not_listed(model, "has no files at this revision", f"See {hub}/{model}/tree/{revision}")
    return {"source": f"{hub}/{model}", "revision": revision, "files": files, "token": reference}


def _entries(model: str, revision: str, token: Secret | None, hub: str) -> Iterator[dict[str, Any]]:
    url: str | None = f"{hub}/api/models/{quote(model)}/tree/{revision}?recursive=true"
    pages = 0
    while url is not None and (pages := pages + 1) <= _MOST_PAGES:
        if urlsplit(url)[:2] != urlsplit(hub)[:2]:
            raise _not_listed(model, f"{urlsplit(hub).netloc} sends elsewhere", "Only the hub itself is asked")
        page, url = _page(model, url, token)
        yield from page


def _page(model: str, url: str, token: Secret | None) -> tuple[list[dict[str, Any]], str | None]:
    import requests

    headers = {"Authorization": f"Bearer {token.reveal()}"} if token else {}
    try:
        # Without `auth` a .netrc of somebody would take the place of the token.
        answer = requests.get(
            url, headers=headers, auth=lambda request: request, allow_redirects=False, timeout=_TIMEOUTS_S
        )
        if answer.status_code in (401, 403):
            hint = "Accept its licence there, and name a token with --token"
            raise _not_listed(model, f"may not be read ({answer.status_code})", hint)
        if answer.status_code != 200:
            raise _not_listed(model, f"the hub answers {answer.status_code}", "Compare name and revision with the hub")
        page = answer.json()
    except (requests.RequestException, ValueError) as error:
        raise _not_listed(model, f"no answer that can be read ({type(error).__name__})", "Try again") from None
    if not isinstance(page, list) or not all(isinstance(entry, dict) for entry in page):
        raise _not_listed(model, "the hub answers with no list", "Try again")
    return page, answer.links.get("next", {}).get("url")


def _line(model: str, entry: dict[str, Any]) -> str:
    """Large files have a SHA-256 (of Git LFS); of small ones the hub tells the hash of git."""
    path, lfs = str(entry.get("path")), entry.get("lfs") or {}
    hash_ = f"sha256:{lfs.get('oid')}" if lfs else f"git-sha1:{entry.get('oid')}"
    size = (lfs or entry).get("size")
    if not re.fullmatch(r"sha256:[0-9a-f]{64}|git-sha1:[0-9a-f]{40}", hash_) or type(size) is not int or size < 0:
        raise _not_listed(model, f"the hub tells no hash of {visible(path)}", "Try again")
    if any(part in ("", ".", "..", ".winhost") for part in path.split("/")) or not path.isprintable():
        raise _not_listed(model, f"{visible(path)} leads out of its folder", "Do not use this model")
    return f"{hash_} {size} {path}"


def _not_listed(model: str, why: str, hint: str) -> WinhostError:
    return WinhostError("NotListed", what=f"{visible(model)}: {why}", hint=hint)
