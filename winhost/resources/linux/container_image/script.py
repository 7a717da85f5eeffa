# key {engine: docker | podman, image: text}   state {present: bool, id: text | null, archive: text | null,
# archive_sha256: text | null, bytes: number | null, credentials: text | null, used_by: [text]}
from __future__ import annotations

import tarfile

from winhost.agent.linux_head import *

ENGINES = ("docker", "podman")
CREDENTIALS = "/run/winhost-registry"  # in memory; exists only while an image is pulled
REQUEST_PROPERTIES = ("archive", "archive_sha256", "bytes", "credentials")
PULLING = 4 * 3600  # seconds
# Factor of the compressed size: the archive is kept until it is unpacked to about twice its size (inferred).
ROOM_FOR_IMAGE = 3


# Without a registry in the name, Docker and Podman would take different images.
REGISTRY = r"(localhost|[a-z0-9-]+(\.[a-z0-9-]+)+|[a-z0-9.-]+:[0-9]+)(:[0-9]+)?"
IMAGE = REGISTRY + r"(/[a-z0-9]+([._-]+[a-z0-9]+)*)+@sha256:[0-9a-f]{64}"


@reads(
    "ContainerImage",
    engine=text_check("|".join(ENGINES), "docker or podman"),
    image=text_check(IMAGE, "an image with registry and digest (R/NAME@sha256:...)"),
)
def container_images(key: Key | None) -> Found:
    places = {"docker": find_program("docker"), "podman": find_program("podman")}
    engines = [engine for engine in ENGINES if places[engine]]
    engine, image = (key["engine"], key["image"]) if key else ("", "")
    if not engines or (engine and engine not in engines):
        raise NotThereYet("DebianPackage")
    if key:
        yield key, container_image(engine, image)
        return
    for engine in engines:
        ids = images_by_name(engine)
        loaded = {
            each["image"] for each in read_records("images") if each["engine"] == engine and each["id"] in ids.values()
        }
        for image in sorted({name for name in ids if "@sha256:" in name} | loaded):
            yield {"engine": engine, "image": image}, container_image(engine, image)


def container_image(engine: str, image: str) -> State:
    record = image_record(engine, image)
    ids = images_by_name(engine)
    id_ = ids.get(image) or (record["id"] if record["id"] in ids.values() else None)
    asked = {name: record[name] if id_ else None for name in REQUEST_PROPERTIES}
    used_by = sorted(name for name, used in containers_of(engine) if used == id_)
    return {"present": id_ is not None, "id": id_, **asked, "used_by": used_by}


def image_record(engine: str, image: str) -> dict[str, Any]:
    """Return the requested properties of an image, and whether winhost pulled or loaded it (ours)."""
    nothing = {
        "engine": engine,
        "image": image,
        "id": None,
        "name": None,
        "ours": False,
        **dict.fromkeys(REQUEST_PROPERTIES),
    }
    return {**nothing, **(find_record("images", f"{engine} {image}") or {})}


@changes("ContainerImage", "present", "archive", "archive_sha256", "bytes", "credentials")
def change_container_image(key: Key, desired: State, how: State) -> None:
    engine, image = key["engine"], key["image"]
    found, record = container_image(engine, image), image_record(engine, image)
    if desired.get("present") is False:
        remove_image(engine, image, found, record, how)
        return
    record.update({name: desired[name] for name in REQUEST_PROPERTIES if name in desired})
    record_name = f"{engine} {image}"
    if found["present"]:
        write_record("images", record_name, {**record, "id": found["id"]})
        return
    # Recorded before the pull, so that an image is known to be ours even if the machine goes down meanwhile.
    write_record("images", record_name, {**record, "ours": True})
    try:
        name = load_image(engine, record, how) if record["archive"] else pull_image(engine, image, record, how)
    except BaseException:
        remove_record("images", record_name)
        raise
    id_ = json.loads(run_checked(engine, "image", "inspect", name))[0]["Id"][-64:]
    # An image without a name of its own existed before.
    ours = name[-64:] != id_ or id_ not in images_by_name(engine).values()
    write_record("images", record_name, {**record, "ours": ours, "name": name, "id": id_})


