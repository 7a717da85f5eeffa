"""Secrets that a simulated host gave to its accounts, and whether a text shows one of them."""

import base64
from collections.abc import Iterable

import pytest

from winhost.lab.physics.local_accounts import Account
from winhost.lab.physics.simulated_machine import Machine


def watched(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each password that an account gets from now on."""
    secrets: list[str] = []
    new, put = machine.accounts.new_local_user, machine.accounts.set_local_user

    def new_local_user(name: str, secret: str, description: str) -> Account:
        secrets.append(secret)
        return new(name, secret, description)

    def set_local_user(sid: str, secret: str) -> None:
        secrets.append(secret)
        put(sid, secret)

    monkeypatch.setattr(machine.accounts, "new_local_user", new_local_user)
    monkeypatch.setattr(machine.accounts, "set_local_user", set_local_user)
    return secrets


def shown_in(text: str, secrets: Iterable[str]) -> list[str]:
    """Return the secrets in a text, as they are or in one of the encodings of wires and files."""
    return [secret for secret in secrets if any(shape in text for shape in _shapes(secret))]


def _shapes(secret: str) -> set[str]:
    both = (secret.encode(), secret.encode("utf-16-le"))
    return {secret, *(base64.b64encode(each).decode() for each in both), *(each.hex() for each in both)}
