# SPDX-License-Identifier: Apache-2.0
"""Bringing verified files and the image to a node (node side, standard library only).

Private to this collection. Work longer than a module call runs as a job: see ``jobs``.
"""

from __future__ import annotations
