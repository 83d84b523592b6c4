#!/usr/bin/env bash
# Builds the artifacts of a release other than the image, in DIRECTORY/python, /chart and /sbom:
#   deploy/release/build_dist.sh DIRECTORY
# Needs `make install` and `make .venv-deploy/.installed`, and the package registry.
set -euo pipefail
output=$(realpath -m "$1")
cd "$(dirname "$0")/../.."
# Files in the archives get the time of the commit.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# The client, tested on each installed Python.
python3 deploy/check_client.py --output "$output/python"

# The server, from tracked files only: no pulled weights and no build outputs.
mkdir "$scratch/source"
git archive HEAD | tar --extract --directory "$scratch/source"
python3 -m venv "$scratch/tools"
"$scratch/tools/bin/python" -m pip install --quiet --disable-pip-version-check build
"$scratch/tools/bin/python" -m build --outdir "$output/python" "$scratch/source" > /dev/null

.venv-deploy/bin/python deploy/release/chart.py --output "$output/chart"
mkdir -p "$output/sbom"
.venv-deploy/bin/python deploy/sbom.py --output "$output/sbom/paddlepool.cdx.json"
(cd "$output" && sha256sum python/* chart/* sbom/* > SHA256SUMS && cat SHA256SUMS)
