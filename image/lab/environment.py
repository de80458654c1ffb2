"""The pinned CPU vLLM environment: a virtual environment cached by the content of its lock.

``make vllm-env`` prints its path. Tests import the real vLLM from it; the image's site tree is
copied from it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from image.lab import cache
from image.lab.progress import run_logged, tree_bytes

LOCK = Path(__file__).parent / "requirements.txt"
# Debian 12's interpreter: the image's compiled packages must meet the same minor version.
PYTHON = "/usr/bin/python3.11"
# Raised when the steps below change, so that an old environment is not taken for a new one.
_RECIPE = "1"


def environment_key() -> str:
    """Return the key of the environment that the lock describes."""
    return cache.content_key(["vllm-env", _RECIPE, PYTHON, LOCK.read_bytes()])


def environment_path() -> Path:
    """Return where the environment is or would be."""
    return cache.cache_root() / f"vllm-env-{environment_key()}"


def site_packages(environment: Path) -> Path:
    """Return the environment's directory of installed packages."""
    return environment / "lib" / "python3.11" / "site-packages"


def ensure_environment() -> Path:
    """Build the environment unless it exists.

    Returns
    -------
    Path
        The environment's directory.

    Raises
    ------
    RuntimeError
        The interpreter or a package is missing, or a wheel has another hash than the lock's.
    """
    environment = environment_path()
    if cache.is_complete(environment):
        return environment
    if not Path(PYTHON).exists():
        raise RuntimeError(f"{PYTHON} is missing: install python3 and python3-venv of Debian 12")
    with cache.building(environment) as needed:
        if needed:
            log = environment / "build.log"
            run_logged("vllm-env: venv", [PYTHON, "-m", "venv", str(environment)], log,
                       lambda: tree_bytes(environment))  # fmt: skip
            # Bytecode is left to the first import: most modules are never imported.
            argv = [str(environment / "bin" / "pip"), "install", "--no-deps", "--require-hashes",
                    "--no-compile", "--progress-bar", "off", "-r", str(LOCK)]  # fmt: skip
            run_logged("vllm-env: packages", argv, log, lambda: tree_bytes(environment))
    return environment


def main() -> int:
    """Build the environment when it is missing and print its path."""
    try:
        print(ensure_environment())
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
