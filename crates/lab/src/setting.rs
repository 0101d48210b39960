// SPDX-License-Identifier: Apache-2.0
//! A setting of the kernel for the time of an experiment.
//!
//! It is put back when the value is dropped: at the end, after an error, and after ctrl-C, which
//! only makes the experiment end. Should this process be killed, a shell that waits for its end
//! puts it back. What somebody else has changed in the meantime is theirs, and stays; another
//! experiment does not change it before this one has put it back: it would take our value for the
//! machine's.

use anyhow::{Context as _, Result, anyhow, ensure};
use hugelift_core::printable::Escape;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Reads what was made of the setting, then waits until this process closes the pipe or is gone. If
/// nothing was made of it, it has nothing to do.
const RESTORE: &str = r#"
read -r made || exit
read -r end
read -r now < "$2"
[ "$now" != "$made" ] || printf '%s\n' "$1" > "$2"
"#;

/// A file of /proc/sys or /sys that has another value for a while.
#[derive(Debug)]
pub struct Setting {
    path: PathBuf,
    before: String,
    restorer: Child,
    /// flock(2) of the setting's own file.
    _lock: Flock<fs::File>,
}

impl Setting {
    /// Writes `value`. What the kernel makes of it is to be read by the caller: a pool may get fewer
    /// pages than were asked for.
    ///
    /// # Errors
    /// The file cannot be read or written, as for all but root, or another experiment has changed it;
    /// the setting is then as it was.
    pub fn change(path: impl AsRef<Path>, value: &str) -> Result<Setting> {
        let path = path.as_ref();
        let file = fs::File::open(path).with_context(|| format!("cannot read {}", path.escaped()))?;
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.escaped()))?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| match error {
            Errno::EWOULDBLOCK => anyhow!(
                "{path} is {}, as another experiment has set it for its time; wait for its end: fuser -v {path}",
                chosen(&text),
                path = path.escaped()
            ),
            error => anyhow!("cannot lock {}: {error}", path.escaped()),
        })?;
        // Who had the lock may have put it back just now.
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.escaped()))?;
        let before = chosen(&text).to_string();
        // In a group of its own, ctrl-C does not reach it.
        let restorer = Command::new("sh")
            .args(["-c", RESTORE, "sh", &before])
            .arg(path)
            .process_group(0)
            .stdin(Stdio::piped())
            // It says nothing: this is how it comes to hold the lock until it has done its work.
            .stdout(lock.try_clone().context("cannot copy a descriptor")?)
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start sh, which would put the setting back")?;
        let mut setting = Setting { path: path.to_path_buf(), before, restorer, _lock: lock };
        write(path, value)
            .with_context(|| format!("cannot write {value} to {}; only root may", path.escaped()))?;
        let made = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.escaped()))?;
        if let Some(pipe) = &mut setting.restorer.stdin {
            pipe.write_all(made.as_bytes()).context("cannot tell sh what to put back")?;
        }
        Ok(setting)
    }

    /// What was there before, and will be again.
    pub fn before(&self) -> &str {
        &self.before
    }

    /// What is there now.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn now(&self) -> Result<String> {
        let path = self.path.escaped();
        let text = fs::read_to_string(&self.path).with_context(|| format!("cannot read {path}"))?;
        Ok(chosen(&text).to_string())
    }

    /// Puts it back now.
    ///
    /// # Errors
    /// It is not what it was.
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
        // Whether it could is seen by who reads the setting: see `restore`.
        let _ = self.restorer.wait();
    }
}

/// The choice in `always [madvise] never`, or all of it.
pub(crate) fn chosen(text: &str) -> &str {
    let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or(text, |(word, _)| word).trim()
}

fn write(path: &Path, value: &str) -> std::io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).truncate(true).open(path)?;
    // One write: the kernel takes each as a value of its own.
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
        // What another one has set meanwhile is not ours to change.
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
        assert!(error.contains("setting is 1, as another experiment") && error.contains("fuser"), "{error}");
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
