// SPDX-License-Identifier: Apache-2.0
//! `hugelift align --separate --debug`: the debug information in a file of its own.

use super::args::AlignArgs;
use super::place::check_output;
use crate::failure::Failure;
use hugelift_core::printable::Escape;
use hugelift_linux::io::entry::Entry;
use hugelift_relink::relay::{Original, RelayError, SeparatedDebug, publish, set_mode};
use serde::Serialize;
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The debug information of the input, and where the new one goes.
pub(super) struct DebugInfo {
    pub original: Original,
    output: PathBuf,
    /// A folder that is made for it, below one that is there.
    folder: Option<PathBuf>,
}

/// The new debug information, as JSON.
#[derive(Serialize)]
pub(super) struct Written {
    pub input: String,
    /// Where it was written, or would be.
    pub output: String,
    /// Whether the copy names it (`.gnu_debuglink`).
    pub linked: bool,
}

impl DebugInfo {
    /// Reads the debug information at `path`, a file or a folder, of the program `program`.
    pub fn find(args: &AlignArgs, program: &Original, path: &Path) -> Result<DebugInfo, Failure> {
        let (input, name) = (args.input.escaped(), "--debug-output FILE");
        let below = |folder: &Path| {
            let id = program.build_id().filter(|id| id.len() > 2);
            let id = id.ok_or_else(|| {
                format!("{input} has no build-id, by which it is found in a folder: {name}")
            })?;
            let (first, rest) = id.split_at(2);
            Ok::<_, Failure>(folder.join(".build-id").join(first).join(format!("{rest}.debug")))
        };
        let file = if path.is_dir() { below(path)? } else { path.to_owned() };
        let (output, folder) = match (&args.debug_output, &args.output) {
            (Some(folder), _) if folder.is_dir() => {
                let output = below(folder)?;
                let parent = output.parent().map(Path::to_owned);
                (output, parent)
            }
            (Some(output), _) => (output.clone(), None),
            (None, of) => {
                let mut output = of.as_ref().unwrap_or(&args.input).clone().into_os_string();
                output.push(".debug");
                (output.into(), None)
            }
        };
        if output.file_name().is_none() {
            return Err(format!("{} is not the name of a file", output.escaped()).into());
        }
        if args.output.as_ref() == Some(&output) {
            return Err(
                format!("{} would be both the copy and its debug information", output.escaped()).into()
            );
        }
        Ok(DebugInfo { original: Original::read(&file)?, output, folder })
    }

    /// Returns the name of the new file, without folders.
    pub fn name(&self) -> &OsStr {
        self.output.file_name().unwrap_or_default()
    }

    /// Writes the new debug information of `program`, whose copy gets the name `copy`.
    pub fn write(&self, new: &SeparatedDebug, program: &Original, copy: &Entry) -> Result<(), Failure> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| RelayError::Io { action: "make a file in", path: path.into(), source }
        };
        if let Some(folder) = &self.folder {
            std::fs::create_dir_all(folder).map_err(failed(folder))?;
        }
        let name = self.output.escaped();
        if Entry::find(&self.output).is_ok_and(|place| place.is(&self.original.meta)) {
            return Err(format!("{name} is the file of --debug itself, which the program still needs").into());
        }
        let place = check_output(&self.original, &self.output)?;
        if place.is(&program.meta) || place.path() == copy.path() {
            return Err(format!("{name} is the program, and is not replaced by its debug information").into());
        }
        let file = self.original.debug_beside(new, &place)?;
        set_mode(&file, self.original.meta.mode() & 0o777, &place)?;
        Ok(publish(file, &place)?)
    }

    /// Returns what is said of it.
    pub fn written(&self, new: &SeparatedDebug) -> Written {
        let [input, output] = [&self.original.path, &self.output].map(|path| path.escaped().to_string());
        Written { input, output, linked: new.linked }
    }
}
