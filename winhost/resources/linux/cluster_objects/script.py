# key {name: text}   state {text: text | null, serves: bool, token: text | null}
from __future__ import annotations

from winhost.agent.linux_head import *

OBJECTS = STATE_FOLDER + "/cluster"
HUB_TOKEN = "hub-token"  # noqa: S105 - the name of a Secret
NO_OBJECTS_YET: State = {"text": None, "serves": False, "token": None}
# Taken away with what is in them, and others may have filled them since.
STAY = ("Namespace", "PersistentVolumeClaim")
LONGEST_ROLLOUT = 4 * 3600.0  # a large model by a slow line, and its start


@reads("ClusterObjects", name=text_check(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", "a name in a cluster"))
def cluster_objects(key: Key | None) -> Found:
    require_k3s()
    names = [key["name"]] if key else sorted(each.stem for each in Path(OBJECTS).glob("*.json"))
    for name in names:
        yield {"name": name}, objects_state(objects_file(name))


def objects_file(name: str) -> str:
    return f"{OBJECTS}/{name}.json"


def objects_state(path: str) -> State:
    if file_status(path) is None:
        return dict(NO_OBJECTS_YET)
    token = hub_token(path)
    text = read_file(path).decode("ascii")
    found = objects_found(path)
    there = {identity_of(each) for each in found}
    left = [each for each in manifests_of(text) if identity_of(each) in there]
    if len(left) < len(manifests_of(text)):
        # With no object left it is a list without any: our file is to go as well, where taking away was cut off.
        return {"text": list_of(left), "serves": False, "token": token}
    return {"text": text, "serves": not lacks_to_serve(found), "token": token}


def hub_token(path: str) -> str | None:
    """The reference by which winhost found it, where the Secret is there."""
    kept = read_record(token_record(path))
    if kept is None:
        return None
    words = ("get", "secret", HUB_TOKEN, "--namespace", namespace_of(path), "--ignore-not-found", "--output", "name")
    return kept["token"] if try_kubectl(*words).output.strip() else None


def token_record(path: str) -> str:
    return path[: -len(".json")] + ".token"


def namespace_of(path: str) -> str:
    return path.rpartition("/")[2][: -len(".json")]


def set_token(path: str, reference: str | None, secret: Any) -> None:
    """It reaches kubectl by a pipe, and no file or command line."""
    kubectl("delete", "secret", HUB_TOKEN, "--namespace", namespace_of(path), "--ignore-not-found")
    remove(token_record(path))
    if reference is None:
        return
    if not isinstance(secret, str) or not secret.strip():
        raise bad_request("The token is not there.")
    put(token_record(path), json.dumps({"token": reference}), 0o600)
    place = {"name": HUB_TOKEN, "namespace": namespace_of(path)}
    made = {"apiVersion": "v1", "kind": "Secret", "metadata": place, "stringData": {"token": secret.strip()}}
    kubectl_with_input(json.dumps(made), "create", "--filename", "-")


def list_of(manifests: list[dict[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}) + "\n"


def manifests_of(text: str) -> list[dict[str, Any]]:
    try:
        items = json.loads(text)["items"]
        for each in items:
            identity_of(each)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise bad_request("The text is no List of manifests in JSON.") from None
    return items  # type: ignore[no-any-return]


def identity_of(manifest: dict[str, Any]) -> tuple[str, str, str]:
    """Kind with its group, namespace and name."""
    group = manifest["apiVersion"].rpartition("/")[0]
    kind = manifest["kind"] + ("." + group if group else "")
    return kind, manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"]


def objects_found(path: str) -> list[dict[str, Any]]:
    """The objects of a manifest file that exist in the cluster."""
    done = try_kubectl("get", "--filename", path, "--ignore-not-found", "--output", "json")
    if done.code != 0 or not done.output.strip():
        return []
    found = json.loads(done.output)
    return list(found["items"]) if found["kind"] == "List" else [found]


def lacks_to_serve(found: list[dict[str, Any]]) -> str:
    """Tell which Deployments are not available as they are wanted, or what the gateway says; empty where all serve."""
    waits = [each["metadata"]["name"] for each in found if each["kind"] == "Deployment" and not is_available(each)]
    return f"not available yet: {', '.join(waits)}" if waits else gateway_lacks(found)


def is_available(deployment: dict[str, Any]) -> bool:
    told, wanted = deployment.get("status", {}), deployment["spec"].get("replicas", 1)
    seen = told.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    return bool(seen and min(told.get("availableReplicas", 0), told.get("updatedReplicas", 0)) >= wanted)


def gateway_lacks(found: list[dict[str, Any]]) -> str:
    """Tell what the gateway says instead of a completion of every model; empty where there is none."""
    services = [each for each in found if each["kind"] == "Service" and each["metadata"]["name"] == "gateway"]
    for service in services:
        port = service["spec"]["ports"][0]
        said = check_ready(service["spec"]["clusterIP"], port["port"], port["name"] == "https")
        if said:
            return f"/ready of the gateway says: {said[:500]}"
    return ""


@changes("ClusterObjects", "text", "serves", "token")
def change_cluster_objects(key: Key, desired: State, how: State) -> None:
    path = objects_file(key["name"])
    before = manifests_of(read_file(path).decode("ascii")) if file_status(path) else []
    if desired.get("text", "") is None:
        with waiting("taking away what is in the cluster"):
            take_away(before, [])
            set_token(path, None, None)
        remove(path)
        return
    served = objects_state(path)["serves"]
    if "text" in desired:
        apply_objects(path, desired["text"], before)
    if "token" in desired:
        set_token(path, desired["token"], how.get("secret"))
    if served or desired.get("serves"):
        if file_status(path) is None:
            raise bad_request("Nothing was applied that could serve.")
        await_objects(path, how)


def apply_objects(path: str, text: str, before: list[dict[str, Any]]) -> None:
    after = manifests_of(text)
    known = {identity_of(each) for each in after}
    # Before anything is applied, and with what was: whatever happens, all of it can be taken back.
    both = [*after, *(each for each in before if identity_of(each) not in known)]
    put(path, list_of(both), 0o600)
    with waiting("applying manifests"):
        kubectl("apply", "--filename", path)
        take_away(before, after)
    put(path, text, 0o600)


def take_away(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> None:
    """Delete objects that are no longer desired, the last first."""
    wanted = {identity_of(each) for each in after}
    for each in reversed(before):
        kind, namespace, name = identity_of(each)
        if (kind, namespace, name) in wanted:
            continue
        if each["kind"] in STAY:
            warn(f"{each['kind']} {name} stays: it may hold what is somebody's.")
            continue
        place = ["--namespace", namespace] if namespace else []
        kubectl("delete", *place, "--ignore-not-found", kind, name)


def await_objects(path: str, how: State) -> None:
    limit = float(how.get("within") or LONGEST_ROLLOUT)
    with waiting(f"waiting for a completion of each model, for up to {limit:.0f} s"):
        said = poll(lambda: applied_lacks(path), limit)
    if said:
        message = f"The cluster does not serve: {said}. Next: k3s kubectl get pods --all-namespaces"
        raise AgentFault("Winhost.NotServing", "ObjectNotFound", message)


def applied_lacks(path: str) -> str:
    found = objects_found(path)
    return lacks_to_serve(found) if found else "no object is there"
