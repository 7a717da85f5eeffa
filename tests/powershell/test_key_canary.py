"""Secrets that unlock a volume stay on its host: no answer of a script contains them."""

import json

import pytest

from tests.powershell.twins import machine, scripts
from tests.resources.test_scripts import said
from tests.resources.test_scripts import scripts as texts
from winhost.lab.hostfile import host_files
from winhost.resources.registry import WINDOWS

PASSWORD = "424242-131313-242424-353535-464646-575757-686868-797979"
SEES = {"key_escrow/script.ps1"}  # compares its last six digits
WORDS = {"recoverypassword", "keyfilename", "externalkey", "keypackage", "numericalpassword"}


def test_one_script_alone_touches_what_opens_a_volume() -> None:
    touching = {
        script.name for script in texts() for node in script.nodes("member_name") if said(node).lower() in WORDS
    }
    assert touching == SEES


@pytest.mark.parametrize("host", ["win11-pro-1gpu", "win11-dual-boot-bitlocker", "win11-rst-bitlocker"])
def test_no_answer_holds_a_recovery_password(host: str) -> None:
    assert host in {path.stem for path in host_files()}
    asked = [{"resource": name, "verb": "get"} for name in WINDOWS]
    escrow = {"resource": "KeyEscrow", "verb": "set", "key": {"volume": "C:"}}
    asked += [
        {**escrow, "desired": {"proof": "typed", "last_group": "env:A"}, "how": {"secret": secret}}
        for secret in ("797979", "000000")
    ]
    here = machine(host, found={"disks": {"recovery_password": PASSWORD}})
    with scripts() as engine:
        engine.use(here)
        seen = engine.run("@(Get-BitLockerVolume)[0].KeyProtector.RecoveryPassword -join ''")
        told = json.dumps(engine.answers(here, *asked))
    if host != "win11-rst-bitlocker":
        assert seen == [PASSWORD], "then this would prove nothing"
    assert not [group for group in PASSWORD.split("-") if group in told]
