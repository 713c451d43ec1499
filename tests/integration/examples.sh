#!/usr/bin/env bash
# Run the two C examples against each other, as a reader of the README would.
set -euo pipefail
build=$1
log=$(mktemp)
"$build/example_prefill" >"$log" &
prefill=$!
trap 'kill $prefill 2>/dev/null || true; rm -f "$log"' EXIT
for _ in $(seq 200); do
    address=$(sed -n 's/.*decode \(.*:[0-9]*\)$/\1/p' "$log")
    [ -n "$address" ] && break
    sleep 0.05
done
"$build/example_decode" "$address"
wait $prefill
cat "$log"
grep -q "0 bytes in use" "$log"
