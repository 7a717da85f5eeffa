"""A copy of a simulated machine goes its own way: what its parts hand to the host is the copy's."""

from types import FunctionType

from tests.powershell.bundles import twin
from tests.powershell.twins import machine


def test_no_part_hands_the_host_a_function_that_keeps_to_the_first_machine() -> None:
    """deepcopy copies a method with its part, and leaves a lambda as it is."""
    for name in ("server2025-role-installed", "win11-pro-1gpu"):
        copied = twin(machine(name))
        asked = (copied.prerequisites, copied.key_resolvers, copied.listing_views, copied.refusals, copied.session)
        named = (*asked, copied.changes, copied.cim_classes, copied.programs, copied.registry_writers)
        handed = [*copied.registry_keys, *(each for table in named for each in table.values())]
        assert [each for each in handed if isinstance(each, FunctionType) and each.__closure__] == []
        copied.software.registry_values["x"] = "y"
        assert sum(keys.get("x") == "y" for tell in copied.registry_keys for _, keys in tell()) == 1
