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
_MAX_PAGES = 100
_MAX_ANSWER: Bytes = 16 * MiB
# A plan takes the token from the workload file, and has no --token.
_AUTHENTICATION_HINT = "--token env:HF_TOKEN, or token: env:HF_TOKEN of the model in the workload file"
_COMPARE = "Compare the name with the hub; winhost models shows what comes with winhost"
_OFFLINE = "Is it reachable from here, perhaps with HTTPS_PROXY? Or name another one that has the model: --hub URL"


class ListingError(WinhostError):
    """The files of a model cannot be listed. reached: the hub answered; exit_code: USAGE if the input is wrong and no
    request was sent.
    """

    def __init__(self, what: str, hint: str, *, reached: bool = True, exit_code: Exit = Exit.FAILURE) -> None:
        super().__init__("NotListed", what=what, hint=hint)
        self.reached, self.exit_code = reached, exit_code


def listing_error(model: str, why: str, hint: str, *, reached: bool = True) -> ListingError:
    return ListingError(f"{visible(model[:200])}: {visible(why)}", hint, reached=reached)


def _input_error(model: str, why: str, hint: str) -> ListingError:
    return ListingError(f"{visible(model[:200])}: {visible(why)}", hint, exit_code=Exit.USAGE)


def is_commit(text: str) -> bool:
    return _COMMIT.fullmatch(text) is not None


