# SPDX-License-Identifier: Apache-2.0
"""A node's launch → the files that are staged for it, from the texts of ``templates/``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from ansible_collections.spark.appliance.plugins.plugin_utils.launch import NodeLaunch
from ansible_collections.spark.appliance.plugins.plugin_utils.plan.service import (
    API_UNIT,
    ENGINE_UNIT,
    StagedFile,
    Start,
)
from ansible_collections.spark.appliance.plugins.plugin_utils.recipe import Recipe
from jinja2 import Environment, StrictUndefined

TEMPLATES = ("engine.env.j2", "spark-api.service.j2", "spark-engine.service.j2")
# What systemd takes as it is, outside of quotes (systemd.service(5), "Command lines").
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@/:=,.+_-")


def systemd_word(word: str) -> str:
    """Return one argument as a word of a unit's ``ExecStart=`` that means exactly it.

    Quotes and backslashes are escaped, and ``%`` and ``$``, which systemd would expand, doubled.

    Raises:
        ValueError: the argument has a control character, such as a line break.
    """
    if any(ord(character) < ord(" ") or character == "\x7f" for character in word):
        raise ValueError(f"{word!r} has a control character; a unit file cannot hold it")
    doubled = word.replace("%", "%%").replace("$", "$$")
    if word and set(word) <= _PLAIN:
        return doubled
    escaped = doubled.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def systemd_command(argv: Sequence[str]) -> str:
    """Return a whole command line for a unit; see :func:`systemd_word`."""
    return " ".join(systemd_word(word) for word in argv)


def stage(
    launch: NodeLaunch, recipe: Recipe, start: Start, templates: Mapping[str, str]
) -> tuple[StagedFile, ...]:
    """Return the files of a launch, without the API key's.

    Parameters:
        launch: a node's part of the launch.
        recipe: the served system.
        start: how the launch is started; kept in ``launch.json`` for a way back.
        templates: text of each of :data:`TEMPLATES`.

    Raises:
        KeyError: a template is missing.
        jinja2.UndefinedError: a template asks for a value that there is not.
    """
    environment = Environment(
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        autoescape=False,  # noqa: S701 -- unit and environment files, not HTML
    )
    values = {
        "launch": launch,
        "container": recipe.container.name,
        "container_command": systemd_command(launch.container_argv),
        "server_command": systemd_command(launch.server_argv),
        "stop_command": systemd_command(launch.stop_argv),
    }

    def file(name: str, mode: str) -> StagedFile:
        text = environment.from_string(templates[f"{name}.j2"]).render(values)
        return StagedFile(name, mode, text)

    described = {
        "id": launch.id,
        "recipe": recipe.name,
        "recipe_digest": recipe.digest,
        "profile": launch.profile,
        "rank": launch.rank,
        "role": launch.role,
        "start": start.as_dict(),
    }
    return (
        file("engine.env", "0600"),
        file(ENGINE_UNIT, "0644"),
        *([file(API_UNIT, "0644")] if launch.server_argv else []),
        StagedFile("launch.json", "0644", json.dumps(described, indent=2, sort_keys=True) + "\n"),
    )
