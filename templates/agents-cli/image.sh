#!/bin/sh
# Run as root while the image is made: installs the coding-agent CLIs.
set -eu
apt-get update
apt-get install -y --no-install-recommends nodejs npm
rm -rf /var/lib/apt/lists/*
# Debian 12 has Node.js 18, Qwen Code wants 20 or newer.
npm install --global --no-fund --no-audit node@22 @openai/codex @qwen-code/qwen-code
npm cache clean --force
