"""API keys that change while the gateway runs: which keys are valid, which requests are broken off, and what is
counted.
"""

import json
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gateway.running import KEY_LINE, MODEL, OTHER_KEY, Gateway, gateway, read_to_end, settings_for
from tests.gateway.test_gateway import metric, wait_until
from tests.processes import PATIENCE_S
from tests.rows import each_row
from winhost.gateway.api_keys import ApiKeys, KeyFiles
from winhost.gateway.key_limits import CountedRequest, KeyLimits, OverLimit, parse_key_limits
from winhost.gateway.key_lines import (
    KEY_LIMITS,
    KeyLine,
    WrongKeys,
    effective_keys,
    keys_text,
    parse_keys,
    shadowed_keys,
    time_text,
)

CAROL = "wh-Canary7of8the9key0of1carol"  # the same in all processes of pytest
CAROL_HASH = sha256(CAROL.encode()).hexdigest()
ALICE_HASH = KEY_LINE.rpartition(":")[2]

NAMES = st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True)
MODELS = st.lists(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,20}", fullmatch=True), min_size=1, max_size=3)
TIMES = st.none() | st.integers(0, 253_402_300_799)
LINES = st.builds(
    KeyLine,
    name=NAMES,
    sha256=st.sampled_from([f"{number:064x}" for number in range(5)]),
    metrics=st.booleans(),
    models=st.none() | MODELS.map(tuple),
    limits=st.dictionaries(st.sampled_from(KEY_LIMITS), st.none() | st.integers(1, 1_000_000_000)),
    expires=TIMES,
    added=TIMES,
    revoked=TIMES,
    planned=st.booleans(),
)
FILES = st.lists(LINES, max_size=6, unique_by=lambda each: each.name)


@given(FILES)
def test_what_is_written_is_read_again(lines: list[KeyLine]) -> None:
    assert parse_keys(keys_text(lines)) == lines


@given(FILES, FILES)
def test_what_was_revoked_never_counts_again_and_each_name_counts_once(
    planned: list[KeyLine], changes: list[KeyLine]
) -> None:
    found = effective_keys(planned, changes)
    names = [each.name for each in found]
    assert sorted(set(names)) == sorted(names)
    assert {each.name for each in planned} <= set(names), "no key of a plan is lost"
    revoked = {each.sha256 for each in (*planned, *changes) if each.revoked is not None}
    assert not [each for each in found if each.sha256 in revoked and each.revoked is None]
    added = {each.name for each in changes if not each.planned}
    assert added <= {*names, *(each.name for each in shadowed_keys(planned, changes))}
    hashes = {each.name: each.sha256 for each in planned}
    assert all(each.sha256 == hashes[each.name] for each in found if each.name in hashes)


@each_row(
    "rules",
    ["models", "models=", "expires=2027-01-31", "expires=tomorrow", "concurrent=0", "concurrent=-1", "tokens=5",
     "concurrent=1 concurrent=none", "metrics models=a", "expires=2027-13-01T00:00:00Z", "planned=1", "a=b",
     "concurrent=1000000001", "models=a,,b"],
)  # fmt: skip
def test_a_rule_that_nobody_knows_is_refused_and_not_repeated(rules: str) -> None:
    with pytest.raises(WrongKeys) as caught:
        parse_keys(f"# keys\na sha256:{'0' * 64} {rules}\n")
    assert str(caught.value).startswith("line 2: word ")
    assert rules not in str(caught.value)


def test_other_rules_for_a_key_of_the_plan_count_while_the_plan_has_that_key() -> None:
    other = f"alice sha256:{ALICE_HASH} concurrent=2 planned\n"
    assert ApiKeys(KEY_LINE, other).line("alice").limits == {"concurrent": 2}
    assert ApiKeys(KEY_LINE.replace(ALICE_HASH, CAROL_HASH), other).line("alice").limits == {}
    assert ApiKeys(f"bob sha256:{CAROL_HASH}", other).names == ["bob"]


