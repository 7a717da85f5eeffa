"""winhost models refresh: the catalogue of models as the hub has them now."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import yaml

from winhost.cli.envelope import show_results
from winhost.cli.errors import from_os_error, secret_reference
from winhost.cli.output import say
from winhost.cli.outputs import Output
from winhost.cli.tables import table
from winhost.cli.watch import watching
from winhost.engine.progress import ProgressEvent
from winhost.hub.catalogue import SCHEMA, refreshed_file
from winhost.hub.refreshed import Refreshed, refreshed
from winhost.model.catalogue_file import load_catalogue
from winhost.model.files import write_whole


def refresh(hub: str, token: str | None, output: Output) -> int:
    reference = secret_reference(token, "'--token'")
    secret = reference.resolve() if reference else None
    file, today = refreshed_file(), f"{datetime.now(UTC):%Y-%m-%d}"
    with watching() as watch, watch.at("the catalogue", "asking the hub"):
        document, outcomes = refreshed(
            hub.rstrip("/"),
            secret,
            today,
            _earlier(file),
            lambda model: watch(ProgressEvent("the catalogue", "preparing", model)),
        )
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(file, [yaml.safe_dump(document, sort_keys=False, width=120)])
    except OSError as error:
        raise from_os_error(error) from error
    show_results("models-refreshed", output.shape, ((each.model, each) for each in outcomes), lambda _: None)
    if output.shape == "table":
        _show_refreshed(outcomes, file)
    return 0


def _earlier(file: Path) -> dict[str, object] | None:
    """The result of an earlier refresh; a file that cannot be used is overwritten."""
    try:
        document = load_catalogue(file)
    except Exception:  # noqa: BLE001 - it is not there, or no YAML
        return None
    return document if isinstance(document, dict) and document.get("schema") == SCHEMA else None


def _show_refreshed(outcomes: Sequence[Refreshed], file: Path) -> None:
    changed, kept = [each for each in outcomes if each.changed], [each for each in outcomes if each.kept]
    if changed:
        table(("model", "not as it was"), ((each.model, ", ".join(each.changed)) for each in changed))
    for each in kept:
        say(f"Kept as it was: {each.kept}", hang=2)
    say(f"{len(outcomes) - len(kept)} of {len(outcomes)} repositories asked; the catalogue is now {file}")