def is_model_name(text: str) -> bool:
    """Tell whether it is ORG/NAME, the form of all present names of models."""
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
            raise _input_error(self.model, "is not the name of a model", "Write it as ORG/NAME")
        if _REVISION.fullmatch(self.revision) is None or ".." in self.revision:
            raise _input_error(self.model, f"{self.revision[:100]} is no revision", "Name a branch, a tag or a commit")
        url = self._url
        if self.token and url.scheme != "https" and not is_loopback(url.hostname or ""):
            raise _input_error(self.model, "a token is sent over https alone", "Give the hub's address with https")

    @property
    def _url(self) -> SplitResult:
        try:
            if not self.hub.isprintable() or " " in self.hub:
                raise NotAnswered(f"names {visible(self.hub[:200])}, which is no address")
            return split_url(self.hub)
        except NotAnswered as error:
            raise _input_error(self.model, f"the hub {error}", "Write --hub as https://HOST") from None

    @property
    def page(self) -> str:
        """The URL of its page on the hub."""
        return f"{self.hub}/{self.model}"

    def about(self) -> dict[str, Any]:
        """Request the hub's record of the model: `sha`, `id`, `gated`, `private`."""
        model, revision = f"{self.hub}/api/models/{quote(self.model)}", quote(self.revision, safe="")
        answer = self._request(f"{model}/revision/{revision}", _MAX_ANSWER, fine=(200, 404))
        if answer.status == 404:
            self._request(model, _MAX_ANSWER)  # a hub may answer the same for a model that it does not have
            raise self._refusal(answer)
        record = self._parse(answer.body)
        if not isinstance(record, dict) or not is_commit(str(record.get("sha"))):
            raise listing_error(self.model, "the hub does not tell its commit", _COMPARE)
        return record

    def current(self) -> tuple["HubRepository", dict[str, Any]]:
        """Return the repository with its present name and commit, and the hub's record of it."""
        about = self.about()
        name = about.get("id")
        try:
            return replace(self, model=name if isinstance(name, str) else self.model, revision=about["sha"]), about
        except ListingError as error:  # the hub's record is wrong, not the user's input
            error.exit_code = Exit.FAILURE
            raise

    def sizes(self) -> dict[str, Bytes]:
        """Return the sizes of files by path, without weights that the repository also has in another format."""
        listed = (line.split(" ", 2) for line in drop_copies(listed_files(self)))
        return {path: int(size) for _, size, path in listed}

    def entries(self) -> Iterator[dict[str, Any]]:
        """Yield the files and folders at the commit, as the hub lists them."""
        url: str | None = f"{self.hub}/api/models/{quote(self.model)}/tree/{self.revision}?recursive=true"
        pages = 0
        while url is not None and (pages := pages + 1) <= _MAX_PAGES:
            if urlsplit(url)[:2] != urlsplit(self.hub)[:2]:
                raise listing_error(self.model, f"{self._url.netloc} sends elsewhere", "Only the hub itself is asked")
            answer = self._request(url, _MAX_ANSWER)
            page = self._parse(answer.body)
            if not isinstance(page, list) or not all(isinstance(entry, dict) for entry in page):
                raise listing_error(self.model, "the hub answers with no list", "Try again")
            yield from page
            after = re.search(r'<([^<>]{1,2000})>; rel="next"', answer.headers.get("link", ""))
            url = after[1] if after else None

    def document(self, path: str, most: Bytes = _MAX_ANSWER) -> dict[str, Any]:
        """Return a file that is an object in JSON."""
        found = self._parse(self._request(self._file_url(path), most).body)
        if not isinstance(found, dict):
            raise listing_error(self.model, f"{path} is no object in JSON", "Do not use this model")
        return found

    def part(self, path: str, begin: int, end: int) -> bytes:
        """Bytes of a file, from `begin` to before `end`; fewer where it ends before."""
        span = f"bytes={begin}-{end - 1}"
        answer = self._request(self._file_url(path), end - begin, headers={"Range": span}, fine=(206, 416))
        return answer.body if answer.status == 206 else b""

    def open_from(self, path: str, begin: Bytes) -> AbstractContextManager[OpenAnswer]:
        """Open a file of any size at a byte. Raises NotAnswered."""
        headers = {"Range": f"bytes={begin}-"} if begin else {}
        return open_url(self._file_url(path), headers=headers, credentials=self._credentials)

    @property
    def _credentials(self) -> Credentials | None:
        return ("Bearer", self.token) if self.token else None

    def _file_url(self, path: str) -> str:
        return f"{self.hub}/{quote(self.model)}/resolve/{self.revision}/{quote(path)}"

    def _parse(self, data: bytes) -> Json:
        try:
            return parse_json(data)
        except ValueError:
            raise listing_error(self.model, "the hub answers with what is no JSON", "Try again") from None

    def _request(
        self, url: str, most: Bytes, *, headers: dict[str, str] | None = None, fine: tuple[int, ...] = (200,)
    ) -> WebAnswer:
        try:
            answer = fetch(url, most, headers=headers, credentials=self._credentials)
        except NotAnswered as error:
            why, away = f"{self._url.netloc} {error}", "reached" in str(error) or "in time" in str(error)
            if away:
                raise listing_error(self.model, why, _OFFLINE, reached=False) from None
            raise listing_error(self.model, why, "Use another hub, or try again later") from None
        if answer.status not in fine:
            raise self._refusal(answer)
        return answer

    def _refusal(self, answer: WebAnswer) -> WinhostError:
        status, code = answer.status, answer.headers.get("x-error-code", "")
        if status == 429:
            limited = re.search(r"(?:^|;)\s*t=(\d{1,6})(?:;|$)", answer.headers.get("ratelimit", ""))  # "api";r=0;t=55
            seconds = retry_after_s(answer.headers)
            wait = str(seconds) if seconds is not None else limited and limited[1]
            when = f"in {wait} s" if wait else "later"
            hint = f"Run the command again {when}; with a token more is allowed: {_AUTHENTICATION_HINT}"
            return listing_error(self.model, "the hub allows no more requests for now (429)", hint)
        if code == "GatedRepo" or (status == 403 and not code):
            why = f"it is gated: its licence has to be accepted first ({status})"
            return listing_error(self.model, why, f"Accept it at {self.page}, and name a token: {_AUTHENTICATION_HINT}")
        if status in (401, 403):
            why = f"the hub has no such model, or it is private ({status})"
            hint = "The token may not read it, or has expired" if self.token else f"To read it: {_AUTHENTICATION_HINT}"
            return listing_error(self.model, why, f"{self._suggestion}{_COMPARE}. {hint}")
        if code == "RevisionNotFound":
            return listing_error(self.model, f"the hub has no revision {self.revision} of it", f"See {self.page}")
        if status == 404:
            missing = {"RepoNotFound": "model", "EntryNotFound": "file"}.get(code, "model or file")
            suggestion = "" if code == "EntryNotFound" else self._suggestion
            return listing_error(self.model, f"the hub has no such {missing} (404)", f"{suggestion}{_COMPARE}")
        reason = responses.get(status, "")
        return listing_error(self.model, f"the hub answers {status} {reason}".rstrip(), "Run the command again later")

    @property
    def _suggestion(self) -> str:
        """A sentence with similar names of the catalogue, or nothing."""
        from winhost.hub.catalogue import catalogue_of, shipped_document, similar_names  # only for a wrong name

        names = similar_names(self.model, catalogue_of(shipped_document()).entries)
        return f"Did you mean {' or '.join(names)}? " if names else ""


