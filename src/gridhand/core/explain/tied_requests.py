"""Sentences about requests that need something of the controller's own machine."""

from __future__ import annotations

from gridhand.core.model.requests import Request, Tie

_MISSING = {
    Tie.FOLDER: "the job's folder is not there",
    Tie.CALLER: "the process that calls the function is not there",
}
ANYWHERE = "let it run on another machine, in a new folder there (--anywhere)"


def why_not_there(tie: Tie) -> str:
    """Return why what is tied to the controller's machine cannot go to a node elsewhere."""
    return f"a worker on another machine serves it, and {_MISSING[tie]}"


def how_to_permit(asked: Request) -> str:
    """Return how a request that rules out nodes would permit them; empty if nobody can."""
    if asked.tied_to is None or asked.names_nodes or asked.exclude:
        return "permit other nodes"
    return ANYWHERE if asked.tied_to is Tie.FOLDER else ""


def why_none_elsewhere(asked: Request) -> str:
    """Return why nodes of workers do not count for what nobody can permit to go there."""
    if asked.tied_to is None or asked.tied_to is Tie.FOLDER:
        return ""
    return f"Nodes of workers on other machines do not count: {_MISSING[asked.tied_to]}."
