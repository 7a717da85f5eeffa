# key {folder: text}   state {source: text | null, files: [text] | null, command: [text] | null}
from __future__ import annotations

from winhost.agent.linux_head import *

PACKERS = ("docker", "podman", "systemd-run")
PACKING_SECONDS = 3600
ABSENT_PACKED_MODEL: State = {"source": None, "files": None, "command": None}
MAX_PACKED_HEADER = 100_000_000


@reads("PackedModel", folder=text_check(r"/srv/winhost/models/[a-z0-9-]{1,64}--packed", "the folder of a packed model"))
def packed_models(key: Key | None) -> Found:
    require_engines_group()
    for folder in [key["folder"]] if key else recorded_values("packed", "folder"):
        yield {"folder": folder}, packed_state(folder)


def packed_file(line: str) -> ListedFile:
    return parse_listed_file(line, r"sha256:[0-9a-f]{64} [0-9]{1,15} [^/\0]+", "a file, as sha256:HASH SIZE NAME")


def packed_state(folder: str) -> State:
    record = packed_record(folder)
    if record["source"] is None:
        return dict(ABSENT_PACKED_MODEL)
    known = [line for line in record["files"] if line in record["marks"]]
    there = [line for line in known if file_mark(f"{folder}/{packed_file(line).path}") == record["marks"][line]]
    return {"source": record["source"], "files": there, "command": record["command"]}


def packed_record(folder: str) -> dict[str, Any]:
    """Return the record of a packed model. marks: of each file when it was packed, by its line."""
    nothing = {"folder": folder, **ABSENT_PACKED_MODEL, "marks": {}}
    return {**nothing, **(find_record("packed", folder) or {})}


@changes("PackedModel", "source", "files", "command")
def change_packed_model(key: Key, desired: State, how: State) -> None:
    folder = key["folder"]
    record = packed_record(folder)
    if "source" in desired and desired["source"] is None:
        remove_packed(folder, record)
        return
    wanted = {**{name: record[name] for name in ABSENT_PACKED_MODEL}, **desired}
    command = wanted["command"] or [""]
    if wanted["files"] is None or not wanted["source"] or command[0] not in PACKERS:
        raise bad_request("It takes a folder, the weights in it, and docker, podman or systemd-run with arguments.")
    if file_status(folder) is not None and record["source"] is None:
        raise AgentFault("Winhost.NotOurs", "ResourceExists", f"{folder} is there, and winhost did not make it.")
    known = packed_state(folder)["files"] or []
    lacking = [packed_file(line) for line in wanted["files"] if line not in known]
    removed = [packed_file(line).path for line in record["files"] or () if line not in wanted["files"]]
    record.update(wanted)
    write_record("packed", folder, record)  # before the folder exists
    for name in removed:
        remove(f"{folder}/{name}")
    if lacking:
        check_free_space(folder, sum(each.size for each in lacking if file_status(f"{folder}/{each.path}") is None))
        with open_folder(f"{folder}/x", make=True):
            pass
        with waiting("weights are packed"):
            pack_weights(command, seconds(how, PACKING_SECONDS))
    for each in lacking:
        check_packed(f"{folder}/{each.path}", each)
    record["marks"] = {line: file_mark(f"{folder}/{packed_file(line).path}") for line in wanted["files"]}
    write_record("packed", folder, record)


def pack_weights(command: list[str], within: float) -> None:
    """Run the packer. It skips files that are packed already, and reports an error as a line of JSON."""
    program, *words = command
    if program == "systemd-run":
        done = run("systemd-run", *words, within=within)
    else:
        done = run("docker" if program == "docker" else "podman", *words, within=within)
    if done.code == 0:
        return
    why = (done.errors.strip() or done.output.strip())[-2000:]
    for line in done.output.splitlines():
        with suppress(ValueError, AttributeError):
            said = json.loads(line)
            why = said.get("error") or (f"The engine's Python cannot pack: {said['lacks']}" if "lacks" in said else why)
    raise AgentFault("Winhost.ProgramFailed", "InvalidResult", why, command[0], (f"exit {done.code}",))


def check_packed(path: str, file: ListedFile) -> None:
    """Check that a packed file was made from the right original, whose SHA-256 is in its header."""
    try:
        with open_file(path) as here:
            size = min(int.from_bytes(here.read(8), "little"), MAX_PACKED_HEADER)
            made_of = json.loads(json.loads(here.read(size))["__metadata__"]["winhost.packed"])["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        made_of = None
    if f"sha256:{made_of}" != file.hash:
        raise AgentFault("Winhost.NotThisFile", "InvalidData", f"{path} is not {file.path} of the plan, packed.")


def remove_packed(folder: str, record: dict[str, Any]) -> None:
    if record["source"] is None:
        return
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)
    remove_empty_parents(folder)
    remove_record("packed", folder)
