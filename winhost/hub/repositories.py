"""A model's repository: on a hub, with its files at one commit, or in a folder of this machine."""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import field, replace
from http.client import responses
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import SplitResult, quote, urlsplit

from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.model.errors import Exit, UsageError, WinhostError, visible
from winhost.model.files import sha256_of, suggest_sibling
from winhost.model.secrets import Secret, SecretRef, is_loopback
from winhost.model.units import Bytes, MiB
from winhost.web.http_client import (
    Credentials,
    NotAnswered,
    OpenAnswer,
    WebAnswer,
    fetch,
    open_url,
    parse_json,
    retry_after_s,
    split_url,
)

HUB = "https://huggingface.co"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,254}")
_MOST_PAGES = 100
_MOST: Bytes = 16 * MiB
# A plan takes it from the workload file.
_BY_REFERENCE = "--token env:HF_TOKEN, or token: env:HF_TOKEN of the model in the workload file"
_COMPARE = "Compare the name with the hub; winhost models shows what comes with winhost"
_OFFLINE = "Is it reachable from here, perhaps with HTTPS_PROXY? Or name another one that has the model: --hub URL"


class NotListed(WinhostError):
    """reached: whether the hub answered at all; exit_code: USAGE where the input is wrong and nothing was asked."""

    def __init__(self, what: str, hint: str, *, reached: bool = True, exit_code: Exit = Exit.FAILURE) -> None:
        super().__init__("NotListed", what=what, hint=hint)
        self.reached, self.exit_code = reached, exit_code


def not_listed(model: str, why: str, hint: str, *, reached: bool = True) -> NotListed:
    return NotListed(f"{visible(model[:200])}: {visible(why)}", hint, reached=reached)


def _wrong(model: str, why: str, hint: str) -> NotListed:
    return NotListed(f"{visible(model[:200])}: {visible(why)}", hint, exit_code=Exit.USAGE)


def is_commit(text: str) -> bool:
    return _COMMIT.fullmatch(text) is not None


def is_model_name(text: str) -> bool:
    """Tell whether it is ORG/NAME, as all models are called by now."""
    return "/" in text and ".." not in text and _NAME.fullmatch(text) is not None


