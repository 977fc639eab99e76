# A few lines of TAP. A test is a function that returns 0; it runs in a subshell, in an empty directory of its own.

tap_count=0
tap_failed=0
tap_root=$(cd "$(dirname "$0")/.." && pwd)
tap_scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$tap_scratch"' EXIT

# check DESCRIPTION FUNCTION
check() {
    tap_count=$((tap_count + 1))
    mkdir "$tap_scratch/$tap_count"
    if (cd "$tap_scratch/$tap_count" && "$2") >"$tap_scratch/output" 2>&1; then
        echo "ok $tap_count - $1"
    else
        tap_failed=$((tap_failed + 1))
        echo "not ok $tap_count - $1"
        sed 's/^/# /' "$tap_scratch/output"
    fi
}

finish() {
    echo "1..$tap_count"
    [ "$tap_failed" -eq 0 ]
}

rotate_logs() {
    "${TEST_SHELL:-sh}" "$tap_root/bin/rotate-logs" "$@"
}

# has FILE TEXT: the file is there and holds exactly this line.
has() {
    [ -f "$1" ] || { echo "missing: $1"; return 1; }
    [ "$(cat "$1")" = "$2" ] || { echo "$1 holds $(cat "$1"), not $2"; return 1; }
}

# lacks FILE...: none of the files is there.
lacks() {
    for tap_file; do
        [ ! -e "$tap_file" ] || { echo "still there: $tap_file"; return 1; }
    done
}
