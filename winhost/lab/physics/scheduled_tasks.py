"""Scheduled tasks of a simulated Windows, in the folder `winhost`: as winhost registers them, and how they end."""

import re

from winhost.core.dataclass import dataclass
from winhost.lab.physics.windows_files import FOLDER

POWERSHELL = "C:\\Windows\\System32\\WindowsPowerShell\\v1.0\\powershell.exe"

# Results of tasks: not run yet, running; the logon type is not granted, the password is another one, the account is
# disabled, there is no such account.
NOT_RUN, RUNNING = 267011, 267009
NOT_GRANTED, WRONG_PASSWORD, DISABLED, NOBODY = 2147943785, 2147943726, 2147943731, 2147943732


@dataclass
class Task:
    """A task in the folder `winhost`. secret: the password that it was registered with, None for none."""

    name: str
    account: str
    program: str
    arguments: str
    at_startup: bool
    logon: str
    secret: str | None
    enabled: bool = True
    running: bool = False
    result: int = NOT_RUN

    @property
    def state(self) -> str:
        if not self.enabled:
            return "Disabled"
        return "Running" if self.running else "Ready"

    @property
    def distro(self) -> str | None:
        found = re.match(r"-d ([A-Za-z0-9._-]+) ", self.arguments)
        return found[1] if found else None


def jobs_task(account: str, logon: str, secret: str | None) -> Task:
    """The task for jobs that winhost registers."""
    arguments = f'-NoProfile -NonInteractive -ExecutionPolicy Bypass -File "{script_path(account)}"'
    return Task(f"jobs-{account}", account, POWERSHELL, arguments, at_startup=False, logon=logon, secret=secret)


def keep_alive_task(account: str, logon: str, secret: str | None, program: str, distro: str) -> Task:
    """The task that winhost registers to keep a distro running."""
    arguments = f'-d {distro} -u root --cd / -e /bin/sh -c "exec sleep infinity"'
    return Task(f"keep-alive-{account}", account, program, arguments, at_startup=True, logon=logon, secret=secret)


def script_path(account: str) -> str:
    """The path of the script that the task for jobs runs."""
    return f"{job_folder(account)}\\job.ps1"


def answer_path(account: str, number: str) -> str:
    """The path of the answer to a job."""
    return f"{job_folder(account)}\\answers\\answer-{number}.json"


def job_folder(account: str) -> str:
    """The folder of an account's jobs."""
    return f"{FOLDER}\\jobs\\{account}"
