# SPDX-License-Identifier: Apache-2.0
"""What ends a supply step.

SupplyError
└── CutError      the way was cut (network, process, engine): the same run again goes on from here
└── CutError      the way was cut (network, process, engine): the same run again goes on from here
"""

from __future__ import annotations


class SupplyError(Exception):
    """Base of both; the message is one line: what was expected, what was found, what to do."""


class RefusalError(SupplyError):
    """Input or node are not as expected; running again changes nothing until that is repaired."""


class CutError(SupplyError):
    """The way was cut; what is verified is kept, and the same run again goes on from there."""
