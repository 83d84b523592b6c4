#!/usr/bin/env bash
# Logs docker, helm and cosign in at a container registry; TOKEN holds the password:
#   TOKEN=… deploy/release/login.sh REGISTRY USER
set -euo pipefail
echo "$TOKEN" | docker login --username "$2" --password-stdin "$1" >&2
echo "$TOKEN" | helm registry login --username "$2" --password-stdin "$1" >&2
echo "$TOKEN" | cosign login --username "$2" --password-stdin "$1" >&2
