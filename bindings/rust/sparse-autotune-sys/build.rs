//! Builds the C library from `source/` (feature `bundled`, the default), or finds one that is built already:
//! where `SPARSE_AUTOTUNE_DIR` says, whatever the features, or else by pkg-config.
//!
//! | variable | meaning |
//! |---|---|
//! | `SPARSE_AUTOTUNE_DIR` | an install prefix, or a build folder, with `libsparse_autotune.a` or `.so` |
//! | `SPARSE_AUTOTUNE_LINK` | `static` or `dynamic`, where there is a choice; static otherwise |
//! | `SPARSE_AUTOTUNE_CMAKE` | more words for cmake, when it builds |
//! | `SPARSE_AUTOTUNE_CHECK_ONLY` | nothing is built and nothing linked: for `cargo check` and `cargo doc` |

use std::env;
use std::path::Path;
use std::process::exit;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for name in ["DIR", "LINK", "CMAKE", "CHECK_ONLY"] {
        println!("cargo::rerun-if-env-changed=SPARSE_AUTOTUNE_{name}");
    }
    if env::var_os("DOCS_RS").is_some() || variable("SPARSE_AUTOTUNE_CHECK_ONLY").is_some() {
        return;
    }
    if let Some(folder) = variable("SPARSE_AUTOTUNE_DIR") {
        link_folder(Path::new(&folder));
    } else if cfg!(feature = "bundled") {
        build();
    } else {
        find();
    }
}

/// The value of an environment variable; empty is as good as absent.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn fail(message: &str) -> ! {
    println!("cargo::error={message}");
    exit(1)
}

// ---- from source ----

#[cfg(feature = "bundled")]
fn build() {
    let source = Path::new(&env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("source");
    if !source.join("include/sparse_autotune.h").is_file() {
        fail("the C source is not in source/: take the crate from a clone of the repository or from its package");
    }
    for part in ["CMakeLists.txt", "cmake", "include", "src"] {
        println!("cargo::rerun-if-changed=source/{part}");
    }
    let mut config = cmake::Config::new(&source);
    config.profile("Release").build_target("sparse_autotune_static");
    config.define("SAT_CUDA", if cfg!(feature = "cuda") { "ON" } else { "OFF" });
    for part in ["CLI", "TESTS", "BENCH", "FUZZ"] {
        config.define(format!("SAT_BUILD_{part}"), "OFF");
    }
    config.define("SAT_INSTALL", "OFF");
    for word in variable("SPARSE_AUTOTUNE_CMAKE").unwrap_or_default().split_whitespace() {
        config.configure_arg(word);
    }
    let built = config.build().join("build");
    println!("cargo::metadata=include={}", source.join("include").display());
    link_folder(&built);
}

#[cfg(not(feature = "bundled"))]
fn build() {}

// ---- built already ----

fn find() {
    match pkg_config::Config::new().atleast_version("0.1").probe("sparse_autotune") {
        Ok(library) => {
            if let Some(include) = library.include_paths.first() {
                println!("cargo::metadata=include={}", include.display());
            }
        }
        Err(error) => fail(&format!(
            "sparse_autotune is not installed where pkg-config looks ({}): set SPARSE_AUTOTUNE_DIR to its prefix, or \
             build the crate with the feature `bundled`",
            error.to_string().lines().find(|line| !line.trim().is_empty()).unwrap_or_default()
        )),
    }
}

fn link_folder(folder: &Path) {
    let places = [folder.to_path_buf(), folder.join("lib"), folder.join("lib64"), folder.join(multiarch())];
    let holds = |name: &str| places.iter().find(|place| place.join(name).is_file());
    let (archive, shared) = (holds("libsparse_autotune.a"), holds("libsparse_autotune.so"));
    let wanted = variable("SPARSE_AUTOTUNE_LINK");
    let (place, kind) = match (wanted.as_deref(), archive, shared) {
        (None | Some("static"), Some(place), _) => (place, "static"),
        (None | Some("dynamic"), _, Some(place)) => (place, "dylib"),
        (None | Some("static" | "dynamic"), _, _) => fail(&format!(
            "SPARSE_AUTOTUNE_DIR is {}, where neither the folder nor its lib has {}",
            folder.display(),
            match wanted.as_deref() {
                Some("static") => "libsparse_autotune.a",
                Some(_) => "libsparse_autotune.so",
                None => "libsparse_autotune.a or .so",
            }
        )),
        (Some(other), _, _) => fail(&format!("SPARSE_AUTOTUNE_LINK is {other}: expected static or dynamic")),
    };
    println!("cargo::rustc-link-search=native={}", place.display());
    println!("cargo::rustc-link-lib={kind}=sparse_autotune");
    let file = if kind == "static" { "libsparse_autotune.a" } else { "libsparse_autotune.so" };
    println!("cargo::rerun-if-changed={}", place.join(file).display());
    if kind == "static" {
        link_dependencies(place);
    }
}

fn multiarch() -> String {
    format!("lib/{}-linux-gnu", env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default())
}

/// What the static library needs: OpenMP as the build found it, threads, the C library's parts.
fn link_dependencies(place: &Path) {
    // The library is in a build folder, or installed with a .pc file that names OpenMP's files.
    let read = |file: &str| std::fs::read_to_string(place.join(file)).unwrap_or_default();
    let [cache, installed] = [read("CMakeCache.txt"), read("pkgconfig/sparse_autotune.pc")];
    let entry = |name: &str| {
        cache.lines().chain(installed.lines()).find_map(|line| {
            let (key, value) = line.split_once('=')?;
            (key.split(':').next()? == name && !value.is_empty()).then(|| value.to_string())
        })
    };
    let files = entry("openmp").unwrap_or_else(|| {
        let names = entry("OpenMP_C_LIB_NAMES").unwrap_or_else(|| "gomp".into());
        let file = |name: &str| entry(&format!("OpenMP_{name}_LIBRARY")).unwrap_or_else(|| format!("lib{name}.so"));
        names.split(';').map(file).collect::<Vec<_>>().join(";")
    });
    for file in files.split(';').map(Path::new) {
        if let Some(folder) = file.parent().filter(|folder| folder.is_dir()) {
            println!("cargo::rustc-link-search=native={}", folder.display());
        }
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let name = name.split('.').next().and_then(|stem| stem.strip_prefix("lib"));
        println!("cargo::rustc-link-lib=dylib={}", name.unwrap_or("gomp"));
    }
    for name in ["pthread", "m", "dl", "rt"] {
        println!("cargo::rustc-link-lib=dylib={name}");
    }
}
