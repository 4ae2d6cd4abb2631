#!/usr/bin/env bash
# Follows the documents to the letter, so that they cannot go stale.
#   readme             compiles and runs the README's program and compares what it prints
#   adding_a_variant   does what docs/adding-a-variant.md says in a copy of the tree: its file, its line, its commands
#   links              every link between the documents leads somewhere
# usage: test_docs.sh readme|adding_a_variant|links <root of the tree> <build folder>
set -eu
part=$1 root=$2 build=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "FAILED: $*"
    exit 1
}

# The fenced blocks of a document whose fence line is ```$2, each followed by a line of its own
blocks() { awk -v fence="\`\`\`$2" '$0 == fence { on = 1; next } /^```$/ { if (on) print ""; on = 0 } on' "$1"; }

readme() {
    blocks "$root/README.md" c >"$work/example.c"
    blocks "$root/README.md" output >"$work/expected"
    if [ ! -s "$work/example.c" ] || [ ! -s "$work/expected" ]; then fail "the README has no example"; fi
    read -ra cc <<<"${CC:-cc}"
    "${cc[@]}" -std=c11 -Wall -Wextra -Werror "$work/example.c" -DSAT_STATIC -I"$root/include" "$build/libsparse_autotune.a" \
        -fopenmp -lm -ldl -lpthread -o "$work/example"
    "$work/example" >"$work/printed"
    diff -B "$work/expected" "$work/printed"
    # The same words as the header's own options: a variable that is read nowhere is a lie.
    while read -r variable; do
        grep -rqw "$variable" "$root/src" || fail "nothing reads $variable"
    done < <(grep -ow 'SPARSE_AUTOTUNE[A-Z_]*' "$root/README.md" | sort -u)
}

adding_a_variant() {
    local document=$root/docs/adding-a-variant.md copy=$work/tree file name
    mkdir "$copy"
    tar -C "$root" --exclude=./.git --exclude='./build*' -cf - . | tar -C "$copy" -xf -
    while read -r file; do
        blocks "$document" "c $file" >"$work/block"
        case $file in
        *.def) cat "$work/block" >>"$copy/$file" ;;
        *) if [ -e "$copy/$file" ]; then fail "$file is there already"; else cp "$work/block" "$copy/$file"; fi ;;
        esac
    done < <(sed -n 's/^```c \(.*\)$/\1/p' "$document")
    name=$(blocks "$document" 'c src/kernels/cpu/variants.def' | sed -n 's/^SAT_VARIANT(\([a-z0-9_]*\),.*/\1/p')
    blocks "$document" sh >"$work/commands"
    if [ -z "$name" ] || [ ! -s "$work/commands" ]; then fail "the document adds nothing"; fi
    bash "$copy/scripts/check_layout.sh"
    (cd "$copy" && bash -eux "$work/commands") >"$work/output" 2>&1 || { cat "$work/output" && fail "a command of it"; }
    tail -n 40 "$work/output"
    "$copy/build/sparse_autotune" variants | grep -w "$name" || fail "variants does not list $name"
}

links() {
    local failed=0 document target
    for document in "$root"/*.md "$root"/docs/*.md "$root"/src/*.md; do
        while read -r target; do
            case $target in http*://* | mailto:* | '#'*) continue ;; esac
            [ -e "$(dirname "$document")/${target%%#*}" ] || { echo "FAILED: $document: no $target" && failed=1; }
        done < <(grep -o '](\([^)]*\))' "$document" | sed 's/^](//; s/)$//')
    done
    return $failed
}

"$part"
echo "ok: $part"
