# SPDX-License-Identifier: Apache-2.0
"""Write the overlay's manifest anew after a change to the overlay.

    python -m image.overlay.seal [TREE]

``TREE`` holds vLLM as released; without it only the added files are sealed anew, which is enough
when no edit changed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from image.overlay.edits import ADDED, EDITS, RELEASE, RELIED_ON
from image.overlay.manifest import MANIFEST, Manifest, digest, load_manifest
from image.overlay.tree import edited


def seal(tree: Path) -> Manifest:
    """Return the manifest for a released tree.

    Parameters:
        tree: folder that holds the package ``vllm``.

    Raises:
        OSError: a file is missing.
        OverlayError: an anchor does not occur exactly once.
    """
    paths = sorted({edit.path for edit in EDITS})
    contents = {path: (tree / path).read_bytes() for path in paths}
    return Manifest(
        release=RELEASE,
        before={path: digest(content) for path, content in contents.items()},
        after={path: digest(edited(path, content)) for path, content in contents.items()} | added(),
        relied_on={path: digest((tree / path).read_bytes()) for path in RELIED_ON},
    )


def added() -> dict[str, str]:
    """Return path → sha256 of the files that the overlay adds."""
    return {path: digest(source.read_bytes()) for path, source in ADDED.items()}


def main() -> None:
    """Write the manifest."""
    if len(sys.argv) > 1:
        manifest = seal(Path(sys.argv[1]))
    else:
        old = load_manifest()
        manifest = Manifest(old.release, old.before, old.after | added(), old.relied_on)
    MANIFEST.write_text(manifest.text())


if __name__ == "__main__":
    main()
