#!/bin/sh
# Runs the tests and prints TAP.

. "$(dirname "$0")/tap.sh"

# make FILE...: each file holds its own name.
make() {
    for file; do
        printf '%s\n' "$file" >"$file"
    done
}

# exits CODE ARGUMENT...: the command ends with this code.
exits() {
    expected=$1
    shift
    rotate_logs "$@"
    code=$?
    [ "$code" -eq "$expected" ] || { echo "exit code $code, expected $expected"; return 1; }
}

# The names in a directory, sorted, in one line.
names() {
    (cd "$1" && LC_ALL=C ls -A | tr '\n' ' ')
}

same() {
    [ "$1" = "$2" ] || { printf 'got:  %s\nwant: %s\n' "$1" "$2"; return 1; }
}

first_rotation() {
    make app.log
    rotate_logs . && has app.log.1 app.log && has app.log ""
}
check "the log becomes the first old log" first_rotation

second_rotation() {
    make app.log app.log.1
    rotate_logs . && has app.log.1 app.log && has app.log.2 app.log.1
}
check "old logs move up" second_rotation

several_logs() {
    make a.log b.log c.txt
    rotate_logs . && same "$(names .)" "a.log a.log.1 b.log b.log.1 c.txt "
}
check "every log of the directory is rotated" several_logs

empty_log() {
    : >app.log
    make app.log.1
    rotate_logs . && has app.log.1 app.log.1 && same "$(names .)" "app.log app.log.1 "
}
check "an empty log is not rotated" empty_log

missing_directory() {
    exits 2 none
}
check "a missing directory is exit code 2" missing_directory

no_directory() {
    exits 2 && exits 2 -k 3
}
check "no directory is exit code 2" no_directory

no_logs() {
    mkdir logs
    exits 0 logs && same "$(names logs)" ""
}
check "a directory without logs is no error" no_logs

hidden_logs() {
    make .x.log
    exits 0 . && same "$(names .)" ".x.log "
}
check "hidden logs are ignored" hidden_logs

keep_exact() {
    make app.log app.log.1 app.log.2 app.log.3
    rotate_logs -k 3 . && has app.log.3 app.log.2 && same "$(names .)" "app.log app.log.1 app.log.2 app.log.3 "
}
check "exactly COUNT old logs are kept" keep_exact

keep_default() {
    make app.log app.log.1 app.log.2 app.log.3 app.log.4 app.log.5
    rotate_logs . && has app.log.5 app.log.4 && lacks app.log.6
}
check "five old logs are kept by default" keep_default

keep_many() {
    make app.log
    for number in 1 2 3 4 5 6 7 8 9 10 11 12; do make "app.log.$number"; done
    rotate_logs -k 20 . || return 1
    for number in 1 2 3 4 5 6 7 8 9 10 11 12; do has "app.log.$((number + 1))" "app.log.$number" || return 1; done
    has app.log.1 app.log
}
check "ten and more old logs move up in the right order" keep_many

keep_fewer() {
    make app.log app.log.1 app.log.2 app.log.3 app.log.9 app.log.10 app.log.100
    rotate_logs -k 2 . && has app.log.1 app.log && has app.log.2 app.log.1 &&
        same "$(names .)" "app.log app.log.1 app.log.2 "
}
check "old logs beyond a smaller COUNT are removed" keep_fewer

keep_fewer_of_empty() {
    : >app.log
    make app.log.1 app.log.2 app.log.3
    rotate_logs -k 2 . && has app.log.1 app.log.1 && has app.log.2 app.log.2 && lacks app.log.3
}
check "old logs beyond COUNT are removed for an empty log too" keep_fewer_of_empty

keep_none() {
    make app.log app.log.1 app.log.2
    rotate_logs -k 0 . && has app.log "" && same "$(names .)" "app.log "
}
check "with a COUNT of 0 the log is emptied" keep_none

gaps() {
    make app.log app.log.1 app.log.4
    rotate_logs -k 5 . && has app.log.2 app.log.1 && has app.log.5 app.log.4 &&
        same "$(names .)" "app.log app.log.1 app.log.2 app.log.5 "
}
check "gaps stay gaps" gaps

