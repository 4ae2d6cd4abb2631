#!/usr/bin/env bash
# Follows the documents to the letter, so that they cannot go stale.
#   readme             compiles and runs the README's program, as C and as C++, and compares what it prints
#   install            the README's line to install builds neither tests nor benchmark
#   picture            the README's picture is what the records say, and another record draws another one
#   guide              compiles and runs the programs of docs/guide/c.md and masks-that-change.md; runs the commands of cache.md and troubleshooting.md
#   production         runs the commands and the program of docs/guide/production.md, in a cache of their own
#   adding_a_variant   does what docs/internals/adding-a-variant.md says in a copy of the tree: its file, its line, its commands
#   adding_a_cuda_variant   compiles and links the CUDA file of the same document; checks it where there is a GPU
#   links              every link between the documents leads somewhere
#   lab                experiments are dated notes in docs/lab, and no page of the guide or the internals tells of one;
#                      every page is listed where a reader looks for it
# usage: test_docs.sh readme|install|picture|guide|production|adding_a_variant|links|lab <root of the tree> <build folder>
#        test_docs.sh adding_a_cuda_variant <root of the tree> <build folder> <nvcc> <CUDA headers> <libcudart_static.a> -D...
set -eu
part=$1 root=$2 build=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "FAILED: $*"
    exit 1
}

# The fenced blocks of a document whose fence line is ```$2, each followed by a line of its own
blocks() { # file, word behind the fence, number (all of them where it is not given)
    awk -v fence="\`\`\`$2" -v only="${3:-0}" \
        '$0 == fence { on = !only || ++n == only; next } /^```$/ { if (on) print ""; on = 0 } on' "$1"
}

readme() {
    blocks "$root/README.md" c >"$work/example.c"
    blocks "$root/README.md" output >"$work/expected"
    if [ ! -s "$work/example.c" ] || [ ! -s "$work/expected" ]; then fail "the README has no example"; fi
    compile "$work/example.c" "$work/example"
    "$work/example" >"$work/printed"
    diff -B "$work/expected" "$work/printed"
    read -ra cxx <<<"${CXX:-c++}"
    if command -v "${cxx[0]}" >/dev/null; then # it is C++ too
        "${cxx[@]}" -x c++ -std=c++20 -Wall -pedantic -Werror -DSAT_STATIC -I"$root/include" "$work/example.c" -x none \
            "$build/libsparse_autotune.a" -fopenmp -lm -ldl -lpthread -o "$work/example_cxx"
        "$work/example_cxx" >"$work/printed"
        diff -B "$work/expected" "$work/printed"
    fi
    # The same words as the header's own options: a variable that is read nowhere is a lie.
    while read -r variable; do
        grep -rqw "$variable" "$root/src" || fail "nothing reads $variable"
    done < <(grep -ow 'SPARSE_AUTOTUNE[A-Z_]*' "$root/README.md" | sort -u)
}

# A program of a document: as C, against the library that is built
compile() { # file, program
    local cc
    read -ra cc <<<"${CC:-cc}"
    "${cc[@]}" -std=c11 -Wall -Wextra -Werror "$1" -DSAT_STATIC -I"$root/include" "$build/libsparse_autotune.a" \
        -fopenmp -lm -ldl -lpthread -o "$2"
}

picture() {
    local tree=$work/tree name
    command -v python3 >/dev/null || { echo "skipped: there is no python3" && exit 77; }
    python3 "$root/scripts/draw_readme.py" --check
    mkdir -p "$tree/scripts" "$tree/docs" "$tree/bench/results"
    cp "$root/scripts/draw_readme.py" "$tree/scripts" && cp "$root/docs/speed.svg" "$tree/docs"
    for name in h200 grid-products-h200 grid-attention-h200; do
        cp "$root/bench/results/"{h200,grid-products-h200,grid-attention-h200}.json "$tree/bench/results"
        python3 "$tree/scripts/draw_readme.py" --check || fail "a copy draws another picture"
        sed -i 's/"ratio": [0-9][0-9.e+-]*/"ratio": 3.5/; s/"dense_cublas": [0-9][0-9.e+-]*/"dense_cublas": 3.5/' "$tree/bench/results/$name.json"
        if python3 "$tree/scripts/draw_readme.py" --check >"$work/said"; then fail "the picture does not depend on $name.json"; fi
        grep -q 'not what the records say' "$work/said" || fail "the picture cannot be drawn from another $name.json"
    done
    grep -q 'docs/speed.svg' "$root/README.md" || fail "the README does not show the picture"
}

