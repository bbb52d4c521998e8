"""Command names of other tools, and the command that does the same here.

Loaded only when a command is unknown.
"""

from __future__ import annotations

MEANT = {
    "attach": "grid logs -f ID",
    "delete": "grid cancel ID",
    "drain": "grid node drain NODE",
    "eff": "grid show ID",
    "fsck": "grid check",
    "info": "grid show ID` or `grid stats NODE",
    "job": "grid show ID",
    "lease": "grid reserve -c 2 --ttl 1h",
    "log": "grid logs ID",
    "ls": "grid jobs` or `grid list",
    "plan": "grid run --dry-run -- COMMAND",
    "restart": "grid stop --keep-jobs",
    "resume": "grid node resume NODE",
    "rm": "grid cancel ID",
    "sacct": "grid jobs --all",
    "salloc": "grid reserve -c 2",
    "sbatch": "grid submit -- COMMAND",
    "scancel": "grid cancel ID",
    "scontrol": "grid show ID` or `grid stats NODE",
    "seff": "grid show ID",
    "sinfo": "grid list",
    "squeue": "grid jobs",
    "srun": "grid run -- COMMAND",
    "start": "grid run -- COMMAND` or `grid serve",
    "tail": "grid logs -f ID",
    "undrain": "grid node resume NODE",
    "usage": "grid stats NODE",
    "version": "grid --version",
    "workers": "grid list",
}
