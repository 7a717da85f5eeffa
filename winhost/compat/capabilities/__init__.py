"""What targets can do, by subject. Importing this declares all rules."""

from winhost.compat.capabilities import gpu

__all__ = ["gpu"]
