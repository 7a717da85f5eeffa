"""The address that a Linux of winhost's own gets: what cannot work is refused with the settings."""

from typing import Any

import pytest
from pydantic import ValidationError

from tests.rows import each_row
from winhost.paths.setting_values import OwnAddress


@each_row(
    ("given", "says"),
    [
        ({"gateway": "192.0.2.1"}, "DHCP tells both"),
        ({"address": "192.0.2.10/24", "gateway": "198.51.100.1"}, "is not in the network of 192.0.2.10/24"),
        ({"address": "192.0.2.10/24", "gateway": "192.0.2.10"}, "is the own address of this Linux"),
        ({"address": "192.0.2.10/24", "gateway": "192.0.2.255"}, "stands for all of 192.0.2.0/24"),
        ({"address": "192.0.2.10/24", "gateway": "192.0.2.0"}, "stands for all of 192.0.2.0/24"),
    ],
)
def test_a_gateway_that_cannot_work_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        OwnAddress.model_validate(given)


def test_a_gateway_is_another_address_of_the_same_network() -> None:
    seed = OwnAddress.model_validate({"address": "192.0.2.10/24", "gateway": "192.0.2.1"}).guest_address
    assert seed is not None
    assert (str(seed.interface), str(seed.gateway)) == ("192.0.2.10/24", "192.0.2.1")