def test_a_file_that_is_gone_lets_nobody_in_again(tmp_path: Path) -> None:
    planned, changes = tmp_path / "keys", tmp_path / "changes"
    planned.write_text(KEY_LINE)
    files = KeyFiles(planned, changes)
    assert files.load().names == ["alice"]
    changes.write_text(f"alice sha256:{ALICE_HASH} revoked=2026-11-28T00:00:00Z planned\n")
    found = files.reload_if_changed()
    assert found is not None
    assert found.hashes == frozenset()
    changes.unlink()
    assert (files.reload_if_changed(), files.problem) == (
        None,
        "the file of changed keys is missing; restore it, or create an empty one",
    )
    changes.write_bytes(b"\xff")
    assert (files.reload_if_changed(), files.problem) == (None, "it is no text in UTF-8")
    changes.write_text("")
    assert files.reload_if_changed() is not None
    assert (files.reload_if_changed(), files.problem) == (None, "")


# ---- limits, with random clients


@each_row("seed", [*range(30)])
def test_no_client_has_more_than_its_key_may_while_limits_change(seed: int) -> None:
    """In each minute a key may use its remaining allowance, at most that of a minute, and the refill. A change adds
    the difference to a higher limit.
    """
    random, now = Random(seed), [0.0]
    found = KeyLimits(parse_key_limits({"requests_per_minute": 60}), lambda: now[0])
    own: dict[str, dict[str, int | None]] = {}
    opened: Counter[str] = Counter()
    begun: dict[str, list[float]] = {name: [] for name in "abc"}
    open_requests: list[tuple[str, Any]] = []
    for _ in range(2000):
        now[0] += random.expovariate(4)
        key = random.choice("abc")
        if random.random() < 0.01:
            own[key] = {
                "requests_per_minute": random.choice([1, 10, 60, None]),
                "concurrent": random.choice([1, 3, None]),
            }
            found.change(dict(own))
            begun[key].clear()
        if open_requests and random.random() < 0.5:
            done, request = open_requests.pop(random.randrange(len(open_requests)))
            request.__exit__(None, None, None)
            opened[done] -= 1
        request, limit = CountedRequest(found, key), found.limit_of(key)
        try:
            request.__enter__()
        except OverLimit:
            continue
        open_requests.append((key, request))
        begun[key].append(now[0])
        opened[key] += 1
        assert limit.concurrent is None or opened[key] <= limit.concurrent
        if limit.requests_per_minute is not None:
            last = [at for at in begun[key] if at > now[0] - 60]
            assert len(last) <= 2 * limit.requests_per_minute + 1


def test_who_waits_for_a_limit_is_told_the_time_after_which_it_goes_on() -> None:
    now = [0.0]
    found = KeyLimits(parse_key_limits({"requests_per_minute": 6}), lambda: now[0])
    for per_minute in (6, 600, 2):
        found.change({"a": {"requests_per_minute": per_minute}})
        waits = 0.0
        while not waits:
            try:
                with CountedRequest(found, "a"):
                    pass
            except OverLimit as over:
                waits = over.retry_after
        now[0] += waits
        with CountedRequest(found, "a"):
            pass


# ---- at the door


@pytest.fixture
def changing(short: Path, python: str) -> Callable[..., Any]:
    @contextmanager
    def made(**more: Any) -> Iterator[tuple[Gateway, Callable[[str], None]]]:
        changes = short / "changes"

        def change(text: str) -> None:
            """Change the file as `winhost serve keys` does, and wait until the gateway has read it."""
            beside = short / "changes.new"
            beside.write_text(text)
            beside.replace(changes)
            digest = sha256(text.encode()).hexdigest()
            assert wait_until(lambda: read_use(short)["read"]["changes"] == digest)

        with gateway(short, settings_for(short, key_changes=str(changes), **more), python) as door:
            yield door, change

    return made


def read_use(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "use.json").read_text())
    return found


