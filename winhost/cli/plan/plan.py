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
from winhost.cli.output import file_for_several_hosts, write_file
from winhost.cli.plan.commands import PlanOptions
from winhost.cli.plan.options import FleetKeys, RequestBuilder, given_keys, read_settings
from winhost.cli.plan.show import PlannedHost, show_planned, show_plans
from winhost.cli.shells import command_line
from winhost.cli.snapshots import (
    Snapshot,
    names_live_host,
    names_several_hosts,
    read_snapshots,
    refuse_repeated_sources,
    with_progress,
)
from winhost.cli.watch import Watch
from winhost.core.answers import Id, MissingFact
from winhost.core.dataclass import dataclass
from winhost.engine import disk_images, uploads
from winhost.engine.planning import impossible_value_error, make_plan
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


def plan(hosts: HostsAndFacts, options: PlanOptions, force: bool, details: bool, output: Output) -> int:
    assumed = _parse_assumptions(options.assumed, hosts)
    named_files = (*hosts.sources, *map(str, hosts.facts_files))
    host = command_line(named_files) if len(named_files) == 1 else "HOST"  # as it is typed in another command
    settings = read_settings((*options.new_vm.settings, *options.settings))
    builder = RequestBuilder(**{**vars(options), "settings": settings, "host": host})
    stack, named_resources = _check_options(builder)
    planner = Planner(builder, stack, FleetKeys(hosts.fleet_file), assumed)
    for_several = names_several_hosts(hosts)
    if for_several:
        refuse_for_several(builder.single_host_values(stack.options.listen if stack else None))
    path = output.path
    if path and for_several and not path.is_dir() and (path.suffix or path.exists()):
        raise file_for_several_hosts(path)
    destination = PlanDestination(path, for_several, force) if path else None
    if destination and for_several:
        refuse_repeated_sources(hosts)

    def plan_hosts(watch: Watch) -> Iterator[tuple[str, PlannedHost | WinhostError]]:
        for snapshot in read_snapshots(hosts, watch, planner.named_resources if stack else named_resources):
            yield snapshot.host, planner.plan_host(snapshot, watch, destination)

    results = with_progress(plan_hosts)
    if for_several and output.shape in ("table", "wide") and not details:
        code = show_plans([*results], output.wide)
    else:
        show = partial(show_planned, details=details, wide=output.wide, fleet_file=hosts.fleet_file)
        code = show_results("planning", output.shape, results, show, single=not for_several)
    if stack:
        stack.show_made_keys(output.shape)
    return code


def _parse_assumptions(assumed: tuple[str, ...], hosts: HostsAndFacts) -> "tuple[Statement, ...]":
    """Parse the assumptions about facts files. Raises BadParameter for a live host, which is read instead."""
    if not assumed:
        return ()
    from winhost.cli.look.assess import parse_assumptions  # loads all rules, which a plan of one path must not

    parsed = parse_assumptions(assumed)
    if names_live_host(hosts):
        raise click.BadParameter(
            "is for --facts or facts files: the facts of a host are read from it", param_hint="--assume"
        )
    return parsed


def _check_options(builder: RequestBuilder) -> "tuple[PlannedStack | None, frozenset[Id]]":
    """Check the command line before any host is read, and report all its faults at once.

    Return the workload to serve, and the resources that a host lists only when they are named. Raises UsageError,
    click's.
    """
    faults = Faults()
    path, stack = faults.collect(lambda: builder.path), faults.collect(lambda: _planned_stack(builder))
    if stack:
        stack.check_with(path, faults)
    named = faults.collect(lambda: builder.request(path).playbook.named) if path else None
    faults.refuse()
    return stack, named or frozenset()


def _planned_stack(builder: RequestBuilder) -> "PlannedStack | None":
    """Return the workload to serve; None if none is named. Raises UsageError for options that need one."""
    cluster = builder.cluster
    if options := builder.stack.with_workload():
        from winhost.cli.plan.stack import PlannedStack  # loads all that serves, which other plans must not

        return PlannedStack(options, cluster)
    if names := cluster.changed_fields:
        raise click.UsageError(f"--{names[0].replace('_', '-')} is for a workload: name it with --workload")
    return None


