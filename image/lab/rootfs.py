"""The image's lowest layer: a Debian 12 with Python 3.11 and what the packages link to."""

from __future__ import annotations

import hashlib
import os
import shutil

from image.lab import cache
from image.lab.layer import EPOCH_S, Layer
from image.lab.progress import file_bytes, run_logged

SUITE = "bookworm"
PACKAGES = (
    "python3",
    "libnuma1",  # vLLM's CPU kernels and Ray link to these two
    "libstdc++6",
    "usr-is-merged",
)
# usrmerge, the other half of a dependency that usr-is-merged meets, brings a whole Perl.
_NO_USRMERGE = r"Package: usrmerge\nPin: release *\nPin-Priority: -1\n"
_UNWANTED = ("man", "doc", "info", "locale")
_COMMENT = f"Debian {SUITE} with {' '.join(PACKAGES)}"
_FILE = "layer.tar"


def _options() -> list[str]:
    excludes = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _UNWANTED]
    return [
        "--variant=essential",
        "--mode=root",
        "--format=tar",
        f"--include={','.join(PACKAGES)}",
        *excludes,
        "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
        f'--setup-hook=printf "{_NO_USRMERGE}" > "$1/etc/apt/preferences.d/usrmerge"',
        # Licences stay with what they license.
        "--dpkgopt=path-include=/usr/share/doc/*/copyright",
        # A container gets its devices from the engine.
        "--skip=output/dev",
    ]


def ensure_root() -> Layer:
    """Build the root layer unless it exists.

    Returns
    -------
    Layer
        The layer in the cache. Packages are those of the day it was built.

    Raises
    ------
    RuntimeError
        mmdebstrap is missing or failed.
    """
    entry = cache.cache_root() / f"lab-root-{cache.content_key([SUITE, *_options()])}"
    file, digest = entry / _FILE, entry / "sha256"
    with cache.building(entry) as needed:
        if needed:
            if shutil.which("mmdebstrap") is None:
                raise RuntimeError("mmdebstrap is missing: install Debian's package mmdebstrap")
            run_logged(
                "lab-image: Debian root",
                ["mmdebstrap", *_options(), SUITE, str(file)],
                entry / "build.log",
                lambda: file_bytes(file),
                # Files newer than the epoch are dated back to it; bytecode is keyed by content.
                env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH_S)},
            )
            with file.open("rb") as content:
                digest.write_text(hashlib.file_digest(content, "sha256").hexdigest())
    return Layer(file, digest.read_text(), _COMMENT)
