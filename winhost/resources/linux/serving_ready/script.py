# key {}   state {ready: bool}
from __future__ import annotations

from winhost.agent.linux_head import *

SERVING_FILE = "/etc/winhost/serving.json"
LONGEST_READY = 1800.0


@reads("ServingReady")
def serving_ready(key: Key | None) -> Found:
    if status(SERVING_FILE) is None:
        raise NotThereYet("LinuxFile")
    yield {}, {"ready": endpoint_serves()[0]}


def serving_file() -> State:
    try:
        found = json.loads(content(SERVING_FILE).decode("utf-8"))
        address, _, port = found["gateway"]["listen"].rpartition(":")
        units = [str(each["unit"]) for each in found["engines"]]
        return {"host": address.strip("[]"), "port": int(port), "tls": found["gateway"]["tls"] is True, "units": units}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise wrong_place(f"{SERVING_FILE} is not as winhost writes it.") from None


def endpoint_serves() -> tuple[bool, str]:
    """Tell whether every model answered a completion, and what was said instead."""
    told = serving_file()
    host: str = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(str(told["host"]), str(told["host"]))  # noqa: S104 - compared, not bound
    return asked_ready(host, told["port"], told["tls"])


@changes("ServingReady", "ready")
def await_endpoint(key: Key, desired: State, how: State) -> None:
    limit = float(how.get("within") or LONGEST_READY)
    over = time.monotonic() + limit
    with waiting(f"waiting for a completion of each model, for up to {limit:.0f} s"):
        while True:
            ready, said = endpoint_serves()
            if ready:
                return
            failed = [unit for unit in serving_file()["units"] if run("systemctl", "is-failed", "--", unit).code == 0]
            if failed or time.monotonic() > over:
                why = f"{', '.join(failed)} failed" if failed else "its models do not answer"
                message = f"The endpoint does not serve: {why}. /ready says: {said[:500]}."
                message = f"{message} Next: winhost serve status HOST"
                raise AgentFault("Winhost.NotServing", "ObjectNotFound", message)
            time.sleep(2)