@dataclass(frozen=True)
class HubRepository:
    """A model at a revision: a branch, a tag or a commit."""

    model: str
    revision: str
    hub: str = HUB
    token: Secret | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Raises WinhostError (NotListed)."""
        if _NAME.fullmatch(self.model) is None or ".." in self.model:
            raise _wrong(self.model, "is not the name of a model", "Write it as ORG/NAME")
        if _REVISION.fullmatch(self.revision) is None or ".." in self.revision:
            raise _wrong(self.model, f"{self.revision[:100]} is no revision", "Name a branch, a tag or a commit")
        url = self._url
        if self.token and url.scheme != "https" and not is_loopback(url.hostname or ""):
            raise _wrong(self.model, "a token is sent over https alone", "Give the hub's address with https")

    @property
    def _url(self) -> SplitResult:
        try:
            if not self.hub.isprintable() or " " in self.hub:
                raise NotAnswered(f"names {visible(self.hub[:200])}, which is no address")
            return split_url(self.hub)
        except NotAnswered as error:
            raise _wrong(self.model, f"the hub {error}", "Write --hub as https://HOST") from None

    @property
    def page(self) -> str:
        """The address of its page, for people."""
        return f"{self.hub}/{self.model}"

    def about(self) -> dict[str, Any]:
        """The hub's record of the model: `sha`, `id`, `gated`, `private`."""
        model, revision = f"{self.hub}/api/models/{quote(self.model)}", quote(self.revision, safe="")
        answer = self._asked(f"{model}/revision/{revision}", _MOST, fine=(200, 404))
        if answer.status == 404:
            self._asked(model, _MOST)  # a hub may answer the same for a model that it does not have
            raise self._refused(answer)
        said = self._parsed(answer.body)
        if not isinstance(said, dict) or not is_commit(str(said.get("sha"))):
            raise not_listed(self.model, "the hub does not tell its commit", _COMPARE)
        return said

    def current(self) -> tuple["HubRepository", dict[str, Any]]:
        """The repository under its present name, at its present commit; and the hub's record of it."""
        about = self.about()
        name = about.get("id")
        try:
            return replace(self, model=name if isinstance(name, str) else self.model, revision=about["sha"]), about
        except NotListed as wrong:  # by the hub, not by the user
            wrong.exit_code = Exit.FAILURE
            raise

    def sizes(self) -> dict[str, Bytes]:
        """Files by path, without weights that are there in another format as well."""
        listed = (line.split(" ", 2) for line in without_copies(listed_files(self)))
        return {path: int(size) for _, size, path in listed}

    def entries(self) -> Iterator[dict[str, Any]]:
        """The files and folders at the commit, as the hub lists them."""
        url: str | None = f"{self.hub}/api/models/{quote(self.model)}/tree/{self.revision}?recursive=true"
        pages = 0
        while url is not None and (pages := pages + 1) <= _MOST_PAGES:
            if urlsplit(url)[:2] != urlsplit(self.hub)[:2]:
                raise not_listed(self.model, f"{self._url.netloc} sends elsewhere", "Only the hub itself is asked")
            answer = self._asked(url, _MOST)
            page = self._parsed(answer.body)
            if not isinstance(page, list) or not all(isinstance(entry, dict) for entry in page):
                raise not_listed(self.model, "the hub answers with no list", "Try again")
            yield from page
            after = re.search(r'<([^<>]{1,2000})>; rel="next"', answer.headers.get("link", ""))
            url = after[1] if after else None

    def document(self, path: str, most: Bytes = _MOST) -> dict[str, Any]:
        """A file that is an object in JSON."""
        found = self._parsed(self._asked(self._address(path), most).body)
        if not isinstance(found, dict):
            raise not_listed(self.model, f"{path} is no object in JSON", "Do not use this model")
        return found

    def part(self, path: str, begin: int, end: int) -> bytes:
        """Bytes of a file, from `begin` to before `end`; fewer where it ends before."""
        span = f"bytes={begin}-{end - 1}"
        answer = self._asked(self._address(path), end - begin, headers={"Range": span}, fine=(206, 416))
        return answer.body if answer.status == 206 else b""

    def from_byte(self, path: str, begin: Bytes) -> AbstractContextManager[OpenAnswer]:
        """A file of whatever size, from a byte on. Raises NotAnswered."""
        headers = {"Range": f"bytes={begin}-"} if begin else {}
        return open_url(self._address(path), headers=headers, credentials=self._credentials)

    @property
    def _credentials(self) -> Credentials | None:
        return ("Bearer", self.token) if self.token else None

    def _address(self, path: str) -> str:
        return f"{self.hub}/{quote(self.model)}/resolve/{self.revision}/{quote(path)}"

    def _parsed(self, data: bytes) -> Json:
        try:
            return parse_json(data)
        except ValueError:
            raise not_listed(self.model, "the hub answers with what is no JSON", "Try again") from None

    def _asked(
        self, url: str, most: Bytes, *, headers: dict[str, str] | None = None, fine: tuple[int, ...] = (200,)
    ) -> WebAnswer:
        try:
            answer = fetch(url, most, headers=headers, credentials=self._credentials)
        except NotAnswered as error:
            why, away = f"{self._url.netloc} {error}", "reached" in str(error) or "in time" in str(error)
            if away:
                raise not_listed(self.model, why, _OFFLINE, reached=False) from None
            raise not_listed(self.model, why, "Use another hub, or try again later") from None
        if answer.status not in fine:
            raise self._refused(answer)
        return answer

    def _refused(self, answer: WebAnswer) -> WinhostError:
        status, code = answer.status, answer.headers.get("x-error-code", "")
        if status == 429:
            limited = re.search(r"(?:^|;)\s*t=(\d{1,6})(?:;|$)", answer.headers.get("ratelimit", ""))  # "api";r=0;t=55
            seconds = retry_after_s(answer.headers)
            wait = str(seconds) if seconds is not None else limited and limited[1]
            when = f"in {wait} s" if wait else "later"
            hint = f"Run the command again {when}; with a token more is allowed: {_BY_REFERENCE}"
            return not_listed(self.model, "the hub allows no more requests for now (429)", hint)
        if code == "GatedRepo" or (status == 403 and not code):
            why = f"it is gated: its licence has to be accepted first ({status})"
            return not_listed(self.model, why, f"Accept it at {self.page}, and name a token: {_BY_REFERENCE}")
        if status in (401, 403):
            why = f"the hub has no such model, or it is private ({status})"
            hint = "The token may not read it, or has expired" if self.token else f"To read it: {_BY_REFERENCE}"
            return not_listed(self.model, why, f"{self._meant}{_COMPARE}. {hint}")
        if code == "RevisionNotFound":
            return not_listed(self.model, f"the hub has no revision {self.revision} of it", f"See {self.page}")
        if status == 404:
            lacks = {"RepoNotFound": "model", "EntryNotFound": "file"}.get(code, "model or file")
            meant = "" if code == "EntryNotFound" else self._meant
            return not_listed(self.model, f"the hub has no such {lacks} (404)", f"{meant}{_COMPARE}")
        reason = responses.get(status, "")
        return not_listed(self.model, f"the hub answers {status} {reason}".rstrip(), "Run the command again later")

    @property
    def _meant(self) -> str:
        """Names of the catalogue that are near."""
        from winhost.hub.catalogue import catalogue_of, near_names, shipped_document  # only where a name is wrong

        near = near_names(self.model, catalogue_of(shipped_document()).entries)
        return f"Did you mean {' or '.join(near)}? " if near else ""


