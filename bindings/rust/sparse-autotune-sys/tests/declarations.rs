//! The checked-in declarations are those that bindgen makes of the header.
//!
//! `UPDATE_BINDINGS=1 cargo test -p sparse-autotune-sys` writes them anew after a change of the header.

use std::io::Write;
use std::path::PathBuf;

#[test]
fn declarations_are_those_of_the_header() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let header = root.join("source/include/sparse_autotune.h");
    let file = root.join("src/bindings.rs");
    let libclang = std::panic::catch_unwind(bindgen::clang_version);
    if libclang.is_err() {
        assert_ne!(
            std::env::var("CI").as_deref(),
            Ok("true"),
            "libclang is missing, and nothing may be left out in CI"
        );
        // Past the harness, which shows nothing of what passes.
        let line = "\nskipped: the declarations, for libclang is not installed (Debian and Ubuntu: libclang1)\n";
        std::io::stderr().write_all(line.as_bytes()).expect("standard error can be written");
        return;
    }
    let made = bindgen::Builder::default()
        .header(header.to_str().expect("the path is UTF-8"))
        .allowlist_item("(sat|SAT)_.*")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .derive_default(true)
        .merge_extern_blocks(true)
        .sort_semantically(true)
        .use_core()
        .rust_target(bindgen::RustTarget::stable(85, 0).expect("bindgen knows 1.85"))
        .rust_edition(bindgen::RustEdition::Edition2024)
        .disable_header_comment()
        .formatter(bindgen::Formatter::Prettyplease)
        .generate()
        .expect("bindgen reads the header")
        .to_string();
    let made = format!("// Made from sparse_autotune.h: see tests/declarations.rs.\n\n{made}");
    if std::env::var_os("UPDATE_BINDINGS").is_some() {
        std::fs::write(&file, &made).expect("the declarations can be written");
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        kept == made,
        "src/bindings.rs is not what bindgen makes of the header: UPDATE_BINDINGS=1 cargo test -p sparse-autotune-sys"
    );
}