leading_zero_count() {
    make app.log app.log.7 app.log.8
    rotate_logs -k 08 . && has app.log.8 app.log.7 && lacks app.log.9
}
check "a COUNT with a leading zero is decimal" leading_zero_count

wrong_counts() {
    make app.log app.log.1
    for count in abc "" -1 +2 1.5 "2 3" 3x; do
        exits 2 -k "$count" . || { echo "for -k '$count'"; return 1; }
        [ -n "$(rotate_logs -k "$count" . 2>&1 >/dev/null)" ] || { echo "no message for '$count'"; return 1; }
    done
    same "$(names .)" "app.log app.log.1 " && has app.log app.log && has app.log.1 app.log.1
}
check "a wrong COUNT is exit code 2 and changes nothing" wrong_counts

other_suffixes() {
    make app.log app.log.1 app.log.bak app.log.1.gz app.log.01 app.log. app.log.0 app.log.2x
    rotate_logs -k 1 . && has app.log.1 app.log || return 1
    for file in app.log.bak app.log.1.gz app.log.01 app.log. app.log.0 app.log.2x; do
        has "$file" "$file" || return 1
    done
}
check "files that are no old logs are not touched" other_suffixes

spaces() {
    mkdir "my logs"
    make "my logs/web server.log" "my logs/web server.log.1"
    exits 0 -k 3 "my logs" || return 1
    has "my logs/web server.log.1" "my logs/web server.log" && has "my logs/web server.log" "" &&
        has "my logs/web server.log.2" "my logs/web server.log.1"
}
check "names with spaces" spaces

special_characters() {
    mkdir 'a [b] *'
    make 'a [b] */w[1].log' 'a [b] */w[1].log.1' 'a [b] */w1.log.2' 'a [b] */"q" \n $x.log' "a [b] */	tab's ?.log"
    exits 0 -k 1 'a [b] *' || return 1
    has 'a [b] */w[1].log.1' 'a [b] */w[1].log' && has 'a [b] */w1.log.2' 'a [b] */w1.log.2' &&
        has 'a [b] */"q" \n $x.log.1' 'a [b] */"q" \n $x.log' && has "a [b] */	tab's ?.log.1" "a [b] */	tab's ?.log"
}
check "names with special characters" special_characters

leading_dash() {
    mkdir ./-dir
    make ./-dir/-x.log
    exits 0 -k 2 -- -dir && has ./-dir/-x.log.1 ./-dir/-x.log && has ./-dir/-x.log ""
}
check "names with a leading dash" leading_dash

installed_with_spaces() {
    mkdir "my tools" logs
    cp -R "$tap_root/bin" "$tap_root/lib" "my tools"
    make logs/app.log
    "${TEST_SHELL:-sh}" "my tools/bin/rotate-logs" logs && has logs/app.log.1 logs/app.log
}
check "the scripts themselves in a directory with spaces" installed_with_spaces

not_files() {
    mkdir logs logs/dir.log
    make target "logs/dir.log/inner.log"
    ln -s ../target logs/link.log
    exits 0 logs && same "$(names logs)" "dir.log link.log " && has target target &&
        same "$(names logs/dir.log)" "inner.log "
}
check "directories and symbolic links are left alone" not_files

dry_run() {
    mkdir "my logs"
    make "my logs/a b.log" "my logs/a b.log.1" "my logs/a b.log.2" "my logs/a b.log.bak"
    printed=$(rotate_logs -n -k 2 "my logs") || return 1
    same "$printed" "remove my logs/a b.log.2
move my logs/a b.log.1 -> my logs/a b.log.2
move my logs/a b.log -> my logs/a b.log.1
create my logs/a b.log" && has "my logs/a b.log" "my logs/a b.log" && has "my logs/a b.log.2" "my logs/a b.log.2"
}
check "a dry run prints the steps and changes nothing" dry_run

dry_run_none() {
    make app.log app.log.1
    : >idle.log
    printed=$(rotate_logs -n -k 0 .) || return 1
    same "$printed" "remove ./app.log.1
create ./app.log" && has app.log app.log && has app.log.1 app.log.1
}
check "a dry run with a COUNT of 0" dry_run_none

finish
