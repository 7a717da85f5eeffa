"""winhost verify: check whether hosts are still as planned."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from winhost.cli.envelope import show_results
from winhost.cli.named_files import contains, expand_files, refuse_repeated_hosts
from winhost.cli.options import HostsAndFacts, Output
from winhost.cli.output import say
from winhost.cli.snapshots import Snapshot, read_snapshots, with_progress
from winhost.cli.tables import format_full_value, format_pair, format_value, table
from winhost.core.answers import Id
from winhost.core.checks import Check
from winhost.core.dataclass import dataclass
from winhost.engine.failures import wrong_host_error
from winhost.engine.planfile import read_plan
from winhost.engine.planning import CheckedPlan
from winhost.engine.verify import verify_plan
from winhost.model.errors import Exit, UsageError, WinhostError, visible
from winhost.model.facts import Facts
from winhost.model.plan import Plan
from winhost.resources.host import HostFacts


@dataclass(frozen=True)
class Verified:
    """The result for a host. holds: the host is as the plan left it; plan: the plan's file."""

    host: str
    plan: str
    holds: bool
    checks: tuple[Check, ...]


def verify(hosts: HostsAndFacts, details: bool, output: Output) -> int:
    plans, facts = _split_plans_and_facts(hosts)

    def results() -> Iterator[tuple[str, Verified | WinhostError]]:
        for file, checked, snapshot in _pair_with_facts(plans, replace(hosts, sources=(), facts_files=tuple(facts))):
            try:
                host_facts, plan = HostFacts(snapshot.known), checked.plan
                if host_facts.machine_id != plan.machine_id:
                    raise wrong_host_error(plan.host, plan.machine_id, host_facts.machine_id)
                checks = tuple(verify_plan(checked, host_facts))
            except WinhostError as error:
                yield checked.host, error
                continue
            verified = Verified(plan.host, str(file), all(check.holds for check in checks), checks)
            if verified.holds and not facts:
                _remember_versions(verified, hosts.fleet_file)
            yield checked.host, verified

    return show_results(
        "verification",
        output.shape,
        results(),
        lambda verified: _show(verified, details, output.wide),
        code=lambda verified: int(Exit.SUCCESS if verified.holds else Exit.DRIFT),
    )


def _remember_versions(verified: Verified, fleet_file: Path | None) -> None:
    """Record the versions with which each model answered, so that `winhost status` can later report what changed."""
    if any(each.resource == "ServingReady" for each in verified.checks):
        from winhost.cli.named_hosts import resolve_hosts  # loads the models of fleet.yaml, which facts files must not
        from winhost.cli.serve.target import save_verified_versions  # loads all that speaks over networks

        (host,) = resolve_hosts([verified.host], fleet_file)
        save_verified_versions(host)


def _split_plans_and_facts(hosts: HostsAndFacts) -> tuple[list[Path], list[Path]]:
    """Return the named files as plans and as facts."""
    paths = [Path(word) for word in hosts.sources]
    facts = [path for path in paths if contains(path, Facts) and not contains(path, Plan)]
    plans = expand_files([path for path in paths if path not in facts], Plan)
    if not plans:
        raise UsageError(
            "NoPlan",
            what=f"no plan is named, only facts: {visible(', '.join(map(str, facts)))}",
            hint="Name the plan first: winhost verify PLAN FACTS",
        )
    files = expand_files([*hosts.facts_files, *facts], Facts)
    refuse_repeated_hosts(files)
    return plans, files


def _pair_with_facts(plans: Sequence[Path], facts: HostsAndFacts) -> Iterator[tuple[Path, CheckedPlan, Snapshot]]:
    """Yield each plan with the facts of its host. A single plan is paired with a single facts file, whatever the name
    of its host.
    """
    read_plans = [(file, read_plan(file)) for file in plans]
    snapshots = _read_snapshots(facts) if facts.facts_files else {}
    if len(read_plans) == len(snapshots) == 1:
        (file, checked), (snapshot,) = read_plans[0], snapshots.values()
        yield file, checked, snapshot
        return
    hosts = tuple(dict.fromkeys(host for _, checked in read_plans if (host := checked.host) not in snapshots))
    if facts.facts_files and hosts:
        for host in hosts:
            error = UsageError(
                "NoFactsOf",
                what=f"none of the facts that were named are of {visible(host)}",
                hint="Name facts of each plan's host, or none: then the hosts are read.",
                host=host,
            )
            snapshots[host] = Snapshot(host, error=error)
    elif hosts:
        named = frozenset(id_ for _, checked in read_plans for id_ in checked.named)
        snapshots = _read_snapshots(replace(facts, sources=hosts), named)
    for file, checked in read_plans:
        yield file, checked, snapshots[checked.host]


def _read_snapshots(hosts: HostsAndFacts, named: frozenset[Id] = frozenset()) -> dict[str, Snapshot]:
    snapshots = with_progress(lambda watch: read_snapshots(hosts, watch, named))
    return {snapshot.host: snapshot for snapshot in snapshots}


def _show(verified: Verified, details: bool, wide: bool) -> None:
    """Show what differs; with details or wide, everything that was compared."""
    rows = []
    for check in verified.checks:
        if details or wide or not check.holds:
            desired, found_value = format_pair(check.desired, check.found, format_full_value if wide else format_value)
            mark = "✓" if check.holds else "✗"
            rows.append((mark, check.title, check.property, desired, "" if check.holds and not wide else found_value))
    if rows:
        table(("", "what", "property", "planned", "found"), rows)
    count = f"{len(verified.checks)} {'property' if len(verified.checks) == 1 else 'properties'}"
    if verified.holds:
        say(f"{verified.host}: as planned ({count} compared).")
    else:
        differing = sum(not check.holds for check in verified.checks)
        say(f"{verified.host}: not as planned: {differing} of {count} differ. Plan again to repair it.")
