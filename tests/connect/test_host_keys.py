"""What a machine may show to be known, as it is written down."""

import pytest

from tests.errors import raises
from winhost.connect.host_keys import load_known_keys
from winhost.lab.physics.ssh_keys import public_line
from winhost.model.fleet import Login

ONE, OTHER = (public_line(bytes([number]) * 32) for number in (1, 2))


def known(written: str) -> list[str]:
    keys = load_known_keys(
        "llm-01", "192.0.2.30", Login.model_construct(address="192.0.2.30", user="root", host_key=written)
    ).keys
    return [f"{key.get_name()} {key.get_base64()}" for key in keys]


@pytest.mark.parametrize("end", ["", "\n", "\r\n", " me@desk-01\n"])
def test_a_key_is_taken_as_it_stands_in_its_file(end: str) -> None:
    assert known(ONE + end) == [ONE]
    assert known(f"{ONE}\n{OTHER}{end}") == [ONE, OTHER]


@pytest.mark.parametrize("written", ["", "\n", "ssh-ed25519", f"{ONE}\n\n{OTHER}", "ssh-ed25519 AAAA"])
def test_what_is_no_key_is_refused(written: str) -> None:
    with raises("KeyUnusable"):
        known(written)
