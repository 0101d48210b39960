// SPDX-License-Identifier: Apache-2.0
//! `include/hugelift.h` is what cbindgen makes of the C functions. `BLESS=1 cargo test -p hugelift-library --test header`
//! writes it anew.

use cbindgen::{Builder, Config, DocumentationStyle, Language, ParseConfig, Style};
use std::path::Path;

const HEAD: &str = "\
/* SPDX-License-Identifier: Apache-2.0 */
/* hugelift from inside: a program puts its own code and read-only data on huge pages.
 *
 *     struct hugelift_options options;
 *     struct hugelift_report *report;
 *     hugelift_options_init(&options, sizeof options);
 *     int code = hugelift_lift_self(&options, &report);
 *     if (code != HUGELIFT_OK)
 *         fprintf(stderr, \"not lifted: %s\\n\", hugelift_strerror(code));
 *     hugelift_report_free(report);
 *
 * All addresses, bytes and protections stay, and other threads run on. No function prints, ends the process, throws,
 * leaves a file open or changes errno. If malloc(3) fails, the library ends the process, as Rust's library does.
 *
 * Made by cbindgen from the crate hugelift-library: change that instead. */
";

/// Makes the header.
fn generated() -> String {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = Config {
        language: Language::C,
        style: Style::Tag,
        include_guard: Some("HUGELIFT_H".into()),
        header: Some(HEAD.into()),
        no_includes: true,
        sys_includes: ["stddef.h", "stdint.h", "sys/types.h"].map(String::from).into(),
        cpp_compat: true,
        usize_is_size_t: true,
        documentation: true,
        documentation_style: DocumentationStyle::Doxy,
        line_length: 110,
        tab_width: 4,
        parse: ParseConfig::default(),
        ..Config::default()
    };
    // It follows the modules that this file declares.
    let builder = Builder::new().with_config(config).with_src(here.join("src/c/mod.rs"));
    let mut header = Vec::new();
    builder.generate().expect("cbindgen reads the sources").write(&mut header);
    without_safety(&String::from_utf8(header).expect("text"))
}

/// Leaves the sections out that only Rust's tools want: what they demand stands before them in other words.
fn without_safety(header: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    let mut inside = false;
    for line in header.lines() {
        inside = (inside || line == " * # Safety") && line != " */";
        if line == " */" && lines.last() == Some(&" *") {
            lines.pop();
        }
        if !inside {
            lines.push(line);
        }
    }
    lines.join("\n") + "\n"
}

#[test]
fn the_header_is_that_of_the_functions() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/hugelift.h");
    let generated = generated();
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &generated).expect("write the header");
    }
    let installed = std::fs::read_to_string(&path).expect("the header");
    assert_eq!(installed, generated, "BLESS=1 cargo test -p hugelift-library --test header");
}

/// Returns the symbols that the version script exports.
fn exported() -> Vec<String> {
    let script = include_str!("../hugelift.map");
    let name = |line: &str| Some(line.strip_prefix("    ")?.strip_suffix(';')?.to_string());
    script.lines().filter_map(name).filter(|name| name != "*").collect()
}

#[test]
fn each_function_of_a_header_is_exported_and_none_else() {
    let compat = [
        include_str!("../include/hugelift/compat/elfremapper.h"),
        include_str!("../include/hugelift/compat/large_page.h"),
    ];
    let headers = format!("{}{}", generated(), compat.concat());
    let exported = exported();
    assert!(exported.len() > 15, "{exported:?}");
    for name in &exported {
        assert!(headers.contains(&format!("{name}(")), "{name} is in no header");
    }
    let declared = headers.lines().filter_map(|line| line.split_once('(')).filter_map(|(before, _)| {
        let name = before.rsplit([' ', '*']).next()?;
        // A declaration, and neither a line of a comment nor a pointer to a function.
        let is_declared = !before.starts_with([' ', '#', '/']) && !before.contains('=');
        (is_declared && before.contains(' ') && !name.is_empty()).then_some(name)
    });
    for name in declared {
        assert!(exported.iter().any(|known| known == name), "{name} is not in hugelift.map");
    }
}
