#!/bin/sh
# Tests one patch. The command of a scoring box, whose repository is the task's untouched start.
#
#   score.sh IN REPO CWD
#
# IN holds what was made for this patch: `removals` and `folders` (names, each with a NUL behind it), `tree.tar`, and the
# steps to take, NUMBER-NAME.sh, which run one after the other in CWD. A step named setup must succeed, else no other runs.
#
# stdin is one line, a word that nobody else in the box is told. On stdout, between what the steps print there, lines that
# begin with it say where we are: `WORD begin NAME`, `WORD end NAME CODE`. Only a step named pytest is given the word too.
set -u
in=$1 repo=$2 cwd=$3
IFS= read -r word
exec </dev/null
say() { printf '\n%s %s\n' "$word" "$*"; }

say "begin tree"
(
    cd "$repo" || exit 1
    if [ -s "$in/removals" ]; then xargs -0 rm -rf -- <"$in/removals" || exit 1; fi
    # A folder stays when something is left in it that git does not know of, like another, empty folder.
    if [ -s "$in/folders" ]; then xargs -0 rmdir -- <"$in/folders" 2>/dev/null; fi
    tar -xf "$in/tree.tar" || exit 1
) >&2
code=$?
say "end tree $code"
[ "$code" = 0 ] || exit 1
cd "$cwd" || cd "$repo" || exit 1

last=0
for file in "$in"/[0-9]*-*.sh; do
    name=${file##*/[0-9]*-}
    name=${name%.sh}
    say "begin $name"
    case $name in
        pytest*) printf '%s\n' "$word" | sh "$file" ;;
        *) sh "$file" ;;
    esac
    code=$?
    say "end $name $code"
    [ "$name" = metrics ] || last=$code
    if [ "$name" = setup ] && [ "$code" != 0 ]; then break; fi
done; exit "$last" # on one line: a shell that reads on only now would read what a test may have written here
