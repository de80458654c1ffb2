"""The image of a lab node: a Debian root, built once per package list, with the factory state."""

from __future__ import annotations

from pathlib import Path

from spark_lab.process import answers, run, say
from spark_lab.spec import REPOSITORY, Lab, digest_of

SOURCE = REPOSITORY / "molecule/node"
SUITE = "bookworm"
REPOSITORY_TAG = "spark-lab-node"


def node_image(lab: Lab) -> str:
    """Return the node image of this tree, building what is missing of it.

    Raises:
        LabError: a build step failed.
    """
    image = f"{REPOSITORY_TAG}:{digest_of(SOURCE)}"
    if _present(image):
        return image
    base = _base_image(lab)
    say("laying the factory state over the node's root")
    build = f"{lab.name}-build"
    answers(["docker", "rm", "-f", build])
    overlay = f"{SOURCE}:/overlay:ro"
    options = ["--name", build, "--network", "none", "-v", overlay]
    run(["docker", "run", *options, base, "/overlay/customize.sh"])
    run(["docker", "commit", "-c", 'CMD ["/usr/lib/spark-lab/init"]', build, image])
    run(["docker", "rm", build])
    _forget_older(image)
    return image


def _forget_older(image: str) -> None:
    """Remove the images of earlier trees; one that a container still uses stays."""
    for tag in run(["docker", "image", "ls", "--format", "{{.Tag}}", REPOSITORY_TAG]).split():
        if f"{REPOSITORY_TAG}:{tag}" != image:
            answers(["docker", "image", "rm", f"{REPOSITORY_TAG}:{tag}"], timeout_s=60)


def _base_image(lab: Lab) -> str:
    packages = SOURCE / "packages"
    base = f"{REPOSITORY_TAG}-base:{digest_of(packages)}"
    if _present(base):
        return base
    tarball = lab.cache / "lab-root" / f"{base.replace(':', '-')}.tar"
    if not tarball.exists():
        say("building a Debian root with mmdebstrap (once; about 1.5 min)")
        _bootstrap(packages.read_text(encoding="ascii").split(), tarball)
    say("importing the root")
    run(["docker", "import", str(tarball), base])
    return base


def _bootstrap(packages: list[str], tarball: Path) -> None:
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
                SUITE,
                str(partial),
            ],
            remedy="The Debian archive must be reachable the first time.",
        )
        partial.rename(tarball)
    finally:
        partial.unlink(missing_ok=True)


def _present(image: str) -> bool:
    return answers(["docker", "image", "inspect", image])
