#!/usr/bin/env bash
# What the lab and the tests need from the distribution on a bare Debian 12 machine.
set -euo pipefail

wanted=(
  lxcfs mmdebstrap zstd iproute2 iptables procps  # lab
  openssh-client python3-venv git                 # control node
  aria2 curl iputils-ping                         # tests fetch and probe as a node does
)
# An engine that is here already, of whatever origin, is used and not replaced.
command -v dockerd >/dev/null || wanted+=(docker.io)

missing=()
for package in "${wanted[@]}"; do
  status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
  [[ $status == 'install ok installed' ]] || missing+=("$package")
done
[[ ${#missing[@]} -eq 0 ]] && exit 0

if [[ $EUID -ne 0 ]]; then
  echo "lab: root is needed to install ${missing[*]}; install them, or run this as root" >&2
  exit 1
fi
echo "lab: installing ${missing[*]} (about 1 min)"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -qq --no-install-recommends "${missing[@]}" </dev/null >/dev/null
