#!/usr/bin/env bash
# Starts an image as docker-compose.yml does (read-only, as any user) and sends the README's requests:
#   deploy/release/try_image.sh IMAGE      # a name, or an archive that is loaded first
# ENGINE (docker) may be podman. Exit code 1: it did not start within START_SECONDS, or did not answer.
set -euo pipefail
engine=${ENGINE:-docker}
image=$1
if [ -f "$image" ]; then
    image=$("$engine" load --quiet --input "$image" | sed 's/^[^:]*: //')
fi
container=$("$engine" run --detach --read-only --cap-drop ALL --security-opt no-new-privileges \
    --tmpfs /tmp:size=256m,mode=1777,noexec,nosuid,nodev --pids-limit 512 --memory 6g \
    --user 54321:54321 --publish 127.0.0.1::8000 "$image")
trap '"$engine" logs "$container" >&2; "$engine" rm --force "$container" > /dev/null' EXIT
cd "$(dirname "$0")/../.."
url=http://$("$engine" port "$container" 8000 | sed -n 1p)
deploy/release/ask.sh "$url" "${START_SECONDS:-300}"
