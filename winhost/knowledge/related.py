"""Reasons about the same thing, found by what they have in common: nobody keeps a list of them."""

from collections.abc import Mapping

from winhost.knowledge.catalogue import CatalogueEntry

MOST = 5
# What two reasons have in common, by how surely it makes them speak of one thing.
SAME_EVIDENCE = 4  # each piece
SAME_REMEDY = 3
SAME_FACT = 3  # `dda.virtualization-off`, `wsl2.virtualization-off`
SAME_TOPIC = 1


def related(code: str, entry: CatalogueEntry, entries: Mapping[str, CatalogueEntry]) -> tuple[str, ...]:
    """Codes of `entries`, the closest first; of equally close ones those that stand nearer in the catalogue."""
    places = {name: place for place, name in enumerate(entries)}
    here = places.get(code, 0)
    bonds = {name: bond((code, entry), (name, other)) for name, other in entries.items() if name != code}
    close = [name for name, strength in bonds.items() if strength]
    return tuple(sorted(close, key=lambda name: (-bonds[name], abs(places[name] - here), name))[:MOST])


def bond(one: tuple[str, CatalogueEntry], other: tuple[str, CatalogueEntry]) -> int:
    """How much two reasons have in common, the same from both sides; 0: nothing."""
    (topic, _, fact), (other_topic, _, other_fact) = (code.partition(".") for code, _ in (one, other))
    mine, others = one[1], other[1]
    return (
        SAME_EVIDENCE * len({*mine.evidence} & {*others.evidence})
        + SAME_REMEDY * (mine.remedy is not None and mine.remedy == others.remedy)
        + SAME_FACT * (fact == other_fact)
        + SAME_TOPIC * (topic == other_topic)
    )
