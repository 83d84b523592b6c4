#!/usr/bin/env bash
# Builds the server's image reproducibly: the same commit and base give the same layers:
#   deploy/release/build_image.sh ARCHIVE [TARGET]      # built anew, for `docker load`
#   deploy/release/build_image.sh --push NAME [TARGET]  # pushed by digest, from the cache if it can
# TARGET is `serve` by default. The digest of the image's manifest is printed.
# Every file gets the time of the commit, and bytecode is validated by its source's hash, not its time.
# BASE_IMAGE names the base; one without a digest is resolved first and printed. Two builds still
# differ if Debian has updated a package in between, unless the base has it.
# deploy/release/layers.py compares two archives. Needs docker with buildx.
set -euo pipefail
push=false
if [ "$1" = --push ]; then
    push=true
    shift
fi
where=$1 target=${2:-serve}
"$push" || where=$(realpath -m "$where")
cd "$(dirname "$0")/../.."
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
base=${BASE_IMAGE:-python:3.11-slim}
case $base in
    *@sha256:*) ;;
    *) base=$base@$(deploy/release/digest.sh "$base") ;;
esac
echo "base: $base" >&2
cache=()
if "$push"; then
    output=type=image,name=$where,push-by-digest=true,name-canonical=true,push=true,rewrite-timestamp=true
else
    output=type=docker,dest=$where,rewrite-timestamp=true
    cache+=(--no-cache)
fi
metadata=$(mktemp)
trap 'rm -f "$metadata"' EXIT
docker buildx build --target "$target" "${cache[@]}" \
    --build-arg BASE_IMAGE="$base" --build-arg SOURCE_DATE_EPOCH \
    --provenance=false --sbom=false \
    --output "$output" --metadata-file "$metadata" . >&2
python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["containerimage.digest"])' "$metadata"
