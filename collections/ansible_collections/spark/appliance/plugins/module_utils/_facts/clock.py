# SPDX-License-Identifier: Apache-2.0
"""The node's clock against the control node's, and how the last run of the node ended."""

from __future__ import annotations

import re
import time
from typing import Any

from ansible_collections.spark.appliance.plugins.module_utils._facts.host import (
    Command,
    Host,
    Unknown,
)

TIMEDATECTL = Command(
    "timedatectl", ("timedatectl", "show", "--property=NTP", "--property=NTPSynchronized")
)
LAST = Command("last", ("last", "-x", "-F", "-n", "40", "reboot", "shutdown"), empty_ok=True)


def parse_timedatectl(text: str) -> bool:
    """Return whether the clock is synchronized.

    Raises:
        Unknown: the property is not in the answer.
    """
    match = re.search(r"^NTPSynchronized=(yes|no)$", text, re.MULTILINE)
    if match is None:
        raise Unknown("timedatectl: did not print NTPSynchronized")
    return match.group(1) == "yes"


def observe_time(host: Host, reference_epoch_s: float | None) -> dict[str, Any]:
    """Return the ``time`` section.

    ``skew_s`` is the node's clock less the control node's, in seconds; the time that the question
    took to arrive is in it, so that only seconds mean anything.
    """
    epoch = host.text("/_commands/epoch.txt") if host.recorded else None
    now_s = float(epoch) if epoch else time.time()
    return {
        "synchronized": parse_timedatectl(host.ask(TIMEDATECTL)),
        "skew_s": None if reference_epoch_s is None else round(now_s - reference_epoch_s, 3),
    }


def parse_last(text: str) -> str:
    """Return how the run before this one ended: clean, unclean, or unknown where no record says.

    ``last -x`` lists newest first; before the row of the running boot there is a shutdown row when
    the previous run was ended in order.

    Raises:
        Unknown: neither a record nor the line that ends a list without one was printed.
    """
    rows = [
        line.split()[0] for line in text.splitlines() if line.startswith(("reboot", "shutdown"))
    ]
    if not rows and re.search(r"^\S+ begins ", text, re.MULTILINE) is None:
        raise Unknown("last: printed no record and no beginning of its file")
    if not rows or rows[0] != "reboot" or len(rows) == 1:
        return "unknown"
    return "clean" if rows[1] == "shutdown" else "unclean"


def observe_power(host: Host) -> dict[str, Any]:
    """Return the ``power`` section: the end of the previous run and the kernel's crash records."""
    return {
        "previous_run": parse_last(host.ask(LAST)),
        "pstore_records": len(host.names("/sys/fs/pstore") or []),
    }
