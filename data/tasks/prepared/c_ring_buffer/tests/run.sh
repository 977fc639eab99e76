#!/bin/sh
# Builds and runs the tests, and prints TAP.

set -u

cd "$(dirname "$0")/.." || exit 1
build=$(mktemp -d) || exit 1
trap 'rm -rf "$build"' EXIT

count=0
status=0
for source in tests/test_ring_buffer.c tests/test_skip.c; do
    # CFLAGS may hold several options, so it is not quoted.
    if ${CC:-cc} -std=c11 -Wall -Wextra -pedantic -g ${CFLAGS:-} -Iinclude -o "$build/program" \
        src/*.c "$source"; then
        "$build/program" "$count" >"$build/output" || status=1
    else
        echo "not ok $((count + 1)) - $source can be built" >"$build/output"
        status=1
    fi
    cat "$build/output"
    count=$((count + $(grep -cE '^(not )?ok ' "$build/output")))
done
echo "1..$count"
exit "$status"
