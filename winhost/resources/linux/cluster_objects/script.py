# key {name: text}   state {text: text | null, serves: bool, token: text | null}
from __future__ import annotations

from winhost.agent.linux_head import *

OBJECTS = STATE_FOLDER + "/cluster"
HUB_TOKEN = "hub-token"  # noqa: S105 - the name of a Secret
NO_OBJECTS_YET: State = {"text": None, "serves": False, "token": None}
# Deleting these would delete their contents, which may be others' data.
KEPT_KINDS = ("Namespace", "PersistentVolumeClaim")
LONGEST_ROLLOUT = 4 * 3600.0  # to download a large model on a slow line, and to start it


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
    found = existing_objects(path)
    there = {identity_of(each) for each in found}
    left = [each for each in manifests_of(text) if identity_of(each) in there]
    if len(left) < len(manifests_of(text)):
        # If no object exists any more, the list is empty: deleting was interrupted, and our file must be removed, too.
        return {"text": list_of(left), "serves": False, "token": token}
    return {"text": text, "serves": not serving_problem(found), "token": token}


def hub_token(path: str) -> str | None:
    """Return the reference from which winhost took the token, if the Secret exists."""
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
    """Replace the token. It is passed to kubectl through a pipe, and never in a file or on a command line."""
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
    """Return the kind with its group, the namespace and the name of an object."""
    group = manifest["apiVersion"].rpartition("/")[0]
    kind = manifest["kind"] + ("." + group if group else "")
    return kind, manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"]


def existing_objects(path: str) -> list[dict[str, Any]]:
    """Return the objects of a manifest file that exist in the cluster."""
    done = try_kubectl("get", "--filename", path, "--ignore-not-found", "--output", "json")
    if done.code != 0 or not done.output.strip():
        return []
    found = json.loads(done.output)
    return list(found["items"]) if found["kind"] == "List" else [found]


def serving_problem(found: list[dict[str, Any]]) -> str:
    """Return which Deployments are not available, or what the gateway reports; an empty text if all serve."""
    waits = [each["metadata"]["name"] for each in found if each["kind"] == "Deployment" and not is_available(each)]
    return f"not available yet: {', '.join(waits)}" if waits else gateway_problem(found)


def is_available(deployment: dict[str, Any]) -> bool:
    state, replicas = deployment.get("status", {}), deployment["spec"].get("replicas", 1)
    is_current = state.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    return bool(is_current and min(state.get("availableReplicas", 0), state.get("updatedReplicas", 0)) >= replicas)


def gateway_problem(found: list[dict[str, Any]]) -> str:
    """Return what the gateway's /ready reports; an empty text if every model answered, or if there is no gateway."""
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
            delete_objects(before, [])
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
    # Record the old and the new objects before anything is applied, so that all can be deleted after an interruption.
    both = [*after, *(each for each in before if identity_of(each) not in known)]
    put(path, list_of(both), 0o600)
    with waiting("applying manifests"):
        kubectl("apply", "--filename", path)
        delete_objects(before, after)
    put(path, text, 0o600)


def delete_objects(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> None:
    """Delete objects that are no longer desired, in reverse order."""
    desired = {identity_of(each) for each in after}
    for each in reversed(before):
        kind, namespace, name = identity_of(each)
        if (kind, namespace, name) in desired:
            continue
        if each["kind"] in KEPT_KINDS:
            warn(f"{each['kind']} {name} stays: it may hold what is somebody's.")
            continue
        place = ["--namespace", namespace] if namespace else []
        kubectl("delete", *place, "--ignore-not-found", kind, name)


def await_objects(path: str, how: State) -> None:
    limit = float(how.get("within") or LONGEST_ROLLOUT)
    with waiting(f"waiting for a completion of each model, for up to {limit:.0f} s"):
        said = poll(lambda: applied_problem(path), limit)
    if said:
        message = f"The cluster does not serve: {said}. Next: k3s kubectl get pods --all-namespaces"
        raise AgentFault("Winhost.NotServing", "ObjectNotFound", message)


def applied_problem(path: str) -> str:
    found = existing_objects(path)
    return serving_problem(found) if found else "no object is there"
