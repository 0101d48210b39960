// SPDX-License-Identifier: Apache-2.0
//! The table `[keep]` of the service's configuration: files that it keeps on huge pages whether a program uses them or not.
//!
//! ```toml
//! programs = ["clang++-19", "node"]            # with the shared objects they need
//! files = ["/usr/lib/jvm/*/lib/server/libjvm.so"]
//! exclude = ["libicudata.so*"]
//! budget = "512M"
//! interval = "5m"
//! group = "adm"                                # may ask for the state, beside root
//! ```

use crate::policy::{ObjectFilter, check_length};
use crate::quantity;
use crate::toml_text::{Wrong, checked};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;

/// Bytes to lock in memory at most, unless the configuration says otherwise: enough for a compiler or
/// two.
const BUDGET: u64 = 512 << 20;
/// Time between two checks, unless the configuration says otherwise.
const INTERVAL: Duration = Duration::from_secs(300);
/// More frequent checks cost time and gain nothing.
const SHORTEST: Duration = Duration::from_secs(1);
/// A longer interval means never.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// What to keep on huge pages.
#[derive(Clone, Debug)]
pub struct Config {
    /// Programs by path or by name on PATH. All shared objects that they need are kept too.
    pub programs: Vec<String>,
    /// ELF files by absolute path or glob.
    pub files: Vec<String>,
    /// Leaves out objects whose path or file name matches.
    pub filter: ObjectFilter,
    /// Bytes to lock in memory at most; 0 for none.
    pub budget: u64,
    /// Time between two checks.
    pub interval: Duration,
    /// The group whose members may ask for the state, besides the daemon's own user.
    pub group: Option<String>,
}

/// What to keep, as it is written in TOML.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Written {
    programs: Option<Spanned<Vec<String>>>,
    files: Option<Spanned<Vec<String>>>,
    exclude: Option<Spanned<Vec<String>>>,
    budget: Option<Spanned<String>>,
    interval: Option<Spanned<String>>,
    group: Option<Spanned<String>>,
}

/// Keeps nothing.
impl Default for Config {
    fn default() -> Config {
        let (programs, files, filter) = (Vec::new(), Vec::new(), ObjectFilter::default());
        Config { programs, files, filter, budget: 0, interval: INTERVAL, group: None }
    }
}

impl Config {
    /// Checks what is written.
    ///
    /// # Errors
    /// Returns the value that is wrong, and why.
    pub fn check(written: Written) -> Result<Config, Wrong> {
        Ok(Config {
            programs: names("programs", written.programs.as_ref(), check_program)?,
            files: names("files", written.files.as_ref(), check_file)?,
            filter: checked("exclude", written.exclude.as_ref(), |except| ObjectFilter::new(&[], except))?
                .unwrap_or_default(),
            budget: checked("budget", written.budget.as_ref(), |text| quantity::bytes(text))?
                .unwrap_or(BUDGET),
            interval: checked("interval", written.interval.as_ref(), |text| {
                quantity::duration_between(text, SHORTEST, LONGEST)
            })?
            .unwrap_or(INTERVAL),
            group: checked("group", written.group.as_ref(), |name| check_group(name))?,
        })
    }
}

/// Returns the names of a list, each of which must pass the check.
fn names(
    key: &str,
    written: Option<&Spanned<Vec<String>>>,
    check: impl Fn(&str) -> Result<(), String>,
) -> Result<Vec<String>, Wrong> {
    let checked = checked(key, written, |names| {
        names.iter().try_for_each(|name| check_length(name).and_then(|()| check(name)))?;
        Ok(names.clone())
    })?;
    Ok(checked.unwrap_or_default())
}

fn check_program(name: &str) -> Result<(), String> {
    if name.is_empty() { Err("an empty name".to_string()) } else { Ok(()) }
}

fn check_file(path: &str) -> Result<(), String> {
    match Path::new(path).has_root() {
        true => Ok(()),
        false => Err(format!("'{path}' is not an absolute path")),
    }
}

fn check_group(name: &str) -> Result<String, String> {
    match name.is_empty() || name.contains('\0') {
        true => Err("not the name of a group; without this line only the daemon's own user may ask".into()),
        false => Ok(name.to_string()),
    }
}

