# key {}   state {ready: bool}
from __future__ import annotations

from winhost.agent.linux_head import *

SERVING_FILE = "/etc/winhost/serving.json"
LONGEST_READY = 1800.0


@reads("ServingReady")
def serving_ready(key: Key | None) -> Found:
    if file_status(SERVING_FILE) is None:
        raise NotThereYet("LinuxFile")
    yield {}, {"ready": not endpoint_problem()}


def serving_file() -> State:
    try:
        found = json.loads(read_file(SERVING_FILE).decode("utf-8"))
        address, _, port = found["gateway"]["listen"].rpartition(":")
        units = [str(each["unit"]) for each in found["engines"]]
        return {"host": address.strip("[]"), "port": int(port), "tls": found["gateway"]["tls"] is True, "units": units}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise wrong_state(f"{SERVING_FILE} is not as winhost writes it.") from None


def endpoint_problem() -> str:
    """Return what /ready reports; an empty text if every model answered a completion."""
    gateway = serving_file()
    host: str = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(str(gateway["host"]), str(gateway["host"]))  # noqa: S104 - compared, not bound
    return check_ready(host, gateway["port"], gateway["tls"])


@changes("ServingReady", "ready")
def await_endpoint(key: Key, desired: State, how: State) -> None:
    limit = float(how.get("within") or LONGEST_READY)
    with waiting(f"waiting for a completion of each model, for up to {limit:.0f} s"):
        said = poll(endpoint_or_failure, limit)
    if said:
        raise not_serving_error("its models do not answer", said)


def endpoint_or_failure() -> str:
    """Return what /ready reports. Raises AgentFault if an engine has failed, because it will not answer any more."""
    said = endpoint_problem()
    failed = [unit for unit in serving_file()["units"] if said and run("systemctl", "is-failed", "--", unit).code == 0]
    if failed:
        raise not_serving_error(f"{', '.join(failed)} failed", said)
    return said


def not_serving_error(why: str, said: str) -> AgentFault:
    message = f"The endpoint does not serve: {why}. /ready says: {said[:500]}. Next: winhost serve status HOST"
    return AgentFault("Winhost.NotServing", "ObjectNotFound", message)
