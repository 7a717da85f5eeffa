"""A plan says how the disk of a new VM is uploaded, and how long that takes."""

from pathlib import Path

import pytest

from tests.engine.guest_world import with_image
from winhost.cli.plan.show import PlannedHost, show_planned

OVER_THE_WIRE = "over the connection to the host. That takes 6 to 32 min; --upload http, sftp and smb are faster."


@pytest.mark.parametrize(
    ("upload", "megabytes", "said"),
    [
        (None, 1900, OVER_THE_WIRE),
        ("wire", 1900, OVER_THE_WIRE),
        ("wire", 1, "over the connection to the host."),
        ("http", 1900, "the host fetches it from the computer that runs winhost."),
        ("smb", 1900, "written to the administrative share of the host."),
        ("sftp", 1900, "written by SFTP, through the OpenSSH server of the host."),
    ],
)
def test_a_plan_says_how_long_powershell_remoting_takes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    upload: str | None,
    megabytes: int,
    said: str,
) -> None:
    here, _ = with_image(tmp_path, monkeypatch)
    image = here.settings["image"]
    pinned = {**image["pinned"], "disk_bytes": megabytes * 1_000_000}
    here.settings = {**here.settings, "image": {**image, "pinned": pinned}, **({"upload": upload} if upload else {})}
    plan = here.plan()
    show_planned(PlannedHost(plan.host, "dda", None, None, None, plan), details=False, wide=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{megabytes:,} MB are uploaded: {said} " in f"{shown} "
    assert ("That takes" in shown) is (said is OVER_THE_WIRE)
