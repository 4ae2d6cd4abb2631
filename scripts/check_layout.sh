#!/usr/bin/env bash
# Checks what no compiler checks: that kernel files and variants.def agree, and that nothing includes upwards.
# usage: check_layout.sh [root of the tree]
set -u
cd "${1:-$(dirname "$0")/..}" || exit 2
failures=0

complain() {
    echo "layout: $*"
    failures=$((failures + 1))
}

# family, variant and instruction-set guard of each line of a variants.def, comments taken out
list_variants() {
    sed -e 's,//.*,,' -e 's,/\*.*\*/,,' "$1" | awk '
        /\/\*/ { comment = 1 } comment { if (/\*\//) comment = 0; next }
        /^[ \t]*#[ \t]*if/ { guard[++depth] = $0; next }
        /^[ \t]*#[ \t]*endif/ { depth--; next }
        { text = text $0 }
        /SAT_VARIANT/ { guards = ""; for (i = 1; i <= depth; i++) guards = guards " " guard[i] }
        text ~ /SAT_VARIANT\([^)]*\)/ {
            gsub(/.*SAT_VARIANT\(|[ \t]/, "", text); split(text, f, ",")
            gsub(/[ \t]+/, " ", guards); print f[2], f[1], guards; text = "" }
        text !~ /SAT_VARIANT/ { text = "" }'
}

# Source files of a folder and of the folders below it
sources_of() { # folder, find's -name patterns
    local folder=$1 names=() name
    shift
    for name in "$@"; do names+=(-o -name "$name"); done
    find "$folder" -type f \( "${names[@]:1}" \) | sort
}

families_of() { sed -n 's/^SAT_FAMILY(\([A-Za-z0-9_]*\)).*/\1/p' "$1"; }

# What must stand around the lines of a file that not every build has
guard_of() {
    sed -n -e 's/.*_\(avx2\|avx512\|avx512bf16\|amx\)\.c$/ifndef SAT_NO_\U\1/p' -e 's/.*_sm90\.cu$/ifndef SAT_NO_SM90/p' \
        -e 's,^src/libs/\(cu.*\.c\|.*\.cu\)$,ifdef SAT_HAVE_CUDA,p' <<<"$1"
}

# How a family's name begins, by the folder that its file is in: src/kernels/cpu/matmul/ has families cpu_matmul_*.
prefix_of() { sed -n 's,^src/kernels/\([a-z]*\)/\([a-z]*\)/.*,\1_\2_,p' <<<"$1"; }

# A file of kernels has a line, a line has a file, and the line goes where the compiler cannot build the file.
check_variants() { # folder
    local folder=$1 def=$1/variants.def lines file files family families guard
    [ -f "$def" ] || return 0
    lines=$(list_variants "$def")
    mapfile -t files < <(sources_of "$folder" '*.c' '*.cu')
    for file in "${files[@]}"; do
        families=$(families_of "$file")
        if [ -z "$families" ] && [ ! -f "${file%.*}.h" ] && [ ! -f "${file%.*}.cuh" ]; then
            complain "$file defines no SAT_FAMILY and has no header of its own: nothing can use it"
        fi
        for family in $families; do
            if [[ $folder == src/kernels/* && -z $(prefix_of "$file") ]]; then
                complain "$file defines SAT_FAMILY($family): it belongs into the folder of its operation"
            elif [[ $family != "$(prefix_of "$file")"* ]]; then
                complain "$file defines SAT_FAMILY($family): its folder is for $(prefix_of "$file")*"
            fi
            if ! grep -q "^$family " <<<"$lines"; then
                complain "$file defines SAT_FAMILY($family), but $def has no line for it"
            fi
            guard=$(guard_of "$file")
            if [ -n "$guard" ] && grep "^$family " <<<"$lines" | grep -qv "$guard\b"; then
                complain "$def: the lines of $family must stand inside #$guard ... #endif"
            fi
        done
    done
    while read -r family; do
        if [ -n "$family" ] && ! grep -hq "^SAT_FAMILY($family)" "${files[@]}" /dev/null; then
            complain "$def names the family $family, but no file of $folder defines SAT_FAMILY($family)"
        fi
    done < <(cut -d' ' -f1 <<<"$lines" | sort -u)
}

check_names() {
    local name
    for name in $(for def in src/kernels/*/variants.def src/libs/variants.def; do
        [ -f "$def" ] && list_variants "$def"
    done | cut -d' ' -f2 | sort | uniq -d); do
        complain "two variants are called $name"
    done
    for def in src/kernels/*/variants.def src/libs/variants.def; do
        [ -f "$def" ] || continue
        for name in $(list_variants "$def" | cut -d' ' -f2); do
            if [[ ! $name =~ ^(cpu|cuda)_(matmul|sampled|attention|attention_backward|grouped|grouped_weights)_(any|f32|f64|f16|bf16)_[a-z0-9]+_[a-z0-9_]+$ ]]; then
                complain "$def: $name is not <backend>_<op>_<dtype>_<block>_<arch>[_<tile>][_<trick>] (docs/internals/naming.md)"
            fi
        done
    done
}

# The folders of src/ are those that CONTRIBUTING.md has; what all of them share stands beside them.
check_folders() {
    local entry
    for entry in src/*; do
        case ${entry#src/} in
        README.md | variant.h | variant.cuh | attention.h | attention.c | groups.h) ;;
        base | core | cache | api | ops | backend | kernels | libs | cli) [ -d "$entry" ] || complain "$entry is no folder" ;;
        *) complain "$entry: no rule says what it is, and what it may include" ;;
        esac
    done
}

# Every "quoted" include of a folder, and of those below it, matches one of the patterns, or is a header of that folder:
# one beside the file, or one named from src/ on.
check_includes() { # folder, extended pattern of what it may include
    local folder=$1 allowed=$2 file header
    for file in $(sources_of "$folder" '*.[ch]' '*.cu' '*.cuh'); do
        while read -r header; do
            [[ $header =~ ^($allowed)$ ]] && continue
            [[ $header != *..* && -f ${file%/*}/$header ]] && continue
            case src/$header in "$folder"/*.h | "$folder"/*.cuh | "$folder"/*.inc) [[ $header != *..* ]] && continue ;; esac
            complain "$file includes \"$header\": $folder may include ${allowed//|/, } and its own headers"
        done < <(sed -n 's/^[ \t]*#[ \t]*include[ \t]*"\([^"]*\)".*/\1/p' "$file")
        while read -r header; do # what is ours goes in quotation marks
            [ ! -f "src/$header" ] || complain "$file includes <$header>: a header of this project is included by \"...\""
        done < <(sed -n 's/^[ \t]*#[ \t]*include[ \t]*<\([^>]*\)>.*/\1/p' "$file")
    done
}

# What every kernel includes may bring nothing from above with it.
check_shared() { # extended pattern of what these may include, files
    local allowed=$1 file header
    shift
    for file in "$@"; do
        while read -r header; do
            [[ $header =~ ^($allowed)$ ]] || complain "$file includes \"$header\": it may include ${allowed//|/, }"
        done < <(sed -n 's/^[ \t]*#[ \t]*include[ \t]*"\([^"]*\)".*/\1/p' "$file")
    done
}

# Headers of this project that a file includes, also through others; variant.*, src/base/ and the public header do not
# count.
headers_of() { # file
    local queue=("$1") seen=" " file line header
    while [ ${#queue[@]} -gt 0 ]; do
        file=${queue[0]} queue=("${queue[@]:1}")
        while read -r line; do
            [[ $line =~ ^[[:space:]]*#[[:space:]]*include[[:space:]]*\"([^\"]+)\" ]] || continue
            header=${file%/*}/${BASH_REMATCH[1]}
            [ -f "$header" ] || header=src/${BASH_REMATCH[1]}
            [[ $header == src/variant.* || $header == src/base/* || ! -f $header || $seen == *" $header "* ]] && continue
            seen+="$header " queue+=("$header")
        done <"$file"
    done
    echo "$seen"
}

# One kernel can be read with few files open, groups.h beside them. A header that gives a file its name (matmul_mma.cuh, matmul_mma_f16.cu) has
# the kernel itself.
check_headers() { # folder, how many headers a kernel may need
    local file header headers
    for file in $(sources_of "$1" '*.c' '*.cu'); do
        headers=
        for header in $(headers_of "$file"); do
            [[ $file == "${header%.*}"[_.]* || $header == src/groups.h ]] || headers+=" $header"
        done
        if [ "$(wc -w <<<"$headers")" -gt "$2" ]; then complain "$file needs more than $2 headers:$headers"; fi
    done
}

# What there is to read for one kernel: its file and those headers.
check_lines() { # most lines, most for a backward pass, which has two kernels; kernel files
    local most file headers lines one=$1 two=$2
    for file in "${@:3}"; do
        most=$one
        [[ $file != *_backward_* ]] || most=$two
        grep -q '^SAT_FAMILY(' "$file" || continue
        read -ra headers <<<"$(headers_of "$file")"
        lines=$(cat "$file" "${headers[@]}" | wc -l)
        echo "layout: $(basename "$file"): $lines lines to read, ${#headers[@]} headers"
        [ "$lines" -le "$most" ] || complain "$file needs $lines lines to be read; $most are allowed"
    done
}

# Words that gave way to those of docs/internals/naming.md. The test that plants one has it in its own text.
check_words() { # extended pattern, files and folders
    local words=$1 place
    shift
    while read -r place; do complain "$place: docs/internals/naming.md has another word"; done < <(grep -IsrnoiwE --exclude=test_layout.sh "$words" "$@")
}

# The names that an enum of the public header has, each with a bar after it: "SAT_CPU|SAT_CUDA|"
enumerators() { # name
    tr '\n' ' ' <include/sparse_autotune.h | grep -oE "typedef enum $1 \{[^}]*\}" | grep -oE '\bSAT_[A-Z0-9_]+' | tr '\n' '|'
}

# What differs from one operation or backend to another is asked of their tables: a file of these folders names none of
# them, and no field of a problem that is an operation's own.
check_names_none() { # folders
    local words line fields='matmul|attention|grouped|transpose|bias|activation'
    words="$(enumerators sat_operation)$(enumerators sat_backend_kind)SAT_(NO_)?TRANSPOSE|SAT_(BIAS|ACT)_[A-Z]+"
    while IFS= read -r line; do
        complain "$line: this folder names no operation, no backend and none of their fields"
    done < <(grep -nE "(^|[^A-Za-z0-9_])($words)([^A-Za-z0-9_]|$)|(->|\.)($fields)([^A-Za-z0-9_(]|$)" "$@" /dev/null)
}

for folder in src/kernels/* src/libs; do
    [ -d "$folder" ] || continue
    check_variants "$folder"
    check_includes "$folder" \
        'variant\.(h|cuh)|base/dtypes\.def|attention\.h|groups\.h|kernels/cuda/variants\.def|kernels/attention_schedule\.h|sparse_autotune\.h'
done
check_names
check_folders
check_includes src/base 'sparse_autotune\.h|base/dtypes\.def'
check_includes src/cache 'sparse_autotune\.h|base/[a-z_]+\.(h|def)'
check_includes src/cli 'sparse_autotune\.h|\.\./[a-z_]+\.h'
check_includes src/ops 'sparse_autotune\.h|variant\.h|attention\.h|groups\.h|base/[a-z_]+\.(h|def)'
check_includes src/backend 'sparse_autotune\.h|variant\.(h|cuh)|attention\.h|groups\.h|base/[a-z_]+\.h|ops/[a-z_]+\.h'
check_includes src/core \
    'sparse_autotune\.h|variant\.h|(base|cache)/[a-z_]+\.h|ops/op\.h|backend/backend\.h|(kernels/[a-z]+|libs)/variants\.def'
check_includes src/api 'sparse_autotune\.h|(base|core)/[a-z_]+\.h'
check_includes include ''
check_shared 'sparse_autotune\.h|(variant|attention)\.h|base/[a-z_]+\.(h|def)' src/variant.h src/variant.cuh src/attention.[ch] src/groups.h
check_names_none src/base/*.[ch] src/cache/*.[ch] src/core/*.[ch]
check_headers src/kernels/cpu 5
check_headers src/kernels/cuda 5
check_lines 1450 1920 src/kernels/cuda/*/*_sm90.cu
gone='sat_(deal|dealt|coming|piece|join|cta_work|device_work)|row_mask|sat_(some|registers)_[a-z]+|desks?|dealt|company|sat_(matmul|sampled|attention)_problem|sat_register_variant|what it taught|looked through'
check_words "$gone|a warpgroup's life|are told|is told of|cut rows?|CTAs that stay" src include bench tests \
    bindings/python/sparse_autotune bindings/rust/*/src docs/guide docs/internals
check_words 'walks?|pieces?|puts?|turned|lies?|deals?' src/kernels/cpu
check_words 'walks?|pieces?|turned|lies?|deals?' src/kernels/cuda

for file in $(sources_of include '*.h') $(sources_of src '*.[ch]' '*.cu' '*.cuh' '*.def') \
    $(sources_of bindings/python/sparse_autotune '*.py' 2>/dev/null); do
    lines=$(wc -l <"$file")
    [ "$lines" -le 700 ] || echo "layout: note: $file has $lines lines; past about 600 a file holds two ideas"
done

if [ "$failures" -ne 0 ]; then
    echo "layout: $failures failed"
    exit 1
fi
echo "layout: kernel files and variants.def agree, and nothing includes upwards"
