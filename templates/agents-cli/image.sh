#!/bin/sh
# Run as root while the image is made: installs the coding-agent CLIs.
set -eu
apt-get update
apt-get install -y --no-install-recommends nodejs npm
rm -rf /var/lib/apt/lists/*
npm install --global --no-fund --no-audit @openai/codex @qwen-code/qwen-code
npm cache clean --force
