"""winhost verify: is it still so?"""

from pathlib import Path

import click

from winhost.cli.options import fleet_option, json_option
from winhost.model.errors import Exit


@click.command()
@click.argument("plan_file", metavar="PLAN", type=click.Path(path_type=Path))
@click.option("--facts", "facts_file", type=click.Path(path_type=Path), help="Compare with this facts file, offline.")
@fleet_option
@json_option
def verify(plan_file: Path, facts_file: Path | None, fleet_file: Path | None, as_json: bool) -> int:
    """Say whether what a PLAN wants is still so.

    Reads the plan's host, or --facts, and compares property by property. Changes nothing. Exit 4 on a difference.
    """
    from winhost.cli.answers import Verified
    from winhost.cli.envelope import answer
    from winhost.cli.output import say, table
    from winhost.cli.reach import read_one
    from winhost.cli.show_plan import shown
    from winhost.engine.failures import WrongHost
    from winhost.engine.planfile import read_plan
    from winhost.engine.verify import verify_plan
    from winhost.resources.host import HostFacts

    plan = read_plan(plan_file)
    facts = HostFacts(read_one(None if facts_file else plan.host, facts_file, fleet_file))
    if facts.os.machine_id != plan.machine_id:
        raise WrongHost(plan.host, plan.machine_id, facts.os.machine_id)
    checks = verify_plan(plan, facts)
    holds = all(check.holds for check in checks)
    if as_json:
        answer("verification", [Verified(plan.host, str(plan_file), holds, tuple(checks))])
    else:
        rows = (
            ("✓" if c.holds else "✗", c.title, c.property, shown(c.want), "" if c.holds else shown(c.found))
            for c in checks
        )
        table(("", "what", "property", "wanted", "found"), rows)
        say(f"{plan.host}: " + ("as planned." if holds else "not as planned. Plan again to repair it."))
    return int(Exit.SUCCESS if holds else Exit.DRIFT)
