#!/usr/bin/env bash
# Tags the image, pushes the chart, and signs both with the identity of the workflow:
#   deploy/release/publish.sh REGISTRY TAG DIGESTS DIST
# REGISTRY is host and namespace; DIGESTS has a file with the digest of each processor's tested image;
# DIST is the output of build_dist.sh. Prints image=DIGEST and chart=DIGEST.
# The version is tagged, and `latest` unless the version is a pre-release.
set -euo pipefail
registry=$1 digests=$(realpath "$3") dist=$(realpath "$4")
cd "$(dirname "$0")/../.."
version=$(python3 deploy/release/version.py "$2")
image=$registry/paddlepool
tags=(--tag "$image:$version")
if [[ $version =~ ^[0-9.]+$ ]]; then
    tags+=(--tag "$image:latest")
fi
if [ ! -s "$digests/amd64" ]; then
    echo "no image for amd64" >&2
    exit 1
fi
sources=()
for file in "$digests"/*; do
    sources+=("$image@$(cat "$file")")
done
docker buildx imagetools create "${tags[@]}" "${sources[@]}" >&2
digest=$(deploy/release/digest.sh "$image:$version")
echo "image=$digest"
cosign sign --yes --recursive "$image@$digest" >&2
cosign attest --yes --type cyclonedx --predicate "$dist/sbom/paddlepool.cdx.json" \
    "$image@$digest" >&2
pushed=$(helm push "$dist/chart/paddlepool-$version.tgz" "oci://$registry/charts" 2>&1)
echo "$pushed" >&2
chart=$(grep --only-matching 'sha256:[0-9a-f]\{64\}' <<< "$pushed" | tail -n 1)
echo "chart=$chart"
cosign sign --yes "$registry/charts/paddlepool@$chart" >&2