def model_files(model: str, revision: str, reference: str | None = None, hub: str = HUB) -> dict[str, Json]:
    """The desired state of `ModelFiles`. model: ORG/NAME; revision: a commit; reference: to the token.

    Raises WinhostError (NotListed) and UsageError (SecretUnreadable).
    """
    if not is_commit(revision):
        hint = "Give all 40 digits: a branch may lead elsewhere tomorrow"
        raise _wrong(model, f"{revision[:100]} is not a commit", hint)
    token = SecretRef.parse(reference).resolve() if reference else None
    files = without_copies(listed_files(HubRepository(model, revision, hub, token)))
    if not files:
        raise not_listed(model, "has no files at this revision", f"See {hub}/{model}/tree/{revision}")
    return {"source": f"{hub}/{model}", "revision": revision, "files": files, "token": reference}


def listed_files(repository: HubRepository) -> list[str]:
    """`HASH SIZE PATH` of each file, as `ModelFiles` has them."""
    return sorted(_line(repository.model, entry) for entry in repository.entries() if entry.get("type") == "file")


def without_copies(lines: list[str]) -> list[str]:
    """Leave out the weights that some repositories also have in another format: Llama below `original/`, gpt-oss below
    `metal/` too. vLLM's own download leaves out `original/` (LoadConfig.ignore_patterns).
    """
    paths = [line.split(" ", 2)[2] for line in lines]
    if not any(path.endswith(".safetensors") and "/" not in path for path in paths):
        return lines
    return [line for line, path in zip(lines, paths, strict=True) if not _COPY.fullmatch(path)]


_COPY = re.compile(r"(original|metal)/.*\.(safetensors|bin|pth|pt)")


def _line(model: str, entry: dict[str, Any]) -> str:
    """Large files have a SHA-256 (of Git LFS); of small ones the hub tells the hash of git."""
    path, lfs = str(entry.get("path")), entry.get("lfs") or {}
    hash_ = f"sha256:{lfs.get('oid')}" if lfs else f"git-sha1:{entry.get('oid')}"
    size = (lfs or entry).get("size")
    if not re.fullmatch(r"sha256:[0-9a-f]{64}|git-sha1:[0-9a-f]{40}", hash_) or type(size) is not int or size < 0:
        raise not_listed(model, f"the hub tells no hash of {visible(path)}", "Try again")
    if any(part in ("", ".", "..", ".winhost") for part in path.split("/")) or not path.isprintable():
        raise not_listed(model, f"{visible(path)} leads out of its folder", "Do not use this model")
    return f"{hash_} {size} {path}"


# ---- a folder of this machine, read as a hub is; its files have hashes in place of a revision


_DRIVE = re.compile(r"([A-Za-z]):[/\\]")
_MOST_FILES = 10_000


NAME_A_FOLDER = "Name the folder that has config.json and the safetensors of the model, or a model as ORG/NAME"


def _no_folder(path: str, why: str) -> UsageError:
    return UsageError("NoModelFolder", what=f"{visible(path[:200])}: {why}", hint=NAME_A_FOLDER)