def ask(door: Gateway, key: str, prompt: str = "hello", model: str = MODEL) -> tuple[int, str | None]:
    """Return the status, and the code of an error."""
    headers = {"Authorization": f"Bearer {key}"}
    status, _, body = door.ask("/v1/completions", {"model": model, "prompt": prompt}, headers)
    return status, json.loads(body).get("error", {}).get("code")


def test_a_key_is_added_limited_and_revoked_without_a_restart(changing: Any) -> None:
    carol = f"carol sha256:{CAROL_HASH}"
    with changing() as (door, change):
        assert ask(door, CAROL) == (401, "no-key")
        change(f"{carol}\n")
        assert ask(door, CAROL) == (200, None)
        change(f"{carol} requests_per_minute=1\n")
        assert [ask(door, CAROL), ask(door, CAROL)] == [(200, None), (429, "rate_limit_exceeded")]
        change(f"{carol} models=org/other\n")
        assert ask(door, CAROL) == (403, "model-not-allowed")
        listed = json.loads(door.ask("/v1/models", headers={"Authorization": f"Bearer {CAROL}"})[2])
        assert listed["data"] == []
        assert door.ask(f"/v1/models/{MODEL}", headers={"Authorization": f"Bearer {CAROL}"})[0] == 403
        change(f"{carol} expires=2026-01-01T00:00:00Z\n")
        assert ask(door, CAROL) == (401, "key-expired")
        change(f"{carol} revoked=2026-01-01T00:00:00Z\n")
        assert ask(door, CAROL) == (401, "key-revoked")
        assert ask(door, OTHER_KEY) == (200, None), "nobody else noticed"
        assert door.process.poll() is None


def test_an_expiry_comes_by_itself(changing: Any) -> None:
    with changing() as (door, change):
        soon = datetime.now(UTC) + timedelta(seconds=3)
        change(f"carol sha256:{CAROL_HASH} expires={time_text(soon.timestamp())}\n")
        assert wait_until(lambda: ask(door, CAROL) == (401, "key-expired"))


def test_a_broken_file_changes_nothing_and_is_told_of(changing: Any, short: Path) -> None:
    with changing() as (door, change):
        change(f"carol sha256:{CAROL_HASH}\n")
        assert metric(door, "winhost_gateway_keys_unread") == "0"
        (short / "changes").write_text("carol sha256:canary\n")
        assert wait_until(lambda: read_use(short)["read"]["problem"] != "")
        assert "changed keys, line 1: it is not NAME" in read_use(short)["read"]["problem"]
        assert wait_until(lambda: metric(door, "winhost_gateway_keys_unread") == "1")
        assert ask(door, CAROL) == (200, None)
        assert "canary" not in door.log
        assert door.log.count("API keys stay as they were") == 1
        change(f"carol sha256:{CAROL_HASH} models=org/other\n")
        assert read_use(short)["read"]["problem"] == ""
        assert ask(door, CAROL)[0] == 403


@pytest.mark.costly
def test_what_runs_by_a_revoked_key_is_broken_off_and_nothing_else(changing: Any) -> None:
    body = {"model": MODEL, "prompt": "slow 6000", "stream": True}
    with changing() as (door, change), door.connected() as stream, door.connected() as waits, door.connected() as other:
        change(f"carol sha256:{CAROL_HASH}\n")
        own = {"Authorization": f"Bearer {CAROL}"}
        stream.sendall(door.request("/v1/completions", body, own))
        waits.sendall(door.request("/v1/completions", {"model": MODEL, "prompt": "hang"}, own))
        other.sendall(door.request("/v1/completions", {**body, "prompt": "slow 60"}))
        assert wait_until(lambda: len(door.engine.requests) == 3)
        assert b"slow 6000" in stream.recv(65536)
        change(f"carol sha256:{CAROL_HASH} revoked=2026-11-28T00:00:00Z\n")
        ended = read_to_end(stream)
        assert b'"code": "key-revoked"' in ended
        assert not ended.endswith(b"0\r\n\r\n")
        assert b" 401 " in read_to_end(waits).partition(b"\r\n")[0]
        assert wait_until(lambda: len(door.engine.gone) == 2), "the engine stops, too"
        assert read_to_end(other).endswith(b"0\r\n\r\n")
        assert wait_until(lambda: metric(door, "winhost_gateway_requests_running") == "0")


