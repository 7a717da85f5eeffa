"""winhost takes a Windows GPU machine to a Linux LLM endpoint, and can give everything back."""

__version__ = "0.1.0"
