#!/bin/sh
# Writes what changed in a work tree since its recorded base, as a binary-safe patch.
#
#   capture.sh BASE_GIT TREE OUT [LARGEST_KB [MOST_KB]]
#
# OUT (an existing, empty folder) gets diff.patch and, when something was left out, skipped.txt. Runs in the box, or on
# the host over a tree taken out of one, so the tree is hostile: nothing in it is executed, no link is followed, no
# configuration of it is read. The tree's own .git counts for nothing: commits, a broken index or no .git at all make no
# difference. TREE is used up: nested repositories lose their .git, so that their files count as files.
set -u
base=$1 tree=$2 out=$3 largest_kb=${4:-51200} most_kb=${5:-65536}

# Once more with nothing of the box's environment, and git told where everything is.
if [ "${CAPTURING-}" != "$out" ]; then
    exec env -i CAPTURING="$out" PATH="$PATH:/usr/local/bin:/usr/bin:/bin" HOME="$out" LC_ALL=C GIT_CONFIG_NOSYSTEM=1 \
        GIT_CONFIG_GLOBAL=/dev/null GIT_ATTR_NOSYSTEM=1 GIT_DIR="$base" GIT_INDEX_FILE="$out/index" \
        GIT_OBJECT_DIRECTORY="$out/objects" GIT_TERMINAL_PROMPT=0 GIT_OPTIONAL_LOCKS=0 sh "$0" "$@"
fi
clean_git() {
    git --work-tree="$tree" -c core.fileMode=true -c core.symlinks=true -c core.protectNTFS=false \
        -c core.protectHFS=false -c core.excludesFile=/dev/null -c core.attributesFile=/dev/null \
        -c core.autocrlf=false -c core.fsmonitor=false -c core.untrackedCache=false -c core.hooksPath=/dev/null \
        -c gc.auto=0 "$@"
}

# A folder that was moved away, or a link put in its place, is an empty tree: everything in it was deleted.
if [ -L "$tree" ] || [ ! -d "$tree" ]; then
    tree=$out/empty
    mkdir "$tree" || exit 1
fi
[ -r "$tree" ] && [ -w "$tree" ] && [ -x "$tree" ] || chmod u+rwx "$tree" 2>/dev/null
cd "$tree" || exit 1
mkdir -p "$out/objects/info" && printf '%s\n' "$base/objects" >"$out/objects/info/alternates" || exit 1
clean_git read-tree HEAD || exit 1

# One walk does it all. What the agent closed to its owner is opened again on the way down. Nested repositories lose
# their .git. Pipes, devices and huge files are left out: noted, taken away, and put back as they were in the base.
leave_out() { # LARGEST_KB NOTES
    find . -type d ! -perm -700 -exec chmod u+rwx {} \; ! -type d \
        -o -type f ! -perm -400 -exec chmod u+r {} \; ! -type f \
        -o -path ./.git -prune \
        -o -name .git -prune -exec rm -rf -- {} + \
        -o \( ! -type f ! -type d ! -type l -o -type f -size +"$1"k \) -exec sh -c '
            notes=$1; shift
            printf "%s\0" "$@" >>"$0/left_out"
            printf "%s\n" "$@" >>"$notes"
            rm -f -- "$@"
        ' "$out" "$2" {} + 2>/dev/null
    [ ! -e "$out/left_out" ] || clean_git checkout-index -q -f -z --stdin <"$out/left_out" 2>/dev/null
}
stage() { # NOTES
    clean_git add -A --ignore-errors 2>"$out/errors"
    case $? in
        0) ;;
        1) sed 's/^/not added: /' "$out/errors" >>"$1" ;;
        *) cat "$out/errors" >&2; exit 1 ;;
    esac
}
write_patch() {
    clean_git diff --cached --binary --full-index --no-color --no-ext-diff --no-textconv --src-prefix=a/ \
        --dst-prefix=b/ "$@" HEAD >"$out/diff.patch"
}
is_too_large() { [ $(($(wc -c <"$out/diff.patch"))) -gt $((most_kb * 1024)) ]; }

leave_out "$largest_kb" "$out/skipped.txt"
stage "$out/skipped.txt"
write_patch --find-renames || exit 1
# Whoever made more than anyone reads made it of large files, most likely: what is small is still a result.
too_much=
if is_too_large; then # what was changed of the source, while all of it is still there
    mv "$out/diff.patch" "$out/whole.patch" && clean_git read-tree HEAD || exit 1
    clean_git add -u --ignore-errors 2>/dev/null
    write_patch && mv "$out/diff.patch" "$out/changed.patch" && mv "$out/whole.patch" "$out/diff.patch" || exit 1
fi
for smaller_kb in 1024 64; do
    is_too_large || break
    clean_git read-tree HEAD || exit 1
    leave_out "$smaller_kb" /dev/null
    stage /dev/null
    write_patch --find-renames || exit 1
    too_much="changed files of more than $smaller_kb KB"
done
if is_too_large; then # of many small ones, then: what came with an installation, most likely, is new
    mv "$out/changed.patch" "$out/diff.patch"
    too_much="new files"
fi
if is_too_large; then
    clean_git read-tree HEAD && clean_git add -u --ignore-errors 2>/dev/null
    write_patch || exit 1
    too_much="new files, and changed files of more than 64 KB"
fi
if is_too_large; then
    : >"$out/diff.patch"
    too_much=everything
fi
[ -z "$too_much" ] || echo "$too_much: the patch would have more than $most_kb KB" >>"$out/skipped.txt"

# A patch must apply. Git refuses a rename to below a link that the same patch takes away, but not the same without one.
if grep -q '^rename to ' "$out/diff.patch"; then
    cp "$out/index" "$out/index.after" && clean_git read-tree HEAD || exit 1
    if ! clean_git apply --cached --check "$out/diff.patch" 2>/dev/null; then
        mv "$out/index.after" "$out/index" && write_patch --no-renames
    fi
fi
