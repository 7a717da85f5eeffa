"""The files that a run sends to its host: where each is on this computer, and by which way it goes."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from winhost.core.steps import Step
from winhost.engine import disk_images, uploads
from winhost.engine.run_context import RunContext
from winhost.model.errors import UsageError
from winhost.paths.playbook import PathRequest
from winhost.resources.base import Attachment


class RunFiles:
    """folder: beside which they lie; request: what is asked for, parsed no earlier than it is needed."""

    def __init__(self, context: RunContext, folder: Path, request: Callable[[], PathRequest]) -> None:
        self._context = context
        self._folder = folder
        self._request = request

    def find(self, desired: Attachment) -> Path:
        """The path of an attachment. Raises UploadInterrupted, and what `disk_images.made_disk` raises."""
        return disk_images.found(self._folder, self._request(), self._tell_of_disk)(desired)

    def check(self, steps: Iterable[Step]) -> None:
        """Check that the files of these steps exist, and can be sent as the request says. Raises UsageError (NotBeside,
        NoSftp).
        """
        steps = tuple(steps)
        uploads.check(steps, self.find)
        machine = self._context.machine
        if self._upload == "sftp" and machine and machine.sftp is None and any(map(uploads.attachment_of, steps)):
            raise UsageError(
                "NoSftp",
                what=f"fleet.yaml does not say how the OpenSSH server of {machine.name} is entered",
                meaning="The plan was made with --upload sftp, and nothing was sent.",
                hint=f"hosts.{machine.name}.sftp: {{}} logs on as for transport; or plan with another --upload",
            )

    def offer(self) -> uploads.Offer | None:
        """The server for a request in which the host downloads files from this computer."""
        machine = self._context.machine
        if machine is None or self._upload != "http":
            return None
        from winhost.connect.one_time import offered  # a server of HTTP, which few runs need

        return partial(offered, toward=machine.address)

    def share(self) -> uploads.Share | None:
        """The share for a request in which files are written to the host by SMB or SFTP."""
        machine = self._context.machine
        if machine is None:
            return None
        if self._upload == "smb":
            from winhost.connect.admin_share import written

            return partial(written, machine)
        if self._upload == "sftp":
            from winhost.connect.sftp import sent_by_sftp

            return partial(sent_by_sftp, machine)
        return None

    @property
    def _upload(self) -> str:
        return disk_images.upload_of(self._request())

    def _tell_of_disk(self, doing: str, done: int, whole: int) -> None:
        """Report the progress of a disk that is made here before it is sent. Raises UploadInterrupted where somebody
        asked to stop.
        """
        if self._context.stop():
            raise uploads.UploadInterrupted
        self._context.tell(disk_images.told(self._context.connector.host, doing, done, whole))
