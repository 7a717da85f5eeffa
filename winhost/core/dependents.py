"""Find the dependents of a resource: instances that need it to work, or to be undone themselves. They are found in the
host's answers, whichever run made them.
"""

from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress

from .answers import HostAnswers, Id, Json, Key, MissingFact, Record, Unavailable, Unknown, identity, refuse_missing
from .changes import Dependent
from .rules import DependentRule


def dependents_of(
    resource: str, key: Key, host: HostAnswers, *, has_baseline: bool = True
) -> dict[Id, tuple[DependentRule, Dependent]]:
    """Return dependents by identity, each with the first rule that applies to it. Raises MissingFact. has_baseline: the
    run recorded dependents before; without that, rules that count only newer dependents may be unreadable.
    """
    found: dict[Id, tuple[DependentRule, Dependent]] = {}
    for rule in host.rules[resource].dependents:
        with nullcontext() if has_baseline or rule.since is None else suppress(MissingFact):
            for user in dependents_by_rule(rule, key, host):
                found.setdefault(identity(user.resource, user.key), (rule, user))
    return found


def present_dependents(resource: str, key: Key, host: HostAnswers) -> list[Dependent]:
    """List the dependents for comparison with later ones. Raises MissingFact, also if some cannot be read yet."""
    for rule in host.rules[resource].dependents:
        found = host.answer(rule.resource)
        if rule.since is not None and isinstance(found, Unavailable):
            raise MissingFact(rule.resource, found)
    return [user for _, user in dependents_of(resource, key, host).values()]


def dependents_by_rule(rule: DependentRule, key: Key, host: HostAnswers) -> list[Dependent]:
    """List the dependents of the instance with this key by one rule. Raises MissingFact."""
    found = host.answer(rule.resource)
    if isinstance(found, Unknown):
        raise MissingFact(rule.resource, found)
    if isinstance(found, Unavailable):
        return _distros_by_disks(rule, key, host)
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


def _distros_by_disks(rule: DependentRule, key: Key, host: HostAnswers) -> list[Dependent]:
    """List distros by their disks. Without the Windows feature for WSL, distros cannot be listed, but their disks may
    exist.
    """
    if not rule.disks:
        return []
    accounts = host.answer("LocalAccount")
    if isinstance(accounts, Unknown):
        raise MissingFact("LocalAccount", accounts)
    # The distro of a disk is not known: one Dependent without a name stands for all distros of an account.
    account_rule = DependentRule(
        "LocalAccount", tuple(part for part in rule.on if part == "account"), unless=("distros", (None, 0))
    )
    accounts_with_disks: Iterable[Record] = () if isinstance(accounts, Unavailable) else accounts
    return [
        Dependent(rule.resource, {**record.key, "distro": ""})
        for record in accounts_with_disks
        if depends(account_rule, key, record.key, record.state)
    ]