def pull_image(engine: str, image: str, record: dict[str, Any], how: State) -> str:
    with credentials_for(image, how.get("secret")) as more:
        check_room_for_image(engine, record["bytes"] or ROOM_FOR_IMAGE * image_size(engine, image, more))
        within = seconds(how, PULLING)
        with waiting(f"{engine} pulls {image}"):
            run_checked(engine, "pull", "--quiet", image, environment=more, within=within)
    if image not in read_images(engine):
        raise AgentFault("Winhost.NotThisImage", "InvalidResult", f"{engine} pulled it, and does not list it.", engine)
    return image


@contextmanager
def credentials_for(image: str, secret: str | None) -> Iterator[dict[str, str]]:
    """Yield an environment in which an engine finds the credentials, for this registry only."""
    file = CREDENTIALS + "/config.json"
    remove(file)  # it may remain from a call that was killed
    if secret is None:
        yield {}
        return
    if ":" not in secret:
        raise bad_request("The credentials are no USER:PASSWORD.")
    registry = image.split("/")[0]
    names = ("https://index.docker.io/v1/", registry) if registry == "docker.io" else (registry,)
    auth = {"auth": base64.b64encode(secret.encode("utf-8")).decode("ascii")}
    with suppress(FileExistsError):
        Path(CREDENTIALS).mkdir(0o700)
    try:
        put(file, json.dumps({"auths": dict.fromkeys(names, auth)}), 0o600)
        yield {"DOCKER_CONFIG": CREDENTIALS, "REGISTRY_AUTH_FILE": file}
    finally:
        remove(file)
        with suppress(OSError):
            Path(CREDENTIALS).rmdir()


def check_room_for_image(engine: str, needed: int) -> None:
    shown = json.loads(run_checked(engine, "info", "--format={{json .}}"))
    root = shown["DockerRootDir"] if engine == "docker" else shown["store"]["graphRoot"]
    check_free_space(root, needed)


def load_image(engine: str, record: dict[str, Any], how: State) -> str:
    path = check_text(r"/[^\0]+", record["archive"], "the path of an archive")
    with open_file(path) as file:
        if sha256_of(file) != record["archive_sha256"]:
            raise AgentFault("Winhost.NotThisImage", "InvalidData", f"{path} has another SHA-256.", engine)
        refuse_names_in_use(engine, file, record)
        check_room_for_image(engine, record["bytes"] or ROOM_FOR_IMAGE * os.fstat(file.fileno()).st_size)
        said = run_checked(engine, "load", "--quiet", stdin=file.fileno(), within=seconds(how, PULLING))
    names = [line.split(": ", 1)[1] for line in said.splitlines() if line.startswith("Loaded image")]
    if len(names) != 1:
        raise AgentFault("Winhost.NotThisImage", "InvalidData", f"{path} holds {len(names)} images.", engine)
    return names[0]


def refuse_names_in_use(engine: str, file: BinaryIO, record: dict[str, Any]) -> None:
    """Refuse an archive whose names other images have: loading it would take the names from them."""
    with suppress(KeyError), tarfile.open(fileobj=file) as archive:
        index = archive.extractfile("manifest.json")
        assert index is not None
        for name in [name for each in json.load(index) for name in each.get("RepoTags") or ()]:
            if name != record["name"] and run(engine, "image", "inspect", name).code == 0:
                raise AgentFault("Winhost.NotOurs", "ResourceExists", f"{engine} has another image {name}.", engine)
            write_record("images", f"{engine} {record['image']}", {**record, "ours": True, "name": name})
    file.seek(0)


def remove_image(engine: str, image: str, found: State, record: dict[str, Any], how: State) -> None:
    if not record["ours"]:
        raise AgentFault("Winhost.NotOurs", "PermissionDenied", f"{image} was not brought by winhost; it stays.")
    if found["used_by"]:
        raise AgentFault("Winhost.InUse", "ResourceBusy", "Used by {}.".format(", ".join(found["used_by"])), engine)
    run_checked(engine, "image", "rm", record["name"] or image, within=seconds(how, 300))
    remove_record("images", f"{engine} {image}")