@dataclass(frozen=True)
class Planner:
    """Plans hosts by the same options. stack: the workload to serve, if any; assumed: statements about facts."""

    builder: RequestBuilder
    stack: "PlannedStack | None"
    keys: FleetKeys
    assumed: "tuple[Statement, ...]" = ()

    def named_resources(self, facts: Facts) -> frozenset[Id]:
        """Return the resources that a plan needs and that a host lists only when they are named."""
        host_facts = HostFacts(facts)
        request, _ = self._add_stack(host_facts, self._path_request(host_facts)[0])
        return request.playbook.named

    def plan_host(
        self, snapshot: Snapshot, watch: Watch, destination: "PlanDestination | None" = None
    ) -> PlannedHost | WinhostError:
        """Return the plan of one host, or the error that prevents it. destination: where to write it."""
        try:
            facts = self._host_facts(snapshot)
            path_request, recommendation = self._path_request(facts)
            request, stack = self._add_stack(facts, path_request)
            plan = make_plan(facts, request)
            key_notes = self.keys.check(plan.host, given_keys(request))

            def report(doing: str, done: Bytes, total: Bytes) -> None:
                watch(disk_images.disk_progress(plan.host, doing, done, total))

            if disk_images.has_unpinned_image(
                request
            ):  # getting an image takes minutes, so a refused plan has ended above
                from winhost.cli.plan.new_vm_image import copy_pinned_image  # loads all that finds images

                request = copy_pinned_image(self.builder.pin_image(path_request, report), request)
                plan = make_plan(facts, request)
            plan = replace(
                plan,
                notes=(*plan.notes, *key_notes, *(stack.notes if stack else ())),
                made_at=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            if recommendation:
                from winhost.engine.choosing import check_default_plan  # loads the rules of all paths

                check_default_plan(facts, plan, recommendation)
            uploads.check(plan.steps, disk_images.file_finder(Path(), request, report))
            file = str(destination.write(plan)) if destination else None
        except WinhostError as error:
            return error
        except MissingFact as missing:
            return from_missing_fact(missing)
        verdict = recommendation.verdict if recommendation else None
        return PlannedHost(plan.host, plan.request.path, plan.variant, verdict, file, plan)

    def _host_facts(self, snapshot: Snapshot) -> HostFacts:
        # A command that is printed names the facts file: the host may be in no fleet file.
        named = command_line((str(snapshot.file),)) if snapshot.file else None
        if not self.assumed:
            return HostFacts(snapshot.known, named=named)
        from winhost.compat.stated import apply_statements  # loads all rules

        return HostFacts(apply_statements(snapshot.known, self.assumed), named=named)

    def _path_request(self, facts: HostFacts) -> "tuple[PathRequest, Fit | None]":
        """Return the request to the path, and the recommendation by which the path was chosen, if it was not named."""
        path, recommendation = self.builder.path, None
        if path is None:
            from winhost.engine.choosing import recommend_path  # loads the rules of all paths

            recommendation = recommend_path(facts)
            path = path_of(recommendation.variant)
        request = self.keys.add_key(facts.host, self.builder.request(path), serves=self.stack is not None)
        return request, recommendation

    def _add_stack(self, facts: HostFacts, request: PathRequest) -> "tuple[PathRequest, Stack | ClusterStack | None]":
        if self.stack is None:
            return request, None
        try:
            return self.stack.add_to_request(facts, request)
        except Refusal as refusal:
            raise impossible_value_error(facts, request, refusal) from refusal


@dataclass(frozen=True)
class PlanDestination:
    """The destination of plans: a file; or a folder, for several hosts or if one is named, such as `plans/`."""

    path: Path
    for_several: bool
    force: bool

    def write(self, plan: Plan) -> Path:
        """Write a plan and return its file. Raises WinhostError: OtherKind, UnusablePlace, SystemFault, NoFileName."""
        file = self.path
        if self.for_several or self.path.is_dir():
            from winhost.model.fleet import host_name  # loads the models of fleet.yaml

            try:
                file = self.path / f"{host_name(plan.host)}.json"
            except ValueError:  # facts may have any host name, even `../../x`
                raise UsageError(
                    "NoFileName",
                    what=f"no file can be named after the host '{visible(plan.host)}'",
                    hint="Plan it alone and name the file: winhost plan FACTS -o plan.json",
                    host=plan.host,
                ) from None
        with os_errors():
            if self.for_several:
                self.path.mkdir(parents=True, exist_ok=True)
            write_file(file, write_document(plan), "plan", self.force)
        return file
