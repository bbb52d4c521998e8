"""The right to use the priority `urgent`, which stops jobs of others."""

from __future__ import annotations

from fastapi import Request

from gridhand.api.auth import is_admin, owner_of
from gridhand.controller.settings import Settings
from gridhand.core.errors import OverLimit
from gridhand.core.jobs.spec import Priority

_WHERE = "scheduling.urgent of the configuration"


def check_urgent(
    request: Request, priority: Priority, settings: Settings, *, shared: bool, queue: str | None
) -> None:
    """Raise OverLimit if the caller may not use this priority.

    A queue whose own priority is urgent gives it to all who may use that queue.
    """
    if priority is not Priority.URGENT or is_admin(request):
        return
    rules = settings.queues.rules_of(queue)
    if rules is not None and rules.priority is Priority.URGENT:
        return
    rule = settings.urgent or ("admins" if shared else "anyone")
    if rule == "anyone" or (not isinstance(rule, str) and owner_of(request) in rule):
        return
    others = "" if isinstance(rule, str) else f" and {', '.join(rule)}"
    allowed = f"at most {Priority.HIGH}; urgent is for administrators{others}"
    raise OverLimit("priority", Priority.URGENT, _WHERE, allowed)
