"""What makes a display device a card to serve with."""

from winhost.resources.host import Card

MANAGEMENT_VENDORS = ("VEN_1A03", "VEN_102B")  # ASPEED, Matrox: the screens of management controllers


def serves(card: Card) -> bool:
    """Whether it is a GPU, and not the display of a management controller."""
    return not card.gpu.key["device"].upper().startswith(MANAGEMENT_VENDORS)
