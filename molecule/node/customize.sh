#!/bin/sh
# Turns the Debian root, in which it runs, into a lab node as delivered. /overlay is this folder.
set -eu
cp -a --no-preserve=ownership /overlay/root/. /
chmod 0440 /etc/sudoers.d/ops
chmod 0644 /etc/dgx-release /etc/fastos-release
chmod 0700 /etc/netplan

useradd --create-home --shell /bin/bash ops
rm -f /etc/ssh/ssh_host_* /etc/machine-id
: >/etc/machine-id
truncate -s 16M /swap.img
chmod 0600 /swap.img
mkswap -q /swap.img 2>/dev/null

systemctl -q enable systemd-networkd ssh avahi-daemon docker
systemctl -q set-default graphical.target
# The release server runs from the same root; a node serves no such thing. A node has no updates to
# look for, and no udev: device events reach every container from this machine's kernel.
systemctl -q disable nginx apt-daily.timer apt-daily-upgrade.timer
systemctl -q mask systemd-udevd.service systemd-networkd-wait-online.service
