# SPDX-License-Identifier: Apache-2.0
"""Content of an environment file with a secret."""

from __future__ import annotations

DOCUMENTATION = r"""
name: secret_env
short_description: Content of an environment file with a secret
description:
  - Hands the API key to the server, or Ray's token to Ray, by a file that only root reads.
version_added: 0.1.0
author: spark-appliance contributors (@spark-appliance)
positional: name
options:
  _input:
    description: Key that the API server demands.
    type: str
    required: true
  name:
    description: Which file.
    type: str
    required: true
    choices: [api.env, ray.env]
"""

EXAMPLES = r"""
- name: Stage the API key
  ansible.builtin.copy:
    dest: /etc/spark-appliance/launches/0123456789abcdef/api.env
    content: "{{ launch_api_key | spark.appliance.secret_env('api.env') }}"
    mode: "0600"
  no_log: true
"""

RETURN = r"""
_value:
  description: The file's content.
  type: str
"""

from collections.abc import Callable

from ansible_collections.spark.appliance.plugins.plugin_utils.plan.service import secret_env


class FilterModule:
    """Read by Ansible."""

    def filters(self) -> dict[str, Callable[[str, str], str]]:
        """Return the filter by its name."""
        return {"secret_env": secret_env}