def model_files(model: str, revision: str, reference: str | None = None, hub: str = HUB) -> dict[str, Json]:
    """Return the desired state of `ModelFiles`. model: ORG/NAME; revision: a commit; reference: to the token.

    Raises WinhostError (NotListed) and UsageError (SecretUnreadable).
    """
    if not is_commit(revision):
        hint = "Give all 40 digits: a branch may lead elsewhere tomorrow"
        raise _input_error(model, f"{revision[:100]} is not a commit", hint)
    token = SecretRef.parse(reference).resolve() if reference else None
    files = drop_copies(listed_files(HubRepository(model, revision, hub, token)))
    if not files:
        raise listing_error(model, "has no files at this revision", f"See {hub}/{model}/tree/{revision}")
    return {"source": f"{hub}/{model}", "revision": revision, "files": files, "token": reference}


def listed_files(repository: HubRepository) -> list[str]:
    """Return `HASH SIZE PATH` of each file, as in `ModelFiles`."""
    return sorted(_line(repository.model, entry) for entry in repository.entries() if entry.get("type") == "file")


def drop_copies(lines: list[str]) -> list[str]:
    """Leave out the weights that some repositories also have in another format: Llama below `original/`, gpt-oss also
    below `metal/`. vLLM's own download leaves out `original/` (LoadConfig.ignore_patterns).
    """
    paths = [line.split(" ", 2)[2] for line in lines]
    if not any(path.endswith(".safetensors") and "/" not in path for path in paths):
        return lines
    return [line for line, path in zip(lines, paths, strict=True) if not _COPIED_WEIGHTS.fullmatch(path)]


_COPIED_WEIGHTS = re.compile(r"(original|metal)/.*\.(safetensors|bin|pth|pt)")


def _line(model: str, entry: dict[str, Any]) -> str:
    """Return `HASH SIZE PATH` of a file. Large files have a SHA-256 (of Git LFS), small ones git's own hash."""
    path, lfs = str(entry.get("path")), entry.get("lfs") or {}
    hash_ = f"sha256:{lfs.get('oid')}" if lfs else f"git-sha1:{entry.get('oid')}"
    size = (lfs or entry).get("size")
    if not re.fullmatch(r"sha256:[0-9a-f]{64}|git-sha1:[0-9a-f]{40}", hash_) or type(size) is not int or size < 0:
        raise listing_error(model, f"the hub tells no hash of {visible(path)}", "Try again")
    if any(part in ("", ".", "..", ".winhost") for part in path.split("/")) or not path.isprintable():
        raise listing_error(model, f"{visible(path)} leads out of its folder", "Do not use this model")
    return f"{hash_} {size} {path}"


# ---- a folder of this machine, with the same interface as a hub; hashes of its files replace a revision


_DRIVE = re.compile(r"([A-Za-z]):[/\\]")
_MAX_FILES = 10_000


NAME_A_FOLDER = "Name the folder that has config.json and the safetensors of the model, or a model as ORG/NAME"


def _folder_error(path: str, why: str) -> UsageError:
    return UsageError("NoModelFolder", what=f"{visible(path[:200])}: {why}", hint=NAME_A_FOLDER)


