#!/usr/bin/env bash
# Prints the digest of an image in a registry, for all its processors:
#   deploy/release/digest.sh NAME
# The format {{.Manifest.Digest}} does not print the digest alone: buildx writes a table instead.
set -euo pipefail
docker buildx imagetools inspect --format '{{json .Manifest}}' "$1" \
    | python3 -c 'import json, sys; print(json.load(sys.stdin)["digest"])'
