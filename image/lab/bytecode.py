"""Compile what a served model imports, so that a new container starts without compiling it.

Run by the Python of the vLLM environment::

    python -m image.lab.bytecode DIRECTORY

Imports the modules that serving starts from and compiles every module that this brought in, and
packages whole that are imported piece by piece while a server runs. A compiled file is checked
against the hash of its source when it is read: a source that an overlay replaces later is compiled
anew, whatever its time says.
"""

from __future__ import annotations

import importlib
import importlib.util
import py_compile
import sys
import sysconfig
from collections.abc import Iterable
from contextlib import suppress
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

# Imported lazily, or through registries.
WHOLE = (
    "anyio",
    "compressed_tensors",
    "fastapi",
    "httpcore2",
    "ijson",
    "jmespath",
    "loguru",
    "mistral_common",
    "model_hosting_container_standards",
    "prometheus_fastapi_instrumentator",
    "pycountry",
    "pydantic",
    "ray/thirdparty_files",
    "starlette",
    "uvicorn",
    "vllm/compilation",
    "vllm/distributed",
    "vllm/entrypoints",
    "vllm/parser",
    "vllm/plugins",
    "vllm/reasoning",
    "vllm/renderers",
    "vllm/tool_parsers",
    "vllm/triton_utils",
    "vllm/utils",
    "vllm/v1",
)


def imported_sources(base: Path) -> set[Path]:
    """Return the source files of the imported modules below a directory of packages.

    Parameters
    ----------
    base
        The packages' directory; modules from elsewhere are left alone.
    """
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {
        Path(file)
        for file in files
        if file and file.endswith(".py") and Path(file).is_relative_to(base)
    }


def compile_sources(sources: Iterable[Path], base: Path, directory: Path) -> int:
    """Compile source files.

    Parameters
    ----------
    sources
        Files below ``base``. One that this Python cannot compile is skipped: packages carry
        files for other versions.
    base
        The packages' directory.
    directory
        Takes the compiled files, laid out as below ``base``.

    Returns
    -------
    int
        How many were compiled.
    """
    compiled = 0
    for source in sources:
        cached = Path(importlib.util.cache_from_source(str(source))).relative_to(base)
        with suppress(py_compile.PyCompileError):
            py_compile.compile(
                str(source),
                cfile=str(directory / cached),
                dfile=str(source.relative_to(base)),
                doraise=True,
                invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH,
            )
            compiled += 1
    return compiled


def main() -> int:
    """Import the roots and compile."""
    for name in ROOTS:
        importlib.import_module(name)
    base = Path(sysconfig.get_path("purelib"))
    sources = imported_sources(base)
    for package in WHOLE:
        sources.update((base / package).rglob("*.py"))
    print(compile_sources(sorted(sources), base, Path(sys.argv[1])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
