#!/bin/sh
# make-sample-logs.sh DIR: make a directory of logs on which rotate-logs goes wrong.

set -eu

mkdir -p "$1"
cd "$1"

for number in 12 11 10 9 8 7 6 5 4 3 2 1; do
    echo "app, old log $number" >"app.log.$number"
done
echo "app, now" >app.log
echo "kept by hand" >app.log.bak

echo "web server, now" >"web server.log"
echo "web server, old log 1" >"web server.log.1"

echo "worker, now" >"worker [1].log"
: >idle.log