@dataclass(frozen=True)
class ModelFolder:
    """model: the absolute path of the folder; the other fields are those of `HubRepository`."""

    model: str
    revision: str = ""
    token: None = None

    @classmethod
    def from_path(cls, path: str) -> "ModelFolder":
        """Find the folder at a path. Raises UsageError (NoModelFolder)."""
        try:
            folder = Path(path).expanduser().resolve()
            is_folder, exists = folder.is_dir(), folder.exists()
        except (OSError, RuntimeError, ValueError) as error:
            raise _folder_error(path, f"cannot be read: {visible(str(error)[:200])}") from error
        if not is_folder:
            why = "is a file, and no folder" if exists else f"there is no such folder{suggest_sibling(folder)}"
            raise _folder_error(path, why)
        return cls(str(folder))

    @property
    def page(self) -> str:
        """The path of the folder, where a hub has the URL of a page."""
        return self.model

    @property
    def path(self) -> Path:
        return Path(self.model)

    def current(self) -> tuple["ModelFolder", dict[str, Any]]:
        return self, {}

    def sizes(self) -> dict[str, Bytes]:
        """Return the sizes of files by their path below the folder, without hidden files and folders, such as the
        records of a hub's client.
        """
        try:
            sizes = dict(self._sizes())
        except OSError as error:
            raise self._unreadable(error) from error
        return dict(sorted(sizes.items()))

    def _sizes(self) -> Iterator[tuple[str, Bytes]]:
        for count, path in enumerate(self.path.rglob("*")):
            inner = path.relative_to(self.path)
            if count >= _MAX_FILES:
                raise listing_error(self.model, f"has more than {_MAX_FILES:,} files", "Name the folder of one model")
            if any(part.startswith(".") for part in inner.parts):
                continue
            name = inner.as_posix()
            if path.is_symlink():
                hint = "Copy the files themselves into a folder of their own, as cp -rL does"
                raise listing_error(self.model, f"{visible(name)} is a link", hint)
            if path.is_dir():
                continue
            if not name.isprintable():
                raise listing_error(self.model, f"{visible(name)} is no name of a file", "Do not use this model")
            yield name, path.stat().st_size

    def document(self, path: str, most: Bytes = _MAX_ANSWER) -> dict[str, Any]:
        """Return a file that is an object in JSON."""
        data = self.part(path, 0, most + 1)
        if len(data) > most:
            raise listing_error(self.model, f"{path} has more than {most // MiB} MiB", "Do not use this model")
        try:
            found = parse_json(data)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise listing_error(self.model, f"{path} is no object in JSON", "Do not use this model")
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
        """Return `sha256:HASH SIZE PATH` of each file, as in `ModelFiles`. Reads all files."""
        lines = []
        for name, size in self.sizes().items():
            try:
                lines.append(f"sha256:{sha256_of(self.path / name)} {size} {name}")
            except OSError as error:
                raise self._unreadable(error) from error
        if not lines:
            raise listing_error(self.model, "has no files", "Name the folder of a model")
        return sorted(lines)

    def _unreadable(self, error: OSError) -> WinhostError:
        return listing_error(self.model, f"cannot be read: {visible(str(error.strerror or error))}", "Can you read it?")


ModelRepository: TypeAlias = HubRepository | ModelFolder


def folder_files(model: str) -> dict[str, Json]:
    """Return the desired state of `ModelFiles` for a folder: the hashes of its files, and its path on the Linux that
    serves. Raises WinhostError (NotListed).
    """
    folder = ModelFolder.from_path(model)
    source = path_in_wsl(folder.model)
    if not source.startswith("/"):
        hint = "Copy it to a drive of this machine, such as C:"
        raise listing_error(folder.model, "is a share of a network, which WSL does not see", hint)
    return {"source": source, "revision": None, "files": folder.listed(), "token": None}


def path_in_wsl(path: str) -> str:
    """Return the path of a Windows drive in a WSL distro, which is below /mnt; other paths stay the same."""
    drive = _DRIVE.match(path)
    if drive is None:
        return path
    return f"/mnt/{drive[1].lower()}/" + path[3:].replace("\\", "/")
