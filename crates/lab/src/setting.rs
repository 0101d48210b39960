// SPDX-License-Identifier: Apache-2.0
//! Changes a setting of the kernel for the time of an experiment.
//!
//! The old value is put back when the [`Setting`] is dropped: at the end, after an error, and after
//! ctrl-C, which only makes the experiment end. If this process is killed, a shell that waits for its end
//! puts the value back. If another process has changed the setting in the meantime, its value stays. A lock
//! keeps a second experiment from changing the same setting, since it would take our value for the
//! machine's.

use anyhow::{Context as _, Result, anyhow, ensure};
use hugelift_core::fields;
use hugelift_core::printable::Escape;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Reads the new value of the setting from the pipe, then waits until this process closes the pipe or ends.
/// If there was no new value, there is nothing to put back.
const RESTORE: &str = r#"
read -r made || exit
read -r end
read -r now < "$2"
[ "$now" != "$made" ] || printf '%s\n' "$1" > "$2"
"#;

/// A file in /proc/sys or /sys whose value is changed for a while.
#[derive(Debug)]
pub struct Setting {
    path: PathBuf,
    before: String,
    restorer: Child,
    /// flock(2) of the setting's own file.
    _lock: Flock<fs::File>,
}

impl Setting {
    /// Writes `value`. The caller must read what the kernel has made of it: a pool may get fewer pages
    /// than were asked for.
    ///
    /// # Errors
    /// The file cannot be read or written (only root may write it), or another experiment has changed it.
    /// The setting is then unchanged.
    pub fn change(path: impl AsRef<Path>, value: &str) -> Result<Setting> {
        let path = path.as_ref();
        let file = fs::File::open(path).with_context(|| format!("cannot read {}", path.escaped()))?;
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.escaped()))?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| match error {
            Errno::EWOULDBLOCK => anyhow!(
                "{path} is {}: another experiment has changed it; wait until it ends: fuser -v {path}",
                chosen(&text),
                path = path.escaped()
            ),
            error => anyhow!("cannot lock {}: {error}", path.escaped()),
        })?;
        // Another experiment may have put it back before we got the lock.
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.escaped()))?;
        let before = chosen(&text).to_string();
        // In its own process group ctrl-C does not reach the shell.
        let restorer = Command::new("sh")
            .args(["-c", RESTORE, "sh", &before])
            .arg(path)
            .process_group(0)
            .stdin(Stdio::piped())
            // The shell prints nothing: it only has to hold the lock until it has put the value back.
            .stdout(lock.try_clone().context("cannot copy a descriptor")?)
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start sh, which would put the setting back")?;
        let mut setting = Setting { path: path.to_path_buf(), before, restorer, _lock: lock };
        write(path, value)
            .with_context(|| format!("cannot write {value} to {}; only root may", path.escaped()))?;
        let made = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.escaped()))?;
        if let Some(pipe) = &mut setting.restorer.stdin {
            pipe.write_all(made.as_bytes()).context("cannot send sh the new value of the setting")?;
        }
        Ok(setting)
    }

    /// Returns the value before the change, which will be put back.
    pub fn before(&self) -> &str {
        &self.before
    }

    /// Returns the present value.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn now(&self) -> Result<String> {
        let path = self.path.escaped();
        let text = fs::read_to_string(&self.path).with_context(|| format!("cannot read {path}"))?;
        Ok(chosen(&text).to_string())
    }

    /// Puts the old value back now.
    ///
    /// # Errors
    /// The setting does not have its old value.
    pub fn restore(self) -> Result<()> {
        let (path, before) = (self.path.clone(), self.before.clone());
        drop(self);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.escaped()))?;
        ensure!(chosen(&text) == before, "{} is {}, and was {before} before", path.escaped(), text.trim());
        Ok(())
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        drop(self.restorer.stdin.take());
        // `restore` reads the setting to see whether that succeeded.
        let _ = self.restorer.wait();
    }
}

/// Returns the chosen word of `always [madvise] never`, or all of the text.
pub(crate) fn chosen(text: &str) -> &str {
    fields::chosen(text).unwrap_or(text).trim()
}

fn write(path: &Path, value: &str) -> std::io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).truncate(true).open(path)?;
    // One write: the kernel takes each write as a value.
    file.write_all(format!("{value}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_put_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a 'setting'");
        fs::write(&path, "always [madvise] never\n").unwrap();
        let setting = Setting::change(&path, "always").unwrap();
        assert_eq!((setting.before(), setting.now().unwrap().as_str()), ("madvise", "always"));
        drop(setting);
        assert_eq!(fs::read_to_string(&path).unwrap(), "madvise\n");
        Setting::change(&path, "3").unwrap().restore().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "madvise\n");
        // A value that another process has set meanwhile stays.
        let setting = Setting::change(&path, "3").unwrap();
        fs::write(&path, "4\n").unwrap();
        assert!(setting.restore().unwrap_err().to_string().contains("is 4, and was madvise before"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "4\n");
    }

    #[test]
    fn two_experiments_do_not_change_one_setting() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("setting");
        fs::write(&path, "0\n").unwrap();
        let first = Setting::change(&path, "1").unwrap();
        let error = format!("{:#}", Setting::change(&path, "65").unwrap_err());
        assert!(error.contains("setting is 1: another experiment") && error.contains("fuser"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\n");
        first.restore().unwrap();
        Setting::change(&path, "65").unwrap().restore().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "0\n");
    }

    #[test]
    fn what_cannot_be_changed_is_named() {
        let error = format!("{:#}", Setting::change("/nonexistent/setting", "1").unwrap_err());
        assert!(error.contains("/nonexistent/setting") && error.contains("No such file"), "{error}");
    }
}
