#!/usr/bin/env bash
# bench/compare: ratios, means, the worst row first, rows that only one record has, and what cannot be compared.
# usage: test_compare.sh <root of the tree>
set -eu
root=$1
command -v python3 >/dev/null || { echo "skipped: there is no python3"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export PYTHONDONTWRITEBYTECODE=1

fail() {
    echo "FAILED: $1"
    cat "$folder/out" "$folder/err"
    exit 1
}
compare() { # expected status, then words for compare
    local want=$1 status=0
    shift
    "$root/bench/compare" "$@" >"$folder/out" 2>"$folder/err" || status=$?
    [ $status -eq "$want" ] || fail "compare $*: status $status, expected $want"
}
says() { grep -qE -- "$1" "$folder/out" "$folder/err" || fail "nothing says $1"; }

cat >"$folder/old.json" <<'END'
{"version": 1, "commit": "aaaa", "date": "2026-01-02", "command": "make bench", "machine": {"name": "M"}, "rows": [
 {"problem": {"name": "twice as fast"}, "variant": "v", "seconds": 2e-3, "ratios": {"dense": 2}},
 {"problem": {"name": "half as fast"}, "variant": "v", "seconds": 1e-3, "ratios": {"dense": 4}},
 {"problem": {"op": "matmul", "m": 8, "block": [4, 4], "density": 0.5}, "variant": "v", "seconds": 1e-6},
 {"problem": {"op": "matmul", "m": 8, "block": [4, 4], "density": 0.5}, "variant": "v", "seconds": 3e-6},
 {"problem": {"name": "gone"}, "variant": "v", "seconds": 1}]}
END
cat >"$folder/new.json" <<'END'
{"version": 1, "commit": "bbbb", "machine": {"name": "M"}, "rows": [
 {"problem": {"name": "twice as fast"}, "variant": "w", "seconds": 1e-3, "ratios": {"dense": 4}},
 {"problem": {"name": "half as fast"}, "variant": "v", "seconds": 2e-3, "ratios": {"dense": 4}},
 {"problem": {"op": "matmul", "m": 8, "block": [4, 4], "density": 0.5}, "variant": "v", "seconds": 1e-6},
 {"problem": {"op": "matmul", "m": 8, "block": [4, 4], "density": 0.5}, "variant": "v", "seconds": 3e-6},
 {"problem": {"name": "fresh"}, "variant": "v", "seconds": 1}]}
END

compare 0 "$folder/old.json" "$folder/new.json"
says '^half as fast .* 1 ms .* 2 ms .* 0\.500 .* 1\.000 \(dense\)$'
says '^twice as fast .* 2\.000 .* 2\.000 \(dense\) .*v -> w$'
says '^op=matmul m=8 block=4x4 density=0\.5 #2 .* 1\.000'
says 'missing in the new record: gone'
says 'only in the new record: fresh'
says '4 rows, geometric mean old/new 1\.000, beside rivals 1\.414'
sed -n 3p "$folder/out" | grep -q '^half' || fail "the worst row does not come first"
compare 0 "$folder/old.json" "$folder/new.json" --worst 1
says 'and 3 rows better'
compare 1 "$folder/old.json" "$folder/new.json" --fail-below 0.9
says '1 rows below 0.9, 1 missing'
compare 0 "$folder/new.json" "$folder/new.json" --fail-below 1
compare 0 "$folder/old.json" "$folder/new.json" --json
python3 -c 'import json, sys; o = json.load(open(sys.argv[1])); assert o["missing"] == ["gone"] and o["new"] == ["fresh"] and len(o["rows"]) == 4; assert o["commits"] == ["aaaa", "bbbb"] and o["commands"] == ["make bench", None] and o["dates"] == ["2026-01-02", None]' "$folder/out"
echo '{"rows": []}' >"$folder/empty.json"
echo '{"rows": [1]}' >"$folder/broken.json"
compare 2 "$folder/empty.json" "$folder/new.json"
compare 2 "$folder/broken.json" "$folder/new.json"
compare 2 "$folder/nothing.json" "$folder/new.json"
says 'nothing.json'
# A row without a time counts as absent from the record that lacks it, and a record may not know its commit.
sed 's/"commit": "aaaa"/"commit": null/; s/"seconds": 1e-3/"seconds": null/' "$folder/old.json" >"$folder/partial.json"
compare 0 "$folder/partial.json" "$folder/new.json"
says '^\? -> bbbb on M'
says 'only in the new record: half as fast'
compare 1 "$folder/new.json" "$folder/partial.json" --fail-below 0.1
says 'missing in the new record: half as fast'
compare 0 "$folder/partial.json" "$folder/partial.json" --fail-below 1
echo "ok: records are compared"
