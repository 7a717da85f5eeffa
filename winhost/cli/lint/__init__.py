"""Check files for WSL, vLLM, containers and Ubuntu's installer."""
