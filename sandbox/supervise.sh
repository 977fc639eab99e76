#!/bin/sh
# The main process of a box. Starts the job's command in a session of its own, ends all of it at the time limit, has the
# patch captured, and hands everything out. POSIX sh, so that it works in any image.
#
#   supervise.sh --limit S --grace S --tools DIR --cwd DIR [--boxed] [--unpack] [--secret] [--stdout] [--capture REPO]
#                -- COMMAND...
#
# stdin begins with a line that holds the word which marks our lines as ours; the command never sees it.
# stdout carries the handout (see backends/handout.py): begin · ended CODE HOW · note TEXT · file NAME SIZE · done.
# stderr carries all output of the command, in the order it was written.
#   --boxed   this box has a process namespace of its own, so every other process in it may be killed
#   --secret  the second line of stdin is for the command, as the one line of its own stdin
#   --stdout  the command's stdout goes out on ours, between the handout's lines, and only its stderr on stderr
#   --unpack  a tar archive of the run's own files comes on stdin, behind those lines
#   --capture make diff.patch of REPO, when this image has git; without it the patch is made outside
set -u
limit= grace=5 tools= cwd= boxed= unpack= secret= stdout= capture=
while [ "$1" != -- ]; do
    case $1 in
        --limit) limit=$2; shift ;;
        --grace) grace=$2; shift ;;
        --tools) tools=$2; shift ;;
        --cwd) cwd=$2; shift ;;
        --capture) capture=$2; shift ;;
        --boxed) boxed=1 ;;
        --unpack) unpack=1 ;;
        --secret) secret=1 ;;
        --stdout) stdout=1 ;;
    esac
    shift
done
shift
PATH=$PATH:/usr/local/bin:/usr/bin:/bin # whatever the job's own variables say, we find our tools
exec 3>&1 1>&2
IFS= read -r word
[ -z "$secret" ] || IFS= read -r secret
say() { printf '\n%s %s\n' "$word" "$*" >&3; }

if [ -n "$unpack" ] && ! tar -xf - -C "$tools/in"; then
    say "note the run's files could not be unpacked"
    exit 1
fi
if ! cd "$cwd"; then
    say "note cannot enter $cwd"
    exit 1
fi

timed_out=
agent=
end_agent() {
    timed_out=1
    [ -n "$agent" ] || return 0 # not known yet: done as soon as it is
    kill -s TERM -- "-$agent" 2>/dev/null || kill -s TERM "$agent" 2>/dev/null # it may not have its session yet
    (sleep "$grace"; kill -s KILL -- "-$agent" "$agent") 2>/dev/null 3>&- &
}

trap end_agent USR1 # before the command, which could send it at once
say begin
if command -v setsid >/dev/null 2>&1; then
    start() { exec setsid "$@"; }
else
    start() { exec "$@"; }
    set -m # its own process group is the next best thing
fi
if [ -n "$stdout" ]; then exec 4>&3; else exec 4>&1; fi
if [ -n "$secret" ]; then
    printf '%s\n' "$secret" | start "$@" >&4 3>&- 4>&- &
else
    start "$@" </dev/null >&4 3>&- 4>&- &
fi
agent=$!
exec 4>&-
secret=
set +m
[ -z "$timed_out" ] || end_agent
(sleep "$limit" && kill -s USR1 $$) </dev/null >/dev/null 2>&1 3>&- &
timer=$!
wait "$agent" 2>/dev/null # some shells say "Terminated" here, which would pass for the command's last words
code=$?
if [ -n "$timed_out" ]; then
    wait "$agent" 2>/dev/null
    code=124
fi
trap '' USR1

# Whatever the command left running must not change files while they are captured.
if [ -n "$boxed" ]; then
    kill -s KILL -- -1 2>/dev/null
else
    kill -s KILL -- "-$agent" 2>/dev/null
    kill -s KILL "$timer" 2>/dev/null
fi
if [ -n "$timed_out" ]; then say "ended $code timeout"; else say "ended $code exited"; fi

hand_out() { # NAME FILE
    if [ -f "$2" ] && [ ! -L "$2" ] && [ -r "$2" ]; then
        say "file $1 $(($(wc -c <"$2")))"
        cat "$2" >&3
    fi
}

hand_out notes.md "$tools/out/notes.md"
hand_out results.xml "$tools/out/results.xml"
if [ -n "$capture" ] && command -v git >/dev/null 2>&1; then
    scratch=$(mktemp -d "$tools/out/.capture.XXXXXX") &&
        if sh "$tools/capture.sh" "$tools/base.git" "$capture" "$scratch"; then
            hand_out skipped.txt "$scratch/skipped.txt"
            hand_out diff.patch "$scratch/diff.patch"
        else
            say "note the patch could not be captured in the box"
        fi
fi
say done
