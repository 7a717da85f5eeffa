"""The dependents of a resource: what needs it to work, or to be undone itself. Found by what the host shows, not by
runs.
"""

from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress

from .answers import HostAnswers, Id, Json, Key, MissingFact, Record, Unavailable, Unknown, identity, refuse_missing
from .changes import Dependent
from .rules import DependentRule


def dependents_of(
    resource: str, key: Key, host: HostAnswers, *, held: bool = True
) -> dict[Id, tuple[DependentRule, Dependent]]:
    """Find dependents by identity, each with the first rule that names it. Raises MissingFact. held: whether earlier
    observations exist; without them, a rule that only counts newer dependents need not be read.
    """
    found: dict[Id, tuple[DependentRule, Dependent]] = {}
    for rule in host.rules[resource].dependents:
        with nullcontext() if held or rule.since is None else suppress(MissingFact):
            for user in dependents_by(rule, key, host):
                found.setdefault(identity(user.resource, user.key), (rule, user))
    return found


def seen(resource: str, key: Key, host: HostAnswers) -> list[Dependent]:
    """List the present dependents, for comparison with later ones. Raises MissingFact, also where some cannot be read
    yet.
    """
    for rule in host.rules[resource].dependents:
        found = host.answer(rule.resource)
        if rule.since is not None and isinstance(found, Unavailable):
            raise MissingFact(rule.resource, found)
    return [user for _, user in dependents_of(resource, key, host).values()]


def dependents_by(rule: DependentRule, key: Key, host: HostAnswers) -> list[Dependent]:
    """List the dependents of the instance with this key by one rule. Raises MissingFact."""
    found = host.answer(rule.resource)
    if isinstance(found, Unknown):
        raise MissingFact(rule.resource, found)
    if isinstance(found, Unavailable):
        return _by_disks(rule, key, host)
    dependents = []
    for record in found:
        if depends(rule, key, record.key, record.state):
            for name in rule.since or ():
                refuse_missing(f"{rule.resource}.{name}", record.state[name], unavailable=False)
            state = {name: record.state[name] for name in rule.since} if rule.since else None
            dependents.append(Dependent(rule.resource, record.key, state))
    return dependents


def depends(rule: DependentRule, key: Key, user: Key, state: Mapping[str, Json]) -> bool:
    """Tell whether an instance in this state depends on the one with this key. Raises MissingFact."""
    if any(user[part].casefold() != key[part].casefold() for part in rule.on if part in key):
        return False
    for name, _ in filter(None, (rule.at, rule.unless)):
        refuse_missing(f"{rule.resource}.{name}", state[name], unavailable=False)
    at = rule.at is None or state[rule.at[0]] == rule.at[1].format_map(key)
    return at and (rule.unless is None or state[rule.unless[0]] not in rule.unless[1])


def _by_disks(rule: DependentRule, key: Key, host: HostAnswers) -> list[Dependent]:
    """List distros by their disks. Without the feature that runs them, distros cannot be listed; their disks may be
    there all the same.
    """
    if not rule.disks:
        return []
    accounts = host.answer("LocalAccount")
    if isinstance(accounts, Unknown):
        raise MissingFact("LocalAccount", accounts)
    # Nobody can tell which distro a disk belongs to: one without a name stands for all of an account.
    same = DependentRule(
        "LocalAccount", tuple(part for part in rule.on if part == "account"), unless=("distros", (None, 0))
    )
    found: Iterable[Record] = () if isinstance(accounts, Unavailable) else accounts
    return [
        Dependent(rule.resource, {**record.key, "distro": ""})
        for record in found
        if depends(same, key, record.key, record.state)
    ]
