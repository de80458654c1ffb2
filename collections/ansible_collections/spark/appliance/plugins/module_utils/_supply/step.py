# SPDX-License-Identifier: Apache-2.0
"""What the modules of supply have in common: one call starts, follows or ends a job."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from ansible_collections.spark.appliance.plugins.module_utils._supply.jobs import Job, Look

# A day: the slowest line that still makes sense brings 400 GB in it.
DEADLINE_S = 24 * 3600

# How the action plugin drives the module; a user leaves both at their defaults.
STEP_ARGUMENTS: dict[str, Any] = {
    "step": {"type": "str", "choices": ["begin", "look", "end"], "default": "begin"},
    "run": {"type": "str", "default": ""},
}


def begin(job: Job, request: Mapping[str, Any], deadline_s: int = DEADLINE_S) -> dict[str, Any]:
    """Start a job; return the run's name, by which it is followed."""
    run = secrets.token_hex(8)
    job.start(request, run, deadline_s)
    return {"run": run, "state": "running", "progress": {}}


def shown(job: Job, look: Look) -> dict[str, Any]:
    """Return one look as the module's result, and remove what a finished job left."""
    if look.state in {"done", "failed"}:
        job.forget()
    return {
        "state": look.state,
        "progress": dict(look.progress),
        "ready": look.ready,
        "data": look.data,
        "message": look.message,
    }