# A program of a page prints what the page says.
program() { # page of the guide, number of the program where there are several
    blocks "$root/docs/guide/$1.md" c "${2:-0}" >"$work/example.c"
    blocks "$root/docs/guide/$1.md" output "${2:-0}" >"$work/expected"
    if [ ! -s "$work/example.c" ] || [ ! -s "$work/expected" ]; then fail "$1.md has no program"; fi
    compile "$work/example.c" "$work/example"
    "$work/example" >"$work/printed"
    diff -B "$work/expected" "$work/printed"
}

# The commands of a page, in a cache of their own
commands() { # page of the guide
    blocks "$root/docs/guide/$1.md" sh >"$work/commands"
    [ -s "$work/commands" ] || fail "$1.md has no commands"
    mkdir -p "$work/here"
    (cd "$work/here" && PATH=$build:$PATH SPARSE_AUTOTUNE_CACHE=$work/here/mine bash -eu "$work/commands") >"$work/output" 2>&1 ||
        { cat "$work/output" && fail "a command of $1.md"; }
}

guide() {
    program c
    program masks-that-change 1
    program masks-that-change 2
    local page
    for page in cache troubleshooting; do commands "$page"; done
    grep -q 'right' "$work/output" || { cat "$work/output" && fail "check says nothing"; }
}

production() {
    program production
    commands production
    grep -q "^1 entry in $work/here/own" "$work/output" || { cat "$work/output" && fail "the shipped entry is not found"; }
}

# Its first command is run; what it would build is then known.
install() {
    local line
    line=$(blocks "$root/README.md" "" | grep '^cmake -S') || fail "the README has no line to install"
    (cd "$work" && read -ra words <<<"${line%% && *}" && "${words[@]/#./$root}" -DSAT_CUDA=OFF) >"$work/log" || { cat "$work/log" && exit 1; }
    grep -q '/src/cli/main.c"' "$work/build/compile_commands.json" || fail "the command line is not built"
    if grep -E '"file": ".*/(tests|bench)/' "$work/build/compile_commands.json"; then fail "those are built too"; fi
}

document=$root/docs/internals/adding-a-variant.md copy=$work/tree
# A copy of the tree with the document's file and line of a backend
copy_and_add() {
    local file
    mkdir "$copy"
    tar -C "$root" --exclude=./.git --exclude='./build*' -cf - . | tar -C "$copy" -xf -
    while read -r file; do
        blocks "$document" "c $file" >"$work/block"
        case $file in
        *.def) cat "$work/block" >>"$copy/$file" ;;
        *) if [ -e "$copy/$file" ]; then fail "$file is there already"; else cp "$work/block" "$copy/$file"; fi ;;
        esac
    done < <(sed -n "s,^\`\`\`c \(src/kernels/$1/.*\)$,\1,p" "$document")
    bash "$copy/scripts/check_layout.sh"
}

# Its variant of a backend
name_of() { blocks "$document" "c src/kernels/$1/variants.def" | sed -n 's/^SAT_VARIANT(\([a-z0-9_]*\),.*/\1/p'; }

adding_a_variant() {
    local name
    copy_and_add cpu
    name=$(name_of cpu)
    blocks "$document" sh >"$work/commands"
    if [ -z "$name" ] || [ ! -s "$work/commands" ]; then fail "the document adds nothing"; fi
    (cd "$copy" && bash -eux "$work/commands") >"$work/output" 2>&1 || { cat "$work/output" && fail "a command of it"; }
    tail -n 40 "$work/output"
    "$copy/build/sparse_autotune" variants | grep -w "$name" || fail "variants does not list $name"
}

# All of a CUDA build takes minutes: only this file is compiled, and the list of variants; the rest is the build's.
adding_a_cuda_variant() {
    local nvcc=$1 headers=$2 runtime=$3 name file cc libraries=(-fopenmp -lm -ldl -lpthread -lrt)
    shift 3
    copy_and_add cuda
    name=$(name_of cuda) file=$(sed -n 's/^```c \(.*\.cu\)$/\1/p' "$document")
    if [ -z "$name" ] || [ -z "$file" ]; then fail "the document adds nothing"; fi
    "$nvcc" -std=c++20 -arch=sm_80 -Werror=all-warnings -Xcompiler=-Wall,-Werror,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics \
        -I"$root/include" -I"$root/src" -isystem "$headers" -c "$copy/$file" -o "$work/variant.o"
    cat >"$work/list.c" <<END
#include "core/registry.h"
int main(void) {
    static sat_registry r;
    return sat_registry_open(&r, SAT_CUDA) != SAT_OK || !sat_registry_find(&r, "$name");
}
END
    read -ra cc <<<"${CC:-cc}"
    for source in "$copy/src/core/registry.c" "$work/list.c"; do
        "${cc[@]}" -std=c11 "$@" -I"$copy/include" -I"$copy/src" -c "$source" -o "$work/$(basename "$source" .c).o"
    done
    local parts=("$work/registry.o" "$work/variant.o" "$build/libsparse_autotune.a" "$runtime" "${libraries[@]}")
    "${cc[@]}" "$work/list.o" "${parts[@]}" -o "$work/list"
    "$work/list" || fail "the registry does not know $name"
    "${cc[@]}" "$build"/CMakeFiles/sparse_autotune_cli.dir/src/cli/{,check/}*.o "${parts[@]}" -o "$work/sparse_autotune"
    if ! "$work/sparse_autotune" info --device cuda >/dev/null 2>&1; then
        echo "not checked: there is no GPU"
    else
        "$work/sparse_autotune" check --device cuda --only "$name" --cases 200 || fail "$name"
    fi
}