def test_use_is_counted_by_key_and_outlives_the_gateway(changing: Any, short: Path) -> None:
    with changing() as (door, change):
        change(f"carol sha256:{CAROL_HASH}\n")
        assert ask(door, CAROL, model="org/none")[0] == 404  # which no engine got
        own = {"Authorization": f"Bearer {CAROL}"}
        status, _, body = door.ask("/v1/completions", {"model": MODEL, "prompt": "spends 5 7", "stream": True}, own)
        assert (status, b"usage" in body) == (200, False), "its client did not ask for it"
        door.ask("/v1/completions", {"model": MODEL, "prompt": "spends 0 0"}, own)
        change(f"carol sha256:{CAROL_HASH} tokens_per_minute=1\n")
        assert ask(door, CAROL, "spends 30 12")[0] == 200
        assert ask(door, CAROL)[0] == 429, "it takes 41 minutes to pay for that"
        for line, value in {
            'key_requests_total{key="carol"}': "3",
            'key_refused_total{key="carol"}': "1",
            'key_tokens_total{key="carol",direction="in"}': "35",
            'key_tokens_total{key="carol",direction="out"}': "19",
        }.items():
            assert metric(door, f"winhost_gateway_{line}") == value
        assert door.end() == 0
        before = read_use(short)["used"]["carol"]
    assert (before["requests"], before["refused"], before["tokens_in"], before["tokens_out"]) == (3, 1, 35, 19)
    later = short / "later"
    later.mkdir()
    (later / "use.json").write_text((short / "use.json").read_text())
    (later / "changes").write_text(f"carol sha256:{CAROL_HASH}\n")
    with gateway(later, settings_for(later, key_changes=str(later / "changes"))) as door:
        assert ask(door, CAROL, "spends 1 1")[0] == 200
        assert metric(door, 'winhost_gateway_key_requests_total{key="carol"}') == "4"
        assert door.end() == 0
        assert read_use(later)["used"]["carol"]["since"] == before["since"]


def test_a_gateway_whose_file_of_changes_went_while_it_was_down_does_not_start(short: Path, python: str) -> None:
    """Revoked keys would be valid again."""
    (short / "use.json").write_text(json.dumps({"format": 1, "read": {"changes": "a" * 64}, "used": {}}))
    settings = settings_for(short, key_changes=str(short / "changes"))
    with pytest.raises(AssertionError, match="changed keys is missing; restore it"), gateway(short, settings, python):
        pass
    (short / "gateway").rename(short / "before")
    (short / "changes").write_text("")
    with gateway(short, settings, python) as door:
        assert door.complete("hello")[0] == 200


def test_another_key_under_the_same_name_begins_anew(changing: Any, short: Path) -> None:
    with changing() as (door, change):
        change(f"carol sha256:{CAROL_HASH}\n")
        assert ask(door, CAROL)[0] == 200
        new = "wh-Canary3of3the3key3of3carol"
        change(f"carol sha256:{sha256(new.encode()).hexdigest()}\n")
        assert [ask(door, CAROL)[0], ask(door, new)[0]] == [401, 200]
        assert metric(door, 'winhost_gateway_key_requests_total{key="carol"}') == "1"


def test_counts_that_cannot_be_read_begin_anew_and_stop_nothing(short: Path, python: str) -> None:
    (short / "use.json").write_text('{"format": 1, "used": {"alice": {"of": "x"}}}')
    with gateway(short, settings_for(short), python) as door:
        assert "is counted anew" in door.log
        assert door.complete("hello")[0] == 200