@dataclass(frozen=True)
class ModelFolder:
    """model: its absolute path; the rest as a `HubRepository` has it."""

    model: str
    revision: str = ""
    token: None = None

    @classmethod
    def at_path(cls, path: str) -> "ModelFolder":
        """Raises UsageError (NoModelFolder)."""
        try:
            folder = Path(path).expanduser().resolve()
            there, file = folder.is_dir(), folder.exists()
        except (OSError, RuntimeError, ValueError) as error:
            raise _no_folder(path, f"cannot be read: {visible(str(error)[:200])}") from error
        if not there:
            why = "is a file, and no folder" if file else f"there is no such folder{suggest_sibling(folder)}"
            raise _no_folder(path, why)
        return cls(str(folder))

    @property
    def page(self) -> str:
        """The folder, for people."""
        return self.model

    @property
    def path(self) -> Path:
        return Path(self.model)

    def current(self) -> tuple["ModelFolder", dict[str, Any]]:
        return self, {}

    def sizes(self) -> dict[str, Bytes]:
        """Files by path below the folder, without hidden ones and folders of hubs' own records."""
        try:
            found = dict(self._sizes())
        except OSError as error:
            raise self._unreadable(error) from error
        return dict(sorted(found.items()))

    def _sizes(self) -> Iterator[tuple[str, Bytes]]:
        for count, path in enumerate(self.path.rglob("*")):
            inner = path.relative_to(self.path)
            if count >= _MOST_FILES:
                raise not_listed(self.model, f"has more than {_MOST_FILES:,} files", "Name the folder of one model")
            if any(part.startswith(".") for part in inner.parts):
                continue
            name = inner.as_posix()
            if path.is_symlink():
                hint = "Copy the files themselves into a folder of their own, as cp -rL does"
                raise not_listed(self.model, f"{visible(name)} is a link", hint)
            if path.is_dir():
                continue
            if not name.isprintable():
                raise not_listed(self.model, f"{visible(name)} is no name of a file", "Do not use this model")
            yield name, path.stat().st_size

    def document(self, path: str, most: Bytes = _MOST) -> dict[str, Any]:
        """A file that is an object in JSON."""
        data = self.part(path, 0, most + 1)
        if len(data) > most:
            raise not_listed(self.model, f"{path} has more than {most // MiB} MiB", "Do not use this model")
        try:
            found = parse_json(data)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise not_listed(self.model, f"{path} is no object in JSON", "Do not use this model")
        return found

    def part(self, path: str, begin: int, end: int) -> bytes:
        """Bytes of a file, from `begin` to before `end`; fewer where it ends before."""
        try:
            with (self.path / path).open("rb") as file:
                file.seek(begin)
                return file.read(end - begin)
        except OSError as error:
            raise self._unreadable(error) from error

    def listed(self) -> list[str]:
        """`sha256:HASH SIZE PATH` of each file, as `ModelFiles` has them. Reads all of them."""
        lines = []
        for name, size in self.sizes().items():
            try:
                lines.append(f"sha256:{sha256_of(self.path / name)} {size} {name}")
            except OSError as error:
                raise self._unreadable(error) from error
        if not lines:
            raise not_listed(self.model, "has no files", "Name the folder of a model")
        return sorted(lines)

    def _unreadable(self, error: OSError) -> WinhostError:
        return not_listed(self.model, f"cannot be read: {visible(str(error.strerror or error))}", "Can you read it?")


ModelRepository: TypeAlias = HubRepository | ModelFolder


def folder_files(model: str) -> dict[str, Json]:
    """The desired state of `ModelFiles` for a folder: its files by their hashes, and where they lie for the Linux that
    serves. Raises WinhostError (NotListed).
    """
    folder = ModelFolder.at_path(model)
    source = seen_from_linux(folder.model)
    if not source.startswith("/"):
        hint = "Copy it to a drive of this machine, such as C:"
        raise not_listed(folder.model, "is a share of a network, which WSL does not see", hint)
    return {"source": source, "revision": None, "files": folder.listed(), "token": None}


def seen_from_linux(path: str) -> str:
    """A drive of Windows is below /mnt in the distro of WSL beside it; other paths are the same on this Linux."""
    drive = _DRIVE.match(path)
    if drive is None:
        return path
    return f"/mnt/{drive[1].lower()}/" + path[3:].replace("\\", "/")
