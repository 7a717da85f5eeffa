"""A hub for plans that serve a model."""

from collections.abc import Iterator

import pytest

from tests.hub.stand_in_hub import StandInHub


@pytest.fixture
def hub() -> Iterator[StandInHub]:
    """A hub with the model of the plans that serve one."""
    from tests.serving.one_plan import hub_of_model  # which most tests do without

    with hub_of_model() as found:
        yield found
