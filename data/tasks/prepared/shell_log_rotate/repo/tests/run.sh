#!/bin/sh
# Runs the tests and prints TAP.

. "$(dirname "$0")/tap.sh"

first_rotation() {
    echo one >app.log
    rotate_logs . && has app.log.1 one && has app.log ""
}
check "the log becomes the first old log" first_rotation

second_rotation() {
    echo new >app.log
    echo old >app.log.1
    rotate_logs . && has app.log.1 new && has app.log.2 old
}
check "old logs move up" second_rotation

empty_log() {
    : >app.log
    rotate_logs . && lacks app.log.1
}
check "an empty log is not rotated" empty_log

missing_directory() {
    rotate_logs none
    [ $? -eq 2 ]
}
check "a missing directory is exit code 2" missing_directory

finish
