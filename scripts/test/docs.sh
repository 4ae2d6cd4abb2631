# The site: built as `make docs` builds it but for rustdoc, and followed link by link in a browser.
# shellcheck shell=bash

have_browser() { command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null

part_docs() {
    local log=$BUILD/docs.log
    have_browser || { skip "needs Chromium (package chromium)" && return; }
    mkdir -p "$BUILD"
    if scripts/docs.sh --no-rustdoc >"$log" 2>&1; then pass; else
        tail -n 40 "$log"
        fail "the site"
    fi
    tail -n 1 "$log"
    drop "$BUILD/site" "$BUILD/site-tools"
}
