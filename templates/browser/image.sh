#!/bin/sh
# Run as root while the image is made: installs Chromium and fonts for most scripts.
set -eu
apt-get update
apt-get install -y --no-install-recommends chromium fonts-dejavu-core fonts-noto-cjk
rm -rf /var/lib/apt/lists/*
