// SPDX-License-Identifier: Apache-2.0
//! `--malloc`: asks the program's allocator for huge pages, by its variable of the environment.

use crate::Failure;
use crate::job::LiftJob;
use crate::memory_limit::reserved;
use crate::options::{Malloc, Verbosity};
use hugelift_core::malloc::{self, Pages, Setting};
use hugelift_core::snapshot::Part;
use hugelift_os::elf::malloc::allocators;
use hugelift_os::launch::program::set_variable;
use std::path::Path;

/// Sets the variables of the allocators that the program at `path` contains.
///
/// # Errors
/// setenv(3) fails.
pub(crate) fn ask_allocator(malloc: Malloc, path: &Path, job: &LiftJob) -> Result<(), Failure> {
    let pages = match malloc {
        Malloc::Auto if job.policy.parts.contains(&Part::Heap) => Pages::Thp,
        Malloc::Auto | Malloc::Off => return Ok(()),
        Malloc::Thp => Pages::Thp,
        Malloc::Hugetlb => Pages::Hugetlb,
    };
    // If the user named it, say so even without -v.
    let least = if malloc == Malloc::Auto { Verbosity::Summary } else { Verbosity::Problems };
    // An allocator with huge pages takes more memory, and the search for it reads the whole program.
    if let Some(why) = reserved(&job.policy) {
        job.asked.say(least, &format!("--malloc: the allocator is not asked for huge pages: {why}"));
        return Ok(());
    }
    let mut allocators = allocators(path);
    // We cannot append to a value that is not UTF-8.
    allocators.retain(|a| std::env::var_os(a.variable()).is_none_or(|v| v.to_str().is_some()));
    let settings = malloc::settings(&allocators, pages, |name| std::env::var(name).ok());
    if settings.is_empty() && malloc != Malloc::Auto {
        let line = "--malloc: it has no allocator with a setting for huge pages that is not set already";
        job.asked.say(Verbosity::Problems, line);
    }
    for Setting { name, value } in settings {
        job.asked.say(Verbosity::Summary, &format!("{name}={value}"));
        set_variable(name, &value).map_err(|e| format!("cannot set {name}: {e}"))?;
    }
    Ok(())
}