# What a document's headings are called in links: small letters, spaces as -, no other signs
anchors() { sed -n '/^```/,/^```/d; s/^##* //p' "$1" | tr '[:upper:] ' '[:lower:]-' | sed 's/[^a-z0-9_-]//g'; }

links() {
    local failed=0 found=0 document target file
    while read -r document; do
        while read -r target; do
            case $target in http*://* | mailto:*) continue ;; esac
            found=$((found + 1)) file=$(dirname "$document")/${target%%#*}
            if [ "${target%%#*}" = "" ]; then file=$document; fi
            [ -e "$file" ] || { echo "FAILED: $document: no $target" && failed=1 && continue; }
            case $target in
            *.md#* | '#'*) anchors "$file" | grep -qx -e "${target#*#}" || { echo "FAILED: $document: no heading for $target" && failed=1; } ;;
            esac
        done < <(grep -o '](\([^)]*\))' "$document" | sed 's/^](//; s/)$//')
    done < <(find "$root" -path "$root/build*" -prune -o -path '*/.*' -prune -o -path '*/target' -prune -o -name '*.md' -print)
    [ $found -gt 50 ] || fail "only $found links were found"
    return $failed
}

# What tells of an experiment: a heading, a date outside of links and of what bench/gpu/pages.py writes, or such words.
told='(was|were|been|we|what we) tried|tried and|(was|were) (taken back|left out|dropped) again|did not help|made no difference|that day|was once|it began at'
experiments() { # pages; what stands in fences is an example
    local page
    for page in "$@"; do
        sed '/^```/,/^```/d; /<!-- measured: begin/,/<!-- measured: end/d; s/\](\([^)]*\))/]/g; s/`[^`]*`//g' "$page" |
            grep -niE -e '^#+ .*(tried|experiment|rejected|learnt|taken back)' -e '20[0-9]{2}-[01][0-9]-[0-3][0-9]' -e "\\b($told)\\b" |
            sed "s,^[0-9]*,$page tells of an experiment,"
    done
}

listed() { # tree; every page is in the site's list, every note in the lab's
    local page
    for page in "$1"/docs/guide/*.md "$1"/docs/internals/*.md; do
        grep -q "${page#"$1"/docs/}" "$1/mkdocs.yml" || echo "$page: mkdocs.yml does not list it"
    done
    for page in "$1"/docs/lab/*.md; do
        [ "${page##*/}" = README.md ] && continue
        [[ ${page##*/} =~ ^20[0-9]{2}-[01][0-9]-[0-3][0-9]-[a-z0-9-]+\.md$ ]] || echo "$page: its name does not begin with its date"
        grep -q "(${page##*/})" "$1/docs/lab/README.md" || echo "$page: docs/lab/README.md does not list it"
    done
}

lab() {
    local line found page=$work/docs/guide/planted.md
    { experiments "$root"/docs/guide/*.md "$root"/docs/internals/*.md && listed "$root"; } >"$work/found"
    if [ -s "$work/found" ]; then cat "$work/found" && fail "experiments belong into docs/lab"; fi
    # The same with faults that are planted, so that it cannot pass by seeing nothing.
    mkdir -p "$work/docs/guide" "$work/docs/internals" "$work/docs/lab"
    for line in '## What was tried' '### Experiments' 'On 2026-11-15 it took 3 us.' 'A larger tile was tried: 41.1 us.' 'That did not help.'; do
        echo "$line" >"$page"
        [ -n "$(experiments "$page")" ] || fail "nothing sees: $line"
    done
    echo 'It is as fast as [this note](../lab/2026-11-15-burn-products.md) says.' >"$page"
    [ -z "$(experiments "$page")" ] || fail "a link to a note is called an experiment"
    echo 'nav:' >"$work/mkdocs.yml" && cp "$page" "$work/docs/internals/" && touch "$work/docs/lab/"{README,2026-11-15-note,undated}.md
    found=$(listed "$work")
    [ "$(wc -l <<<"$found")" = 5 ] || { echo "$found" && fail "pages that are not listed are not all seen"; }
}

"$part" "$@"
echo "ok: $part"
