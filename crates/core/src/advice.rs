// SPDX-License-Identifier: Apache-2.0
//! The command that helps, with the names of the object and of its program in it.
//!
//! It depends on how an object was mapped. `hugelift run` lifts what is loaded before the program begins; what
//! the program opens later (`dlopen(3)`) it lifts while the program runs, where that is possible. The page cache
//! can be primed for both. `hugelift attach` lifts both in a process that runs.

use crate::addr::PageSize;
use crate::printable::{quoted, quoted_path};
use crate::skip::Reason;
use crate::snapshot::Part;
use std::ffi::OsStr;
use std::path::Path;

/// When an object was mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mapped {
    /// Before the program begins: it is the program, or the program needs it.
    AtStart,
    /// Later, by the program itself.
    Opened,
}

/// What a command names: the object and the program, as words for a shell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct About {
    object: String,
    start: String,
    mapped: Mapped,
    /// The process, if `hugelift attach` can lift the object in it.
    running: Option<u32>,
    /// It is about code that can move onto huge pages of its own.
    moves: bool,
    /// The part that it is about, if it is about one.
    part: Option<Part>,
}

/// Returns whether `bytes` of code of an object with this `bias`, which stay for this reason, are worth huge pages of
/// their own, and can move there: a program for fixed addresses cannot. Code moves onto pages of the `usual` size,
/// whatever size was asked for.
pub(crate) fn can_be_separated(part: Part, bias: u64, bytes: u64, reason: &Reason, usual: PageSize) -> bool {
    let is_cured = reason.page_of_its_own() == Some(usual);
    is_cured && part == Part::Text && bias != 0 && bytes >= least_code(usual.bytes())
}

/// Returns the least bytes of code for which huge pages of this size are worth their memory.
pub fn least_code(page: u64) -> u64 {
    page / 4
}

impl About {
    /// Describes the object at `path`, in a program that the command `start` starts.
    pub fn object<S: AsRef<OsStr>>(path: &Path, start: &[S], mapped: Mapped) -> About {
        let words: Vec<String> = start.iter().map(|word| quoted(word.as_ref())).collect();
        // hugelift must not take options of the program for its own.
        let end = if words.len() > 1 { "-- " } else { "" };
        let start = format!("{end}{}", words.join(" "));
        About { object: quoted_path(path), start, mapped, running: None, moves: false, part: None }
    }

    /// Describes this part of the object.
    #[must_use]
    pub fn in_part(self, part: Part) -> About {
        About { part: Some(part), ..self }
    }

    /// Describes the same object in a process that runs, if `hugelift attach` can lift it there.
    #[must_use]
    pub fn running_as(self, running: Option<u32>) -> About {
        About { running, ..self }
    }

    /// Describes code of the object that can move onto huge pages of its own, or else other memory of it.
    #[must_use]
    pub fn with_code_that_moves(self, moves: bool) -> About {
        About { moves, ..self }
    }

    /// Describes a program with all that it needs.
    pub fn program(path: &Path) -> About {
        let object = format!("--with-libs {}", quoted_path(path));
        About { object, moves: true, ..About::object(path, &[path], Mapped::AtStart) }
    }

    /// Returns the command that makes the object's page cache huge.
    pub fn prime(&self) -> String {
        format!("hugelift prime {}, while no process has it mapped", self.object)
    }

    /// Returns the command that lays the object's file out for that.
    pub fn prime_replacing(&self) -> String {
        format!("hugelift prime --replace {}", self.object)
    }
}

/// Returns the command that gives the code of this file, as words for a shell, huge pages of its own.
pub(crate) fn separate(file: &str) -> String {
    format!("hugelift prime --replace --separate {file} (with --dry-run it only says what that brings)")
}

/// Returns the option, with a space behind it, that lifts a part which is not lifted without one.
fn option_for(part: Part) -> Option<String> {
    let name = match part {
        Part::Text | Part::Rodata => return None,
        Part::Relro => Part::Data,
        part => part,
    };
    Some(format!("--parts {name} "))
}

impl Reason {
    /// Returns what the user can do, with names in the command.
    pub fn hint_for(&self, about: &About) -> Option<String> {
        self.command(about).unwrap_or_else(|| self.hint())
    }

