# SPDX-License-Identifier: Apache-2.0
"""The sealed manifest: sha256 of every file before and after the overlay."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

MANIFEST = Path(__file__).with_name("manifest.json")


def digest(content: bytes) -> str:
    """Return the sha256 of a file's content in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the overlay was made for and what it makes.

    Parameters:
        release: version of vLLM.
        before: path → sha256 of each file that is edited, as released.
        after: path → sha256 of each file that is edited or added, as the overlay leaves it.
        relied_on: path → sha256 of files that stay as released.
    """

    release: str
    before: dict[str, str]
    after: dict[str, str]
    relied_on: dict[str, str]

    def text(self) -> str:
        """Return the manifest as stable JSON."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(fields, indent=2, sort_keys=True) + "\n"


def load_manifest(path: Path = MANIFEST) -> Manifest:
    """Read a sealed manifest.

    Raises:
        OSError, ValueError, TypeError, KeyError: it cannot be read or lacks a field.
    """
    return Manifest(**json.loads(path.read_text()))