/// Returns the folder that holds everything `pattern` can match: its leading part without wildcards.
pub fn base_of(pattern: &str) -> PathBuf {
    let plain = |part: &&str| !part.contains(['*', '?', '[']);
    let parts: Vec<&str> = pattern.split('/').collect();
    let fixed: Vec<&str> = parts[..parts.len() - 1].iter().copied().take_while(plain).collect();
    let base = fixed.join("/");
    PathBuf::from(if base.is_empty() { "/" } else { &base })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toml_text;

    fn parse(text: &str) -> Result<Config, String> {
        toml_text::read::<Written>(text).and_then(Config::check).map_err(|wrong| wrong.in_text(text))
    }

    #[test]
    fn a_complete_configuration() {
        let text = "programs = [\"node\"]\nfiles = [\"/a/*.so\"]\nexclude = [\"libicu*\"]\nbudget = \"1G\"\ninterval = \"2m\"\ngroup = \"adm\"\n";
        let config = parse(text).unwrap();
        assert_eq!(config.programs, ["node"]);
        assert_eq!((config.budget, config.interval.as_secs()), (1 << 30, 120));
        assert_eq!(config.group.as_deref(), Some("adm"));
        let least = parse("programs = [\"node\"]").unwrap();
        assert_eq!((least.budget, least.interval), (BUDGET, INTERVAL));
        assert_eq!(parse("files = [\"/x\"]\nbudget = \"0\"").unwrap().budget, 0);
    }

    #[test]
    fn errors_say_what_is_wrong() {
        for (text, says) in [
            ("programs = [\"\"]", "an empty name"),
            ("programs = 5", "line 1"),
            ("programs = [\"x\"]\nbuget = \"5M\"", "buget"),
            ("programs = [\"x\"]\nbudget = \"5X\"", "budget: '5X' is not a size"),
            ("programs = [\"x\"]\nbudget = \"99999999999999999999G\"", "is not a size"),
            ("programs = [\"x\"]\ninterval = \"0\"", "is less than 1s"),
            ("programs = [\"x\"]\ninterval = \"soon\"", "interval: 'soon' is not a time"),
            ("programs = [\"x\"]\ninterval = \"18446744073709551615\"", "is not a time"),
            ("programs = [\"x\"]\ninterval = \"400d\"", "is more than"),
            ("programs = [\"x\"]\ngroup = \"\"", "group: not the name"),
            ("files = [\"lib*.so\"]", "'lib*.so' is not an absolute path"),
            ("files = [\"lib\\n*.so\"]", "'lib\\n*.so' is not an absolute path"),
            ("files = [\"/x\"]\nexclude = [\"[\"]", "exclude: "),
            ("files = [\"/x\"", "line 1"),
            (
                &format!("files = [\"/{}\"]", "*".repeat(1 << 20)),
                "has 1048577 bytes, and no path has more than 4096",
            ),
            (&format!("programs = [\"{}\"]", "x".repeat(5000)), "'xxxxxxxxxxxxxxxxxxxx...' has 5000 bytes"),
            (&format!("files = [\"/x\"]\nexclude = [\"{}\"]", "*".repeat(1 << 20)), "exclude: '*****"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(says) && !error.contains('\n'), "{text}: {error}");
        }
    }

    #[test]
    fn any_text_is_taken_or_refused() {
        use proptest::prelude::*;
        proptest!(|(text in "(programs|files|budget|interval|exclude|=|\\[|\\]|\"|[a-z0-9/*{}]|\n| ){0,40}")| {
            let _ = parse(&text);
            let _ = base_of(&text);
        });
    }

    #[test]
    fn where_a_pattern_begins() {
        for (pattern, base) in [
            ("/usr/lib/*/libLLVM.so*", "/usr/lib"),
            ("/usr/lib/libLLVM.so", "/usr/lib"),
            ("/*.so", "/"),
            ("/x", "/"),
            ("/opt/[ab]/x", "/opt"),
        ] {
            assert_eq!(base_of(pattern), Path::new(base), "{pattern}");
        }
    }
}
