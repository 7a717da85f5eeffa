"""winhost plan: plan what would change."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from winhost.cli.envelope import show_results
from winhost.cli.errors import Faults, from_missing_fact, os_errors
from winhost.cli.options import HostsAndFacts, Output
from winhost.cli.output import one_file, write_file
from winhost.cli.plan.commands import PlanOptions
from winhost.cli.plan.options import AskedPlan, FleetKeys, given_keys, read_settings
from winhost.cli.plan.show import PlannedHost, show_planned, show_plans
from winhost.cli.shells import command_line
from winhost.cli.snapshots import Snapshot, any_host, check_each_once, read_each, several, watched
from winhost.cli.watch import Watch
from winhost.core.answers import Id, MissingFact
from winhost.core.dataclass import dataclass
from winhost.engine import disk_images, uploads
from winhost.engine.planning import make_plan, undecided
from winhost.model.documents import write_document
from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.facts import Facts
from winhost.model.path import path_of
from winhost.model.plan import Plan
from winhost.model.reason import Refusal
from winhost.model.units import Bytes
from winhost.paths.playbook import PathRequest
from winhost.paths.setting_values import refuse_for_several
from winhost.resources.host import HostFacts

if TYPE_CHECKING:
    from winhost.cli.plan.stack import PlannedStack
    from winhost.cluster.node import ClusterStack
    from winhost.compat.needs import Fit
    from winhost.compat.stated import Statement
    from winhost.serving.stack import Stack


def plan(hosts: HostsAndFacts, given: PlanOptions, force: bool, details: bool, output: Output) -> int:
    assumed = _stated(given.assumed, hosts)
    named_files = (*hosts.words, *map(str, hosts.facts_files))
    host = command_line(named_files) if len(named_files) == 1 else "HOST"  # as it is typed in another command
    settings = read_settings((*given.new_vm.settings, *given.settings))
    asked = AskedPlan(**{**vars(given), "settings": settings, "host": host})
    joining, at_least = _checked(asked)
    planner = Planner(asked, joining, FleetKeys(hosts.fleet_file), assumed)
    many = several(hosts)
    if many:
        refuse_for_several(asked.of_one_host(joining.options.listen if joining else None))
    path = output.path
    if path and many and not path.is_dir() and (path.suffix or path.exists()):
        raise one_file(path)
    into = Into(path, many, force) if path else None
    if into and many:
        check_each_once(hosts)

    def planned(watch: Watch) -> Iterator[tuple[str, PlannedHost | WinhostError]]:
        for read in read_each(hosts, watch, planner.named if joining else at_least):
            yield read.host, planner.planned(read, watch, into)

    results, fleet = watched(planned), hosts.fleet_file
    if many and output.shape in ("table", "wide") and not details:
        code = show_plans([*results], output.wide)
    else:
        show = partial(show_planned, details=details, wide=output.wide, fleet_file=fleet)
        code = show_results("planning", output.shape, results, show, alone=not many)
    if joining:
        joining.show_made_keys(output.shape)
    return code


def _stated(assumed: tuple[str, ...], hosts: HostsAndFacts) -> "tuple[Statement, ...]":
    """The assumptions for facts files. Raises BadParameter for a live host, which is asked instead."""
    if not assumed:
        return ()
    from winhost.cli.look.assess import parse_statements  # loads all rules, which a plan of one path must not

    stated_facts = parse_statements(assumed)
    if any_host(hosts):
        raise click.BadParameter(
            "goes with --facts or facts files: a host is asked, and is not told", param_hint="--assume"
        )
    return stated_facts


def _checked(asked: AskedPlan) -> "tuple[PlannedStack | None, frozenset[Id]]":
    """The workload to serve, and the resources that a host is asked for by name.

    All faults of the command line are told at once, before any host is asked. Raises UsageError, click's.
    """
    faults = Faults()
    path, joining = faults.of(lambda: asked.path), faults.of(lambda: _joining(asked))
    if joining:
        joining.check_with(path, faults)
    named = faults.of(lambda: asked.request(path).playbook.named) if path else None
    faults.refuse()
    return joining, named or frozenset()


def _joining(asked: AskedPlan) -> "PlannedStack | None":
    """The workload to serve; None if none is named. Raises UsageError for options that need one."""
    cluster = asked.cluster
    if options := asked.stack.meant():
        from winhost.cli.plan.stack import PlannedStack  # loads all that serves, which other plans must not

        return PlannedStack(options, cluster)
    if cluster.said:
        raise click.UsageError(f"--{cluster.said[0].replace('_', '-')} is for a workload: name it with --workload")
    return None


@dataclass(frozen=True)
class Planner:
    """Plans hosts by the same options. joining: the workload to serve, if any; assumed: statements about facts."""

    asked: AskedPlan
    joining: "PlannedStack | None"
    keys: FleetKeys
    assumed: "tuple[Statement, ...]" = ()

    def named(self, facts: Facts) -> frozenset[Id]:
        """The resources that a plan needs and that a host lists only when they are named."""
        known = HostFacts(facts)
        return self._joined(known, self._asked_of(known)[0])[0].playbook.named

    def planned(self, read: Snapshot, watch: Watch, into: "Into | None" = None) -> PlannedHost | WinhostError:
        """The plan of one host, or the error that prevents it. into: where to write it."""
        try:
            facts = self._known(read)
            plain, best = self._asked_of(facts)
            request, served = self._joined(facts, plain)
            made = make_plan(facts, request)
            uncompared = self.keys.check(made.host, given_keys(request))

            def tell(doing: str, done: Bytes, whole: Bytes) -> None:
                watch(disk_images.told(made.host, doing, done, whole))

            if disk_images.is_open(request):  # to get an image takes minutes: what refuses the plan is told before
                from winhost.cli.plan.new_vm_image import with_image_of  # loads all that finds images

                request = with_image_of(self.asked.pinned(plain, tell), request)
                made = make_plan(facts, request)
            made = replace(
                made,
                notes=(*made.notes, *uncompared, *(served.notes if served else ())),
                made_at=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            if best:
                from winhost.engine.choosing import check_unasked  # loads the rules of all paths

                check_unasked(facts, made, best)
            uploads.check(made.steps, disk_images.found(Path(), request, tell))
            file = str(into.write(made)) if into else None
        except WinhostError as error:
            return error
        except MissingFact as missing:
            return from_missing_fact(missing)
        return PlannedHost(made.host, made.request.path, made.variant, best.verdict if best else None, file, made)

    def _known(self, read: Snapshot) -> HostFacts:
        named = command_line((str(read.file),)) if read.file else None  # no fleet file may know its host
        if not self.assumed:
            return HostFacts(read.known, named=named)
        from winhost.compat.stated import stated  # loads all rules

        return HostFacts(stated(read.known, self.assumed), named=named)

    def _asked_of(self, facts: HostFacts) -> "tuple[PathRequest, Fit | None]":
        path, best = self.asked.path, None
        if path is None:
            from winhost.engine.choosing import recommended  # loads the rules of all paths

            best = recommended(facts)
            path = path_of(best.variant)
        return self.keys.give(facts.host, self.asked.request(path), serves=self.joining is not None), best

    def _joined(self, facts: HostFacts, plain: PathRequest) -> "tuple[PathRequest, Stack | ClusterStack | None]":
        if self.joining is None:
            return plain, None
        try:
            return self.joining.joined(facts, plain)
        except Refusal as refusal:
            raise undecided(facts, plain, refusal) from refusal


@dataclass(frozen=True)
class Into:
    """The destination of plans: a file; or a folder, for several hosts or if one is named, such as `plans/`."""

    path: Path
    many: bool
    force: bool

    def write(self, made: Plan) -> Path:
        """Raises WinhostError: OtherKind, UnusablePlace, SystemFault, NoFileName."""
        file = self.path
        if self.many or self.path.is_dir():
            from winhost.model.fleet import host_name  # loads the models of fleet.yaml

            try:
                file = self.path / f"{host_name(made.host)}.json"
            except ValueError:  # facts may have any host name, even `../../x`
                raise UsageError(
                    "NoFileName",
                    what=f"no file can be named after the host '{visible(made.host)}'",
                    hint="Plan it alone and name the file: winhost plan FACTS -o plan.json",
                    host=made.host,
                ) from None
        with os_errors():
            if self.many:
                self.path.mkdir(parents=True, exist_ok=True)
            write_file(file, write_document(made), "plan", self.force)
        return file