    /// Returns the command with names in it, or `Some(None)` if no command helps; `None` where the
    /// advice has no names.
    pub(crate) fn command(&self, about: &About) -> Option<Option<String>> {
        let About { start, mapped, running, .. } = about;
        let prime = || about.prime();
        let run = |options: &str| match mapped {
            Mapped::AtStart => format!("hugelift run {options}{start}"),
            Mapped::Opened => format!(
                "{}; or, on x86-64, hugelift run {start}, which lifts it while the program runs",
                prime()
            ),
        };
        let hint = match self {
            Reason::PartNotAsked(Part::Text | Part::Rodata) => run("--parts text,rodata "),
            Reason::PartNotAsked(_) if *mapped == Mapped::Opened && self.is_writable() => return Some(None),
            Reason::PartNotAsked(_) => run("--parts all "),
            Reason::NotPrimed => format!("{}; or use --backing auto", prime()),
            // `auto` does not copy the rest of what is nearly all in huge folios.
            Reason::SmallFolios => prime(),
            Reason::NotCongruent(_) => {
                format!("{}; or use --backing auto", about.prime_replacing())
            }
            Reason::CopiedLater => run("--eager "),
            Reason::Cold => format!("hugelift attach --whole {}", running.as_ref()?),
            reason if reason.is_cured_by_own_pages() => {
                return Some(about.moves.then(|| separate(&about.object)));
            }
            // What is opened later is lifted without its edges.
            Reason::NotAligned(_) if *mapped == Mapped::Opened => return Some(None),
            Reason::NotAligned(_) => run("--span outer --backing thp "),
            Reason::NotLifted => {
                // Read-only data is not executed, so it has no samples: only a lift of the whole copies it.
                let is_rodata = about.part == Some(Part::Rodata);
                let parts = about.part.and_then(option_for).unwrap_or_default();
                // What an object that is opened later writes to is lifted in a process that runs alone.
                let start = parts.is_empty() || *mapped == Mapped::AtStart;
                let parts = if is_rodata { "--whole ".into() } else { parts };
                let start = start.then(|| run(&parts));
                let attach = running.map(|pid| format!("hugelift attach {parts}{pid}"));
                match (attach, start) {
                    (Some(attach), Some(start)) => format!("{attach}, or for its next start {start}"),
                    (Some(one), None) | (None, Some(one)) => one,
                    (None, None) => return Some(None),
                }
            }
            _ => return None,
        };
        Some(Some(hint))
    }

    fn is_writable(&self) -> bool {
        matches!(self, Reason::PartNotAsked(part) if part.is_writable())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_has_the_names_and_fits_when_an_object_was_mapped() {
        let jvm = Path::new("/jvm/my lib.so");
        let of =
            |reason: Reason, mapped| reason.hint_for(&About::object(jvm, &["java", "-jar", "a b"], mapped));
        let at_start = of(Reason::NotLifted, Mapped::AtStart).unwrap();
        assert_eq!(at_start, "hugelift run -- java -jar 'a b'");
        let opened = of(Reason::NotLifted, Mapped::Opened).unwrap();
        assert!(opened.starts_with("hugelift prime '/jvm/my lib.so', while no process"), "{opened}");
        assert_eq!(of(Reason::PartNotAsked(Part::Data), Mapped::Opened), None);
        // What the program writes to is lifted by an option.
        let written = |part, mapped, running| {
            let about = About::object(jvm, &["/bin/x"], mapped).running_as(running).in_part(part);
            Reason::NotLifted.hint_for(&about)
        };
        let heap = written(Part::Heap, Mapped::AtStart, Some(4711)).unwrap();
        assert_eq!(
            heap,
            "hugelift attach --parts heap 4711, or for its next start hugelift run --parts heap /bin/x"
        );
        let rodata = written(Part::Rodata, Mapped::AtStart, Some(4711)).unwrap();
        assert_eq!(rodata, "hugelift attach --whole 4711, or for its next start hugelift run --whole /bin/x");
        let relro = written(Part::Relro, Mapped::Opened, Some(4711)).unwrap();
        assert_eq!(relro, "hugelift attach --parts data 4711");
        assert_eq!(written(Part::Relro, Mapped::Opened, None), None);
        assert_eq!(written(Part::Bss, Mapped::AtStart, None).unwrap(), "hugelift run --parts bss /bin/x");
        let in_process = |reason: Reason, mapped| {
            reason.hint_for(&About::object(jvm, &["/bin/x"], mapped).running_as(Some(4711)))
        };
        let attach = "hugelift attach 4711, or for its next start hugelift";
        let at_start = in_process(Reason::NotLifted, Mapped::AtStart).unwrap();
        assert_eq!(at_start, format!("{attach} run /bin/x"));
        let opened = in_process(Reason::NotLifted, Mapped::Opened).unwrap();
        assert!(opened.starts_with(&format!("{attach} prime '/jvm/my lib.so',")), "{opened}");
        assert_eq!(in_process(Reason::NoThp, Mapped::AtStart), Reason::NoThp.hint());
        let program = Reason::NotPrimed.hint_for(&About::program(Path::new("/bin/x"))).unwrap();
        assert!(program.starts_with("hugelift prime --with-libs /bin/x,"), "{program}");
        // Code that can move gets huge pages of its own.
        for reason in [Reason::TooSmall, Reason::Neighbour, Reason::Beside] {
            let hint = |moves| {
                let about = About::object(jvm, &["/bin/x"], Mapped::Opened).with_code_that_moves(moves);
                reason(crate::addr::PageSize::MB2).hint_for(&about)
            };
            assert_eq!(hint(false), None);
            let hint = hint(true).unwrap();
            assert!(hint.starts_with("hugelift prime --replace --separate '/jvm/my lib.so' "), "{hint}");
        }
        // Advice without names is unchanged.
        assert_eq!(of(Reason::NoThp, Mapped::Opened), Reason::NoThp.hint());
    }
}
