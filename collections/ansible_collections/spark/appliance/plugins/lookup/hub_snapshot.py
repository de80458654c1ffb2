# SPDX-License-Identifier: Apache-2.0
"""List a model snapshot of a hub with sizes and digests, by the hub's own client."""

from __future__ import annotations

DOCUMENTATION = r"""
name: hub_snapshot
author: spark-appliance contributors (@spark-appliance)
version_added: 0.1.0
short_description: List a snapshot of a model hub with the digest of each file
description:
  - Asks the hub, through its client C(huggingface_hub) on the control node, which files a revision
    of a repository has. Large files come with their sha256; small ones, for which the hub knows
    only a git digest, are fetched by the client and hashed here.
  - The revision is 40 hexadecimal digits, so that the same files are meant for ever.
options:
  _terms:
    description: C(hub://OWNER/NAME@REVISION).
    required: true
  token:
    description: Token of the hub, for repositories that demand one.
    type: str
    default: ""
  endpoint:
    description: Address of the hub; the client's own by default.
    type: str
    default: ""
requirements: [huggingface_hub on the control node]
"""

EXAMPLES = r"""
- name: Show how large a snapshot is
  ansible.builtin.debug:
    msg: "{{ snapshot.files | sum(attribute='size_bytes') }}"
  vars:
    snapshot: "{{ lookup('spark.appliance.hub_snapshot', source) }}"
    source: hub://owner/name@0123456789abcdef0123456789abcdef01234567
"""

RETURN = r"""
_raw:
  description:
    - C(url), the folder that the files are fetched from, and C(files), each with C(name),
      C(sha256) and C(size_bytes).
  type: list
  elements: dict
"""

import hashlib
import re
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase

_SOURCE = re.compile(r"hub://(?P<repo>[\w.-]+/[\w.-]+)@(?P<revision>[0-9a-f]{40})")


def snapshot(source: str, token: str, endpoint: str) -> dict[str, Any]:
    """Return the folder's address and the files of a snapshot.

    Raises:
        AnsibleError: no such source, no client, no answer, or another revision than asked for.
    """
    match = _SOURCE.fullmatch(source)
    if match is None:
        raise AnsibleError(
            f"{source}: expected hub://OWNER/NAME@ and a revision of 40 hexadecimal digits; a "
            "branch or a tag may name other files tomorrow [appliance_weights_source]"
        )
    try:
        from huggingface_hub import HfApi, hf_hub_download  # noqa: PLC0415 -- optional package
        from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415 -- as above
    except ImportError as error:
        raise AnsibleError(
            f"{source}: expected huggingface_hub on the control node, found none; "
            "install it, or give the weights as an http:// or file:// folder"
        ) from error
    repo, revision = match["repo"], match["revision"]
    api = HfApi(endpoint=endpoint or None, token=token or False)
    try:
        info = api.model_info(repo, revision=revision, files_metadata=True)
        if info.sha != revision:
            raise AnsibleError(f"{source}: expected this revision, found {info.sha}")
        files = []
        for file in info.siblings or []:
            if file.lfs is not None:
                digest, size = file.lfs.sha256, file.lfs.size
            else:
                local = hf_hub_download(
                    repo,
                    file.rfilename,
                    revision=revision,
                    token=token or False,
                    endpoint=endpoint or None,
                )
                content = Path(local).read_bytes()
                digest, size = hashlib.sha256(content).hexdigest(), len(content)
            files.append({"name": file.rfilename, "sha256": digest, "size_bytes": size})
    except (HfHubHTTPError, OSError, ValueError) as error:
        said = " ".join(str(error).split())[:200]
        raise AnsibleError(f"{source}: expected the hub to list it, found: {said}") from error
    if not files:
        raise AnsibleError(f"{source}: expected files, found an empty snapshot")
    return {"url": f"{api.endpoint}/{repo}/resolve/{revision}", "files": files}


class LookupModule(LookupBase):
    """Glue between Ansible and :func:`snapshot`."""

    def run(
        self,
        terms: list[str],
        variables: dict[str, Any] | None = None,
        **kwargs: Any,  # noqa: ANN401 -- signature of the base class
    ) -> list[dict[str, Any]]:
        self.set_options(var_options=variables, direct=kwargs)
        token, endpoint = self.get_option("token"), self.get_option("endpoint")
        return [snapshot(str(term), token, endpoint) for term in terms]
