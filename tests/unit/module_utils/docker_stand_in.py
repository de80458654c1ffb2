#!/usr/bin/env python3
"""Stands in for the Docker CLI: reads archives as a lenient engine does, keeps images in a file.

``STAND_IN`` names its folder. ``mood.json`` there makes it misbehave: ``early`` ends the load
before its input, ``full`` fails like a full disk, ``liar`` says it loaded and did not, ``swap``
registers another image, ``down`` does not answer at all.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import tarfile
from pathlib import Path
from typing import Any


def mood(folder: Path) -> str:
    path = folder / "mood.json"
    return str(json.loads(path.read_text())) if path.exists() else ""


def images(folder: Path) -> dict[str, Any]:
    path = folder / "images.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def load(folder: Path) -> int:
    how = mood(folder)
    if how == "early":
        sys.stdin.buffer.read(2048)
        sys.stderr.write("Error response from daemon: the engine went away\n")
        return 1
    raw = sys.stdin.buffer.read()
    (folder / "received.tar").write_bytes(raw)
    if how == "full":
        sys.stderr.write("Error processing tar file(exit status 1): no space left on device\n")
        return 1
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as archive:
            for member in archive:
                stream = archive.extractfile(member) if member.isfile() else None
                files[member.name] = stream.read() if stream else b""
    except tarfile.TarError as error:
        sys.stderr.write(f"unexpected EOF: {error}\n")
        return 1
    if "manifest.json" not in files:
        sys.stderr.write("open manifest.json: no such file or directory\n")
        return 1
    if how == "liar":
        sys.stdout.write("Loaded image: spark-test:1\n")
        return 0
    image = json.loads(files["manifest.json"])[0]
    config = files[image["Config"]]
    parsed = json.loads(config)
    known = images(folder)
    for tag in image["RepoTags"]:
        known[tag] = {
            "Id": "sha256:" + ("0" * 64 if how == "swap" else hashlib.sha256(config).hexdigest()),
            "Architecture": parsed["architecture"],
            "Os": parsed["os"],
            "RootFS": {"Layers": parsed["rootfs"]["diff_ids"]},
        }
    (folder / "images.json").write_text(json.dumps(known))
    sys.stdout.write("Loaded image: " + ", ".join(image["RepoTags"]) + "\n")
    return 0


def info(folder: Path, _: list[str]) -> int:
    sys.stdout.write(json.dumps({"DockerRootDir": str(folder), "DriverStatus": []}))
    return 0


def inspect(folder: Path, command: list[str]) -> int:
    shown = [image for tag, image in images(folder).items() if command[2] in {tag, image["Id"]}]
    if not shown:
        sys.stderr.write(f"Error: No such image: {command[2]}\n")
        return 1
    sys.stdout.write(json.dumps(shown[:1]))
    return 0


def tag(folder: Path, command: list[str]) -> int:
    known = images(folder)
    known[command[2]] = next(image for image in known.values() if image["Id"] == command[1])
    (folder / "images.json").write_text(json.dumps(known))
    return 0


def containers(folder: Path) -> list[str]:
    path = folder / "kept.txt"
    return path.read_text().splitlines() if path.exists() else []


def keep(folder: Path, names: list[str]) -> int:
    (folder / "kept.txt").write_text("".join(f"{name}\n" for name in names))
    return 0


def create(folder: Path, command: list[str]) -> int:
    name = next(word for word in command if word.startswith("--name="))
    return keep(folder, [name.removeprefix("--name="), *containers(folder)])


def container(folder: Path, command: list[str]) -> int:
    if command[1] == "rm":
        return keep(folder, [name for name in containers(folder) if name != command[2]])
    sys.stdout.write("".join(f"{name}\n" for name in containers(folder)))
    return 0


COMMANDS = {"info": info, "image": inspect, "tag": tag, "create": create, "container": container}


def main() -> int:
    folder, command = Path(os.environ["STAND_IN"]), sys.argv[1:]
    if mood(folder) == "down":
        sys.stderr.write("Cannot connect to the Docker daemon. Is the docker daemon running?\n")
        return 1
    if command[0] == "load":
        return load(folder)
    return COMMANDS[command[0]](folder, command)


if __name__ == "__main__":
    sys.exit(main())
