#!/usr/bin/env bash
# Builds the site of the documents into $BUILD/site and looks at it in Chromium: every internal link, the console, the
# search. What it needs comes from PyPI, pinned (scripts/site/requirements.txt), into $BUILD/site-tools.
# usage: docs.sh [--no-rustdoc] [--pictures FOLDER]      --no-rustdoc leaves the crates' pages out, which take minutes
#        docs.sh serve                                   shows what is built, search and all, on this machine's port 8000
set -u
cd "$(dirname "$0")/.." || exit 2
. scripts/common.sh
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
rustdoc=yes pictures=()
while [ $# -gt 0 ]; do
    case $1 in
    --no-rustdoc) rustdoc=no && shift ;;
    --pictures) pictures=(--pictures "$2") && shift 2 ;;
    serve) exec python3 -m http.server --bind 127.0.0.1 --directory "$BUILD/site" 8000 ;;
    *) echo "usage: docs.sh [--no-rustdoc] [--pictures FOLDER] | serve" >&2 && exit 2 ;;
    esac
done
scripts/setup.sh docs || exit 1
[ -x "$BUILD/site-tools/bin/mkdocs" ] || exit 1

crates() ( # rustdoc's pages of the three crates; no C is compiled for them
    export CARGO_TARGET_DIR CARGO_TERM_COLOR=never SPARSE_AUTOTUNE_CHECK_ONLY=1
    CARGO_TARGET_DIR=$(realpath -m "$BUILD/rust")
    rm -rf "$CARGO_TARGET_DIR/doc"
    cd bindings/rust && cargo doc --locked --quiet --no-deps
)
unset SITE_RUSTDOC
if [ "$rustdoc" = yes ] && command -v cargo >/dev/null; then
    crates || exit 1
    SITE_RUSTDOC=$(realpath "$BUILD/rust/doc") && export SITE_RUSTDOC
fi

site=$(realpath -m "$BUILD/site")
NO_MKDOCS_2_WARNING=1 PYTHONDONTWRITEBYTECODE=1 "$BUILD/site-tools/bin/mkdocs" build --strict --quiet --site-dir "$site" || exit 1
[ -z "${SITE_RUSTDOC:-}" ] || cp -r "$SITE_RUSTDOC" "$site/rust" || exit 1
echo "the site is in $BUILD/site: open $BUILD/site/index.html, or scripts/docs.sh serve"
python3 scripts/site/check.py "$site" "${pictures[@]}"
