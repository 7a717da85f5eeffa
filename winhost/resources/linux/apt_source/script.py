# key {name: text}   state {present: bool, uri: text | null, suite: text | null, components: [text],
# key: text | null, key_sha256: text | null}
from __future__ import annotations

import hashlib

from winhost.agent.linux_head import *

SOURCES = "/etc/apt/sources.list.d"
KEYRINGS = "/etc/apt/keyrings"
KNOWN_SOURCES = ("winhost-docker", "winhost-nvidia-container-toolkit")
NO_SOURCE: State = {"present": False, "uri": None, "suite": None, "components": [], "key": None, "key_sha256": None}


@reads("AptSource", name=text_check(r"winhost-[a-z0-9][a-z0-9-]*", "the name of a source of winhost's (winhost-...)"))
def apt_sources(key: Key | None) -> Found:
    for name in [key["name"]] if key else KNOWN_SOURCES:
        yield {"name": name}, apt_source(name)


def source_file(name: str) -> str:
    return f"{SOURCES}/{name}.sources"


def key_file(name: str) -> str:
    return f"{KEYRINGS}/{name}.asc"


def apt_source(name: str) -> State:
    text, armoured = read_text(source_file(name)), read_text(key_file(name))
    if text is None:
        return dict(NO_SOURCE)
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line and not line.startswith("#"))
    return {
        "present": True,
        "uri": fields.get("URIs"),
        "suite": fields.get("Suites"),
        "components": fields.get("Components", "").split(),
        "key": armoured,
        "key_sha256": None if armoured is None else hashlib.sha256(armoured.encode("ascii")).hexdigest(),
    }


@changes("AptSource", "present", "uri", "suite", "components", "key", "key_sha256")
def change_apt_source(key: Key, desired: State, how: State) -> None:
    name = key["name"]
    before = apt_source(name)
    if before["present"] and read_file(source_file(name)).decode("utf-8") != source_text(name, before):
        raise wrong_state(f"{source_file(name)} was changed by hand; it is left alone.")
    after = dict(before, **desired)
    try:
        write_source(name, after)
        if after["present"]:
            run_checked("apt-get", *source_options(name), "update", within=seconds(how, 300))
    except BaseException:
        # A source that apt cannot read makes every later apt command fail.
        write_source(name, before)
        raise


def source_options(name: str) -> list[str]:
    """Return the options with which apt updates only this source, and keeps the lists of the others."""
    file = f"-oDir::Etc::SourceList=sources.list.d/{name}.sources"
    # Without Error-Mode, a failure of this source is not an error if apt still has its former lists.
    return ["-q", file, "-oDir::Etc::SourceParts=-", "-oAPT::Get::List-Cleanup=0", "-oAPT::Update::Error-Mode=any"]


def write_source(name: str, state: State) -> None:
    if not state["present"]:
        remove(source_file(name))
        remove(key_file(name))
        return
    text = source_text(name, state)
    put(key_file(name), checked_key(state))
    put(source_file(name), text)


def source_text(name: str, state: State) -> str:
    suite = check_text(r"[A-Za-z0-9/][A-Za-z0-9/._-]*", state["suite"], "a suite")
    components = [check_text(r"[A-Za-z0-9][A-Za-z0-9/._-]*", each, "a component") for each in state["components"]]
    lines = [
        "# Written by winhost.",
        "Types: deb",
        "URIs: " + check_text(r"(https?://|file:/)[!-~]+", state["uri"], "the address of a repository"),
        "Suites: " + suite,
        *(["Components: " + " ".join(components)] if components else []),
        "Signed-By: " + key_file(name),
    ]
    return "\n".join(lines) + "\n"


def checked_key(state: State) -> str:
    armoured = check_text(
        r"-----BEGIN PGP PUBLIC KEY BLOCK-----\n[\n -~]*-----END PGP PUBLIC KEY BLOCK-----\n?",
        state["key"],
        "an armoured public key",
    )
    digest = hashlib.sha256(armoured.encode("ascii")).hexdigest()
    if state["key_sha256"] != digest:
        raise bad_request("The key's SHA-256 is {}, not {}.".format(digest, state["key_sha256"]))
    return armoured
