#!/usr/bin/env bash
# The shared library exports the functions of the header, all of them and nothing else; the static one puts nothing
# into a program's name space that does not begin with sat_.
# usage: test_symbols.sh <root of the tree> <shared library> <static library>
set -eu
root=$1 shared=$2 static=$3
command -v nm >/dev/null || { echo "skipped: there is no nm"; exit 77; }

declared=$(tr '\n' ' ' <"$root/include/sparse_autotune.h" | sed 's,/\*[^*]*\*\+\([^/*][^*]*\*\+\)*/,,g' |
    grep -o 'SAT_API [^;(]*(' | grep -o 'sat_[a-z0-9_]*($' | tr -d '(' | sort -u)
# Sanitizers and compilers bring symbols of their own, which begin with an underscore or a dot.
exported=$(nm -D --defined-only "$shared" | awk '{ print $NF }' | sed 's/@.*//' | grep -v '^_' | sort -u)
if ! diff <(echo "$declared") <(echo "$exported"); then
    echo "FAILED: < is declared in the header but not exported, > is exported but not declared"
    exit 1
fi
stray=$(nm -g --defined-only "$static" 2>/dev/null | awk 'NF == 3 { print $3 }' | grep -v '^\(sat_\|_\|\.\)' || true)
if [ -n "$stray" ]; then
    printf 'FAILED: the static library defines names that are not its own:\n%s\n' "$stray"
    exit 1
fi
echo "ok: $(wc -l <<<"$declared") functions exported, nothing else"
