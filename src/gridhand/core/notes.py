"""Commands that record who did something that changes no row: only an event is written."""

from __future__ import annotations

from gridhand.core.model.names import JobId
from gridhand.core.operations import Command, JobsCommand, operation


@operation
class NoteSignal(JobsCommand):
    """Record that somebody has sent a signal to a running job."""

    id: JobId = JobId("")
    signum: int = 0

    def body(self) -> str:
        return f"signal {self.id} {self.signum}"


@operation
class NoteAction(Command[None]):
    """Record who did something that changes no row, such as deleting old history."""

    kind: str = ""  # begins with `admin.`
    subject: str = ""
    why: str = ""

    def body(self) -> str:
        return f"{self.kind} {self.subject} {self.why}"

    def encode_reply(self, reply: None) -> str:
        return ""

    def decode_reply(self, text: str) -> None:
        return None
