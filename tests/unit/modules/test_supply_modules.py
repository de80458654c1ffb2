from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import yaml
from ansible_collections.spark.appliance.plugins.doc_fragments.attributes_job import (
    ModuleDocFragment,
)
from ansible_collections.spark.appliance.plugins.modules import (
    image_load,
    image_probe,
    supply_fetch,
    supply_share,
)

MODULES = [image_load, image_probe, supply_fetch, supply_share]


def options(module: ModuleType) -> dict[str, Any]:
    documented = yaml.safe_load(module.DOCUMENTATION)
    found: dict[str, Any] = documented["options"]
    if "spark.appliance.attributes_job" in documented["extends_documentation_fragment"]:
        found |= yaml.safe_load(ModuleDocFragment.DOCUMENTATION)["options"]
    return found


def compare(documented: dict[str, Any], arguments: dict[str, Any]) -> None:
    assert set(documented) == set(arguments)
    for name, argument in arguments.items():
        shown = documented[name]
        for key in ("type", "elements", "choices", "default", "required"):
            assert shown.get(key) == argument.get(key), (name, key)
        compare(shown.get("suboptions", {}), argument.get("options", {}))


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_the_documentation_is_the_argument_spec(module: ModuleType) -> None:
    compare(options(module), module.ARGUMENTS)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_examples_and_returns_are_yaml(module: ModuleType) -> None:
    assert yaml.safe_load(module.EXAMPLES)
    assert yaml.safe_load(module.RETURN)


@pytest.mark.parametrize("module", [supply_fetch, supply_share])
def test_tokens_are_never_logged(module: ModuleType) -> None:
    assert module.ARGUMENTS["token"]["no_log"] is True
