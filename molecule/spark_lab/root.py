"""The image of a lab node: a Debian root, built once per package list, with the factory state."""

from __future__ import annotations

from pathlib import Path

from spark_lab.process import answers, run, say
from spark_lab.spec import REPOSITORY, SUITES, Lab, Suite, digest_of

SOURCE = REPOSITORY / "molecule/node"
REPOSITORY_TAG = "spark-lab-node"


def node_image(lab: Lab) -> str:
    """Return the node image of this tree, building what is missing of it.

    Raises:
        LabError: a build step failed.
    """
    image = _image(lab.suite)
    if _present(image):
        return image
    base = _base_image(lab)
    say("laying the factory state over the node's root")
    build = f"{lab.name}-build"
    answers(["docker", "rm", "-f", build])
    overlay = f"{SOURCE}:/overlay:ro"
    options = ["--name", build, "--network", "none", "-v", overlay]
    run(["docker", "run", *options, base, "/overlay/customize.sh"])
    own = _own(lab.suite) / "root"
    if own.is_dir():
        run(["docker", "cp", f"{own}/.", f"{build}:/"])
    run(["docker", "commit", "-c", 'CMD ["/usr/lib/spark-lab/init"]', build, image])
    run(["docker", "rm", build])
    _forget_older()
    return image


def _own(suite: Suite) -> Path:
    """Return where that lies which only nodes of this suite have."""
    return SOURCE / "suites" / suite.name


def _image(suite: Suite) -> str:
    common = (SOURCE / "customize.sh", SOURCE / "packages", SOURCE / "root")
    return f"{REPOSITORY_TAG}:{digest_of(*common, *_existing(_own(suite)))}"


def _package_lists(suite: Suite) -> list[Path]:
    return [SOURCE / "packages", *_existing(_own(suite) / "packages")]


def _existing(path: Path) -> list[Path]:
    return [path] if path.exists() else []


def _forget_older() -> None:
    """Remove the images of earlier trees; one that a container still uses stays."""
    wanted = {_image(suite) for suite in SUITES.values()}
    for tag in run(["docker", "image", "ls", "--format", "{{.Tag}}", REPOSITORY_TAG]).split():
        if f"{REPOSITORY_TAG}:{tag}" not in wanted:
            answers(["docker", "image", "rm", f"{REPOSITORY_TAG}:{tag}"], timeout_s=60)


def _base_image(lab: Lab) -> str:
    lists = _package_lists(lab.suite)
    base = f"{REPOSITORY_TAG}-base:{digest_of(*lists)}"
    if _present(base):
        return base
    tarball = lab.cache / "lab-root" / f"{base.replace(':', '-')}.tar"
    if not tarball.exists():
        say(f"building a Debian root of {lab.suite.name} with mmdebstrap (once; about 1.5 min)")
        packages = [name for one in lists for name in one.read_text(encoding="ascii").split()]
        _bootstrap(lab.suite, packages, tarball)
    say("importing the root")
    run(["docker", "import", str(tarball), base])
    return base


def _bootstrap(suite: Suite, packages: list[str], tarball: Path) -> None:
    tarball.parent.mkdir(parents=True, exist_ok=True)
    partial = tarball.with_suffix(".partial.tar")
    try:
        run(
            [
                "mmdebstrap",
                "--quiet",
                "--variant=minbase",
                "--dpkgopt=path-exclude=/usr/share/doc/*",
                "--dpkgopt=path-exclude=/usr/share/man/*",
                "--dpkgopt=path-exclude=/usr/share/locale/*",
                f"--include={','.join(packages)}",
                suite.name,
                str(partial),
            ],
            remedy="The Debian archive must be reachable the first time.",
        )
        partial.rename(tarball)
    finally:
        partial.unlink(missing_ok=True)


def _present(image: str) -> bool:
    return answers(["docker", "image", "inspect", image])
