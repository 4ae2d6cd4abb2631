#!/usr/bin/env bash
# What a program that was built with the frozen header relies on is as it was: every constant, every field's place and
# size, and no struct that became smaller.
# usage: test_abi.sh <layout by the frozen header> <layout by the current one>
set -eu
frozen=$1 current=$2
if ! awk '
    NR == FNR { now[$1 " " $2] = $0; size[$1 " " $2] = $3; next }
    !(($1 " " $2) in now) { print "FAILED: gone: " $0; bad = 1; next }
    $1 == "struct" && size[$1 " " $2] < $3 { print "FAILED: became smaller: " $0; bad = 1 }
    $1 != "struct" && now[$1 " " $2] != $0 { print "FAILED: was: " $0 ", is: " now[$1 " " $2]; bad = 1 }
    END { exit bad }' <("$current") <("$frozen"); then
    exit 1
fi
echo "ok: $("$frozen" | wc -l) lines as they were"
