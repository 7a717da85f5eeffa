"""winhost verify: check whether hosts are still as planned."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from winhost.cli.envelope import show_results
from winhost.cli.named_files import check_hosts, files_of, holds
from winhost.cli.options import HostsAndFacts, Output
from winhost.cli.output import say
from winhost.cli.snapshots import Snapshot, read_each, watched
from winhost.cli.tables import format_full_value, format_two, format_value, table
from winhost.core.answers import Id
from winhost.core.checks import Check
from winhost.core.dataclass import dataclass
from winhost.engine.failures import wrong_host
from winhost.engine.planfile import read_plan
from winhost.engine.planning import CheckedPlan
from winhost.engine.verify import verify_plan
from winhost.model.errors import Exit, UsageError, WinhostError, visible
from winhost.model.facts import Facts
from winhost.model.plan import Plan
from winhost.resources.host import HostFacts


@dataclass(frozen=True)
class Verified:
    """The result for a host. holds: everything that the plan wants still holds; plan: its file."""

    host: str
    plan: str
    holds: bool
    checks: tuple[Check, ...]


def verify(hosts: HostsAndFacts, details: bool, output: Output) -> int:
    plans, facts = _sorted(hosts)

    def results() -> Iterator[tuple[str, Verified | WinhostError]]:
        for file, checked, read in _paired(plans, replace(hosts, words=(), facts_files=tuple(facts))):
            try:
                known, plan = HostFacts(read.known), checked.plan
                if known.machine_id != plan.machine_id:
                    raise wrong_host(plan.host, plan.machine_id, known.machine_id)
                checks = tuple(verify_plan(checked, known))
            except WinhostError as error:
                yield checked.host, error
                continue
            found = Verified(plan.host, str(file), all(check.holds for check in checks), checks)
            if found.holds and not facts:
                _remember(found, hosts.fleet_file)
            yield checked.host, found

    return show_results(
        "verification",
        output.shape,
        results(),
        lambda found: _show(found, details, output.wide),
        code=lambda found: int(Exit.SUCCESS if found.holds else Exit.DRIFT),
    )


def _remember(found: Verified, fleet_file: Path | None) -> None:
    """Remember the versions with which each model answered, so that `winhost status` can tell later what changed."""
    if any(each.resource == "ServingReady" for each in found.checks):
        from winhost.cli.named_hosts import hosts_named  # loads the models of fleet.yaml, which facts files must not
        from winhost.cli.serve.target import save_verified_versions  # loads all that speaks over networks

        (host,) = hosts_named([found.host], fleet_file)
        save_verified_versions(host)


def _sorted(hosts: HostsAndFacts) -> tuple[list[Path], list[Path]]:
    """Sort the named files into plans and facts."""
    paths = [Path(word) for word in hosts.words]
    facts = [path for path in paths if holds(path, Facts) and not holds(path, Plan)]
    plans = files_of([path for path in paths if path not in facts], Plan)
    if not plans:
        raise UsageError(
            "NoPlan",
            what=f"no plan is named, only facts: {visible(', '.join(map(str, facts)))}",
            hint="Name the plan first: winhost verify PLAN FACTS",
        )
    files = files_of([*hosts.facts_files, *facts], Facts)
    check_hosts(files)
    return plans, files


def _paired(plans: Sequence[Path], facts: HostsAndFacts) -> Iterator[tuple[Path, CheckedPlan, Snapshot]]:
    """Each plan with the facts of its host: those with its name, or the only facts for the only plan."""
    read_plans = [(file, read_plan(file)) for file in plans]
    known = _read(facts) if facts.facts_files else {}
    if len(read_plans) == len(known) == 1:
        (file, checked), (read,) = read_plans[0], known.values()
        yield file, checked, read
        return
    hosts = tuple(dict.fromkeys(host for _, checked in read_plans if (host := checked.host) not in known))
    if facts.facts_files and hosts:
        for host in hosts:
            error = UsageError(
                "NoFactsOf",
                what=f"none of the facts that were named are of {visible(host)}",
                hint="Name facts of each plan's host, or none: then the hosts are read.",
                host=host,
            )
            known[host] = Snapshot(host, error=error)
    elif hosts:
        named = frozenset(id_ for _, checked in read_plans for id_ in checked.named)
        known = _read(replace(facts, words=hosts), named)
    for file, checked in read_plans:
        yield file, checked, known[checked.host]


def _read(hosts: HostsAndFacts, named: frozenset[Id] = frozenset()) -> dict[str, Snapshot]:
    reads = watched(lambda watch: read_each(hosts, watch, named))
    return {read.host: read for read in reads}


def _show(found: Verified, details: bool, wide: bool) -> None:
    """Show what differs; with details or wide, everything that was compared."""
    rows = []
    for check in found.checks:
        if details or wide or not check.holds:
            desired, there = format_two(check.desired, check.found, format_full_value if wide else format_value)
            mark = "✓" if check.holds else "✗"
            rows.append((mark, check.title, check.property, desired, "" if check.holds and not wide else there))
    if rows:
        table(("", "what", "property", "planned", "found"), rows)
    compared = f"{len(found.checks)} {'property' if len(found.checks) == 1 else 'properties'}"
    if found.holds:
        say(f"{found.host}: as planned ({compared} compared).")
    else:
        wrong = sum(not check.holds for check in found.checks)
        say(f"{found.host}: not as planned: {wrong} of {compared} differ. Plan again to repair it.")
