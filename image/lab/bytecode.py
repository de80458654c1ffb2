"""Compile what a served model imports, so that a new container starts without compiling it.

Run by the Python of the vLLM environment::

    python -m image.lab.bytecode DIRECTORY

Imports the modules that serving starts from and compiles every module that this brought in. The
files are checked against the hash of their source when they are read: a source that an overlay
replaces later is compiled anew, whatever its time says.
"""

from __future__ import annotations

import importlib
import importlib.util
import py_compile
import sys
import sysconfig
from pathlib import Path

# What the API server, its engine, its ranks, Ray's daemons and a tool-calling GLM start from.
ROOTS = (
    "vllm.entrypoints.openai.api_server",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.spec_decode.eagle",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.model_executor.models.glm4_moe",
    "vllm.model_executor.models.glm4_moe_mtp",
    "transformers.models.glm4_moe.configuration_glm4_moe",
    "ray.scripts.scripts",
    "ray._private.workers.default_worker",
    "ray.dashboard.agent",
)


def compile_imported(directory: Path, base: Path) -> int:
    """Compile the imported modules below a directory of packages.

    Parameters
    ----------
    directory
        Takes the compiled files, laid out as below ``base``.
    base
        The packages' directory; modules from elsewhere are left alone.

    Returns
    -------
    int
        How many modules were compiled.
    """
    compiled = 0
    for module in list(sys.modules.values()):
        source = getattr(module, "__file__", None)
        if not source or not source.endswith(".py") or not Path(source).is_relative_to(base):
            continue
        cached = Path(importlib.util.cache_from_source(source)).relative_to(base)
        py_compile.compile(
            source,
            cfile=str(directory / cached),
            dfile=str(Path(source).relative_to(base)),
            doraise=True,
            invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH,
        )
        compiled += 1
    return compiled


def main() -> int:
    """Import the roots and compile."""
    for name in ROOTS:
        importlib.import_module(name)
    print(compile_imported(Path(sys.argv[1]), Path(sysconfig.get_path("purelib"))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
