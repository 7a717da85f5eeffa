"""Reads, checks and changes WSL's files: .wslconfig of an account, and /etc/wsl.conf of a distro."""
