#!/bin/sh
# The main process of a box. Starts the job's command in a session of its own, ends all of it at the time limit or when
# it is sent SIGTERM, has the patch captured, and hands everything out. POSIX sh, so that it works in any image.
#
#   supervise.sh --limit S --grace S --ttl S --handout-ttl S --tools DIR --cwd DIR [--boxed] [--unpack] [--secret]
#                [--stdout] [--capture REPO] -- COMMAND...
#
# stdin begins with a line that holds the word which marks our lines as ours; the command never sees it.
# stdout carries the handout (see backends/handout.py): begin · ended CODE HOW · note TEXT · file NAME SIZE · done.
# HOW is exited, timeout or cancelled.
# stderr carries all output of the command, in the order it was written.
#   --ttl     this box ends itself after so long, should nobody be left outside to do it
#   --handout-ttl  the same from the command's end on
#   --boxed   this box has a process namespace of its own, so every other process in it may be killed
#   --secret  the second line of stdin is for the command, as the one line of its own stdin
#   --stdout  the command's stdout goes out on ours, between the handout's lines, and only its stderr on stderr
#   --unpack  a tar archive of the run's own files comes on stdin, behind those lines
#   --capture make diff.patch of REPO, when this image has git; without it the patch is made outside
set -u
limit= grace=5 ttl= handout_ttl= tools= cwd= boxed= unpack= secret= stdout= capture=
while [ "$1" != -- ]; do
    case $1 in
        --limit) limit=$2; shift ;;
        --grace) grace=$2; shift ;;
        --ttl) ttl=$2; shift ;;
        --handout-ttl) handout_ttl=$2; shift ;;
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

start_time() { # PID: tells two processes of one pid apart
    { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 0
    set -- ${stat##*) }
    echo "${20-}"
}

is_running() { # PID: it is there, and not only as a zombie
    [ -r /proc/self/stat ] || { kill -s 0 "$1" 2>/dev/null; return; }
    { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1
    stat=${stat##*) }
    [ "${stat%% *}" != Z ]
}

# Killing this process ends a box with walls. Without them its helpers and the command are killed too, and the pid may be
# another's by then.
end_by_itself() { # SECONDS
    [ -n "$1" ] || return 0
    (
        sleep "$1" || exit
        if [ -z "$boxed" ]; then
            [ "$(start_time $$)" = "$born" ] || exit
            kill -s KILL -- "-$agent"
            kill -s KILL -- "-$$"
        fi
        kill -s KILL $$
    ) </dev/null >/dev/null 2>&1 3>&- 4>&- &
    life=$!
}

ending= # why the command must end: the first reason counts
asked=  # whether it was told so while it ran
agent= life= killer=
end_agent() { # WHY
    ending=${ending:-$1}
    [ -n "$agent" ] || return 0 # not known yet: done as soon as it is
    [ -z "$asked" ] && is_running "$agent" || return 0
    asked=1
    kill -s TERM -- "-$agent" 2>/dev/null || kill -s TERM "$agent" 2>/dev/null # it may not have its session yet
    (sleep "$grace"; kill -s KILL -- "-$agent" "$agent") </dev/null >/dev/null 2>&1 3>&- 4>&- &
    killer=$!
}
trap 'end_agent timeout' USR1 # before the command, which could send it at once
trap 'end_agent cancelled' TERM

born=
if [ -n "$boxed" ]; then end_by_itself "$ttl"; else born=$(start_time $$); fi
IFS= read -r word || exit 1 # whoever started this box is gone
[ -z "$secret" ] || IFS= read -r secret || exit 1
say() { printf '\n%s %s\n' "$word" "$*" >&3; }

if [ -n "$unpack" ] && ! tar -xf - -C "$tools/in"; then
    say "note the run's files could not be unpacked"
    exit 1
fi
if ! cd "$cwd"; then
    say "note cannot enter $cwd"
    exit 1
fi

[ -z "$ending" ] || exit 1
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
[ -z "$ending" ] || end_agent
(sleep "$limit" && kill -s USR1 $$) </dev/null >/dev/null 2>&1 3>&- &
timer=$!
[ -n "$boxed" ] || [ -z "$born" ] || end_by_itself "$ttl"
wait "$agent" 2>/dev/null # some shells say "Terminated" here, which would pass for the command's last words
code=$?
how=exited
if [ -n "$ending" ]; then # a signal may have cut the wait short
    while is_running "$agent"; do wait "$agent" 2>/dev/null; done
    wait "$agent" 2>/dev/null
    again=$?
    [ "$again" = 127 ] || code=$again # 127: the first wait saw its end
fi
trap '' USR1 TERM
if [ -n "$asked" ]; then # else it ended by itself, just before
    how=$ending
    case $how in timeout) code=124 ;; *) code=143 ;; esac
fi

# Whatever the command left running must not change files while they are captured.
if [ -n "$boxed" ]; then
    kill -s KILL -- -1 2>/dev/null
    end_by_itself "$handout_ttl" # the one before was killed too
else
    kill -s KILL -- "-$agent" 2>/dev/null
    for helper in "$timer" $killer; do kill -s KILL "$helper" 2>/dev/null; done
fi
say "ended $code $how"

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
[ -n "$boxed" ] || [ -z "$life" ] || kill -s KILL "$life" 2>/dev/null
