// SPDX-License-Identifier: Apache-2.0
//! `--malloc`: asks the program's allocator for huge pages, by its variable of the environment.

use crate::Failure;
use crate::job::LiftJob;
use crate::memory_limit::reserved;
use crate::options::{Malloc, Verbosity};
use hugelift_core::malloc::{self, Pages, Setting};
use hugelift_core::policy::Policy;
use hugelift_core::snapshot::Part;
use hugelift_linux::elf::malloc::allocators;
use hugelift_linux::program::set_variable;
use std::path::Path;

/// Returns what the allocators of the program at `path` are asked by.
///
/// # Errors
/// They are asked for nothing, although that was wanted: why.
pub(crate) fn allocator_settings(
    malloc: Malloc,
    path: &Path,
    policy: &Policy,
) -> Result<Vec<Setting>, String> {
    let pages = match malloc {
        Malloc::Auto if policy.parts.contains(&Part::Heap) => Pages::Thp,
        Malloc::Auto | Malloc::Off => return Ok(Vec::new()),
        Malloc::Thp => Pages::Thp,
        Malloc::Hugetlb => Pages::Hugetlb,
    };
    // An allocator with huge pages takes more memory, and the search for it reads the whole program.
    if let Some(why) = reserved(policy) {
        return Err(format!("the allocator is not asked for huge pages: {why}"));
    }
    let mut allocators = allocators(path);
    // We cannot append to a value that is not UTF-8.
    allocators.retain(|a| std::env::var_os(a.variable()).is_none_or(|v| v.to_str().is_some()));
    let settings = malloc::settings(&allocators, pages, |name| std::env::var(name).ok());
    match settings.is_empty() && malloc != Malloc::Auto {
        true => Err("it has no allocator with a setting for huge pages that is not set already".into()),
        false => Ok(settings),
    }
}

/// Sets the variables of [`allocator_settings`], or says why there are none.
///
/// # Errors
/// setenv(3) fails.
pub(crate) fn ask_allocator(
    malloc: Malloc,
    settings: Result<Vec<Setting>, String>,
    job: &LiftJob,
) -> Result<(), Failure> {
    // If the user named it, say so even without -v.
    let least = if malloc == Malloc::Auto { Verbosity::Summary } else { Verbosity::Problems };
    let settings = match settings {
        Ok(settings) => settings,
        Err(why) => {
            job.asked.say(least, &format!("--malloc: {why}"));
            return Ok(());
        }
    };
    for Setting { name, value } in settings {
        job.asked.say(Verbosity::Summary, &format!("{name}={value}"));
        set_variable(name, &value).map_err(|e| format!("cannot set {name}: {e}"))?;
    }
    Ok(())
}
