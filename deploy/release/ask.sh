#!/usr/bin/env bash
# Waits until a server is ready and checks its answers to the README's two requests:
#   deploy/release/ask.sh URL [SECONDS]
set -euo pipefail
url=$1 seconds=${2:-120}
cd "$(dirname "$0")/../.."
result=$(mktemp)
trap 'rm -f "$result"' EXIT
end=$((SECONDS + seconds))
until curl --silent --fail --max-time 5 --output "$result" "$url/v2/health/ready"; do
    if [ "$SECONDS" -ge "$end" ]; then
        echo "not ready within $seconds s: $url" >&2
        exit 1
    fi
    sleep 1
done
curl --silent --show-error --fail --max-time 60 --output "$result" \
    --header 'Content-Type: image/jpeg' --data-binary @docs/images/astronaut.jpg \
    "$url/segment?timeout_ms=30000"
head --bytes 8 "$result" | grep --quiet --text PNG
echo "a cut-out of $(stat --format %s "$result") bytes"
curl --silent --show-error --fail --max-time 60 --output "$result" \
    --data '{"text": "今天真开心，终于放假了！"}' "$url/sentiment?timeout_ms=30000"
grep --quiet '^\[{"label":"happy"' "$result"
echo "an emotion: $(cut --characters 1-60 "$result")"