@pytest.mark.costly
def test_changes_under_load_lose_no_request_of_others(changing: Any) -> None:
    """Some clients have a key that stays, and others one that is added and revoked. The former must not notice."""
    outcomes: dict[str, Counter[int]] = {OTHER_KEY: Counter(), CAROL: Counter()}
    stop = threading.Event()

    def client(door: Gateway, key: str) -> None:
        while not stop.is_set():
            outcomes[key][ask(door, key)[0]] += 1

    with changing() as (door, change):
        clients = [threading.Thread(target=client, args=(door, key)) for key in (OTHER_KEY, CAROL) for _ in range(3)]
        for each in clients:
            each.start()
        try:
            for rules in ("", " concurrent=1", " models=org/other", " revoked=2026-11-28T00:00:00Z") * 2:
                change(f"carol sha256:{CAROL_HASH}{rules}\n")
                before = {key: found.total() for key, found in outcomes.items()}
                assert wait_until(lambda before=before: all(outcomes[k].total() > before[k] + 5 for k in before))
        finally:
            stop.set()
            for each in clients:
                each.join(PATIENCE_S)
        assert outcomes[OTHER_KEY].keys() == {200}
        assert outcomes[CAROL].keys() <= {200, 401, 403, 429}
        assert {200, 401, 403} <= outcomes[CAROL].keys()
        assert "Traceback" not in door.log


@contextmanager
def crowd(door: Gateway, names: list[str], keys: Mapping[str, str], seed: int) -> Iterator[dict[str, Counter[int]]]:
    """Run a client for each name, which sends requests all the time. Return the answers."""
    got: dict[str, Counter[int]] = {name: Counter() for name in keys}
    stop = threading.Event()

    def client(name: str, pauses: Random) -> None:
        while not stop.is_set():
            got[name][ask(door, keys[name])[0]] += 1
            stop.wait(pauses.random() / 50)

    clients = [
        threading.Thread(target=client, args=(name, Random(100 * seed + number))) for number, name in enumerate(names)
    ]
    for each in clients:
        each.start()
    try:
        yield got
    finally:
        stop.set()
        for each in clients:
            each.join(PATIENCE_S)


@pytest.mark.costly
@each_row("seed", [1, 2, 3])
def test_random_clients_get_what_their_key_may_and_no_crowd_keeps_another_out(seed: int, python: str) -> None:
    """Three keys have many clients and rising limits. Bob has one client and no limit."""
    random, rates = Random(seed), dict.fromkeys(("a", "b", "c"), 1)
    keys = {"bob": OTHER_KEY, **{name: f"wh-Canary5of6the7key8of-{name}" for name in rates}}
    names = ["bob", *(name for name in rates for _ in range(random.randint(1, 5)))]

    def lines() -> str:
        told = ((name, sha256(keys[name].encode()).hexdigest()) for name in rates)
        return "".join(f"{name} sha256:{digest} requests_per_minute={rates[name]}\n" for name, digest in told)

    with tempfile.TemporaryDirectory(prefix="door-") as folder:
        changes = Path(folder, "changes")
        changes.write_text(lines())
        settings = settings_for(Path(folder), key_changes=str(changes), limits={"requests": 2, "waiting": 4})
        with gateway(Path(folder), settings, python) as door:
            began, may = time.monotonic(), dict.fromkeys(rates, 1.0)  # a minute's worth at the beginning
            with crowd(door, names, keys, seed) as got:
                for _ in range(4):
                    now = time.monotonic()
                    for name, rate in rates.items():
                        rates[name] = max(rate, random.choice([30, 120, 600]))
                        may[name] += rate * (now - began) / 60 + rates[name] - rate
                    began, before = now, got["bob"][200]
                    changes.with_name("new").write_text(lines())
                    changes.with_name("new").replace(changes)
                    assert wait_until(lambda before=before: got["bob"][200] >= before + 10), "bob is let in"
            spent = time.monotonic() - began
            for name in rates:
                assert got[name][200] <= may[name] + rates[name] * spent / 60 + 1, name
            assert set(got["bob"]) <= {200, 503}
            assert set().union(*got.values()) <= {200, 429, 503}
            assert "Traceback" not in door.log
