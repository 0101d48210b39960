// SPDX-License-Identifier: Apache-2.0
//! Changes a setting of the kernel for the time of an experiment.
//!
//! The old value is put back when the [`Setting`] is dropped: at the end, after an error, and after
//! ctrl-C, which only makes the experiment end. If this process is killed, a shell that waits for its end
//! puts the value back. If another process has changed the setting in the meantime, its value stays. A lock
//! keeps a second experiment from changing the same setting, since it would take our value for the
//! machine's.

use anyhow::{Context as _, Result, ensure};
use hugelift_core::fields;
use hugelift_core::printable::Escape;
use hugelift_linux::io::lock::lock;
use nix::fcntl::Flock;
use std::fs;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How long to wait for `hugelift pool set`, which locks a pool while it sets it.
const PATIENCE: Duration = Duration::from_secs(2);

/// Reads from the pipe that the setting is about to be changed, then its new value, and waits until this process closes the pipe
/// or ends. If it ends before the new value is known, as a pool grows for seconds, the old one is put back, whatever it has
/// come to: the lock keeps others away. The third word is the pool's file of surplus pages, or empty.
const RESTORE: &str = r#"
read -r begun || exit
read -r made
read -r end
read -r now < "$2"
[ -z "$3" ] || { read -r surplus < "$3"; now=$((now - surplus)); }
[ -n "$made" ] && [ "$now" != "$made" ] || printf '%s\n' "$1" > "$2"
"#;

/// A file in /proc/sys or /sys whose value is changed for a while.
#[derive(Debug)]
pub struct Setting {
    file: SettingFile,
    /// The value before the change, which will be put back.
    before: String,
    restorer: Child,
    /// flock(2) of the setting's own file.
    _lock: Flock<OwnedFd>,
}

/// The file of a setting.
#[derive(Debug)]
struct SettingFile {
    path: PathBuf,
    /// The number of surplus pages, if the setting is the size of a pool. `nr_hugepages` shows them too, but
    /// a value that is written counts only the persistent pages (`Documentation/admin-guide/mm/hugetlbpage.rst`).
    surplus: Option<PathBuf>,
}

impl SettingFile {
    /// Returns the value as it would have to be written.
    fn value(&self) -> Result<String> {
        let text = read(&self.path)?;
        let Some(path) = &self.surplus else { return Ok(chosen(&text).to_string()) };
        let number = |text: &str| text.trim().parse::<u64>().ok();
        let surplus = read(path)?;
        let persistent = number(&text).zip(number(&surplus)).map(|(all, more)| all.saturating_sub(more));
        persistent.map(|pages| pages.to_string()).with_context(|| {
            format!("{} is {:?}, {} is {surplus:?}: no numbers", self.path.escaped(), text, path.escaped())
        })
    }

    /// Changes the value to the one that `value` makes of it.
    fn change(self, value: impl FnOnce(&str) -> Result<String>) -> Result<Setting> {
        let path = self.path.as_path();
        let file = fs::File::open(path).with_context(|| format!("cannot read {}", path.escaped()))?;
        let text = self.value()?;
        let lock = lock(file.into(), PATIENCE).with_context(|| format!("cannot lock {}", path.escaped()))?;
        let lock = lock.with_context(|| {
            format!(
                "{path} is {text}: another experiment has changed it; wait until it ends: fuser -v {path}",
                path = path.escaped()
            )
        })?;
        // Another experiment may have put it back before we got the lock.
        let before = self.value()?;
        let value = value(&before)?;
        // In its own process group ctrl-C does not reach the shell.
        let restorer = Command::new("sh")
            .args(["-c", RESTORE, "sh", &before])
            .arg(path)
            .arg(self.surplus.as_deref().unwrap_or(Path::new("")))
            .process_group(0)
            .stdin(Stdio::piped())
            // The shell prints nothing: it only has to hold the lock until it has put the value back.
            .stdout(lock.try_clone().context("cannot copy a descriptor")?)
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start sh, which would put the setting back")?;
        let setting = Setting { file: self, before, restorer, _lock: lock };
        let path = &setting.file.path;
        let mut pipe = setting.restorer.stdin.as_ref().context("sh has no pipe")?;
        pipe.write_all(b"begun\n").context("cannot tell sh that the setting changes")?;
        write(path, &value)
            .with_context(|| format!("cannot write {value} to {}; only root may", path.escaped()))?;
        // The shell compares with the whole line, which for other settings than pools has all choices.
        let made = match setting.file.surplus {
            Some(_) => setting.file.value()? + "\n",
            None => read(path)?,
        };
        pipe.write_all(made.as_bytes()).context("cannot send sh the new value of the setting")?;
        Ok(setting)
    }
}

impl Setting {
    /// Writes `value`. The caller must read what the kernel has made of it.
    ///
    /// # Errors
    /// The file cannot be read or written (only root may write it), or another experiment has changed it.
    /// The setting is then unchanged.
    pub fn change(path: impl AsRef<Path>, value: &str) -> Result<Setting> {
        let path = path.as_ref().to_path_buf();
        SettingFile { path, surplus: None }.change(|_| Ok(value.to_string()))
    }

    /// Sets the persistent pages of the pool whose folder in `/sys/kernel/mm/hugepages` is `folder`. The pool
    /// may get fewer pages than were asked for, which is no error.
    ///
    /// # Errors
    /// As [`Setting::change`].
    pub fn pool(folder: &Path, pages: u64) -> Result<Setting> {
        let (path, surplus) = (folder.join("nr_hugepages"), folder.join("surplus_hugepages"));
        SettingFile { path, surplus: Some(surplus) }.change(|_| Ok(pages.to_string()))
    }

    /// Adds persistent pages to such a pool.
    ///
    /// # Errors
    /// As [`Setting::change`]; also if the pool gets fewer pages than were asked for. It then has its old size again.
    pub fn grow_pool(folder: &Path, pages: u64) -> Result<Setting> {
        let (path, surplus) = (folder.join("nr_hugepages"), folder.join("surplus_hugepages"));
        let mut want = 0;
        let grown = SettingFile { path, surplus: Some(surplus) }.change(|before| {
            want = before.parse::<u64>().with_context(|| format!("'{before}' pages"))? + pages;
            Ok(want.to_string())
        })?;
        let got = grown.file.value()?;
        ensure!(
            got.parse::<u64>().is_ok_and(|got| got >= want),
            "the pool of {} has {got} pages beside its surplus instead of {want}: echo 1 > /proc/sys/vm/compact_memory",
            folder.escaped()
        );
        Ok(grown)
    }

    /// Puts the old value back now.
    ///
    /// # Errors
    /// The setting does not have its old value.
    pub fn restore(self) -> Result<()> {
        let before = self.before.clone();
        let file = SettingFile { path: self.file.path.clone(), surplus: self.file.surplus.clone() };
        drop(self);
        let now = file.value()?;
        ensure!(now == before, "{} is {now}, and was {before} before", file.path.escaped());
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

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.escaped()))
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
        assert_eq!((setting.before.as_str(), setting.file.value().unwrap().as_str()), ("madvise", "always"));
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

    /// A process that is killed while a pool grows has said that it begins, and not what came of it.
    #[test]
    fn a_change_that_was_killed_in_its_middle_is_undone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("setting");
        for (said, want) in
            [("", "77\n"), ("begun\n", "10\n"), ("begun\n77\n", "10\n"), ("begun\n78\n", "77\n")]
        {
            fs::write(&path, "77\n").unwrap();
            let mut sh = Command::new("sh")
                .args(["-c", RESTORE, "sh", "10"])
                .arg(&path)
                .arg("")
                .stdin(Stdio::piped())
                .spawn()
                .unwrap();
            sh.stdin.take().unwrap().write_all(said.as_bytes()).unwrap();
            sh.wait().unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), want, "{said:?}");
        }
    }

    /// Another program has surplus pages, before the experiment or from its middle on: they are neither put
    /// back as persistent pages nor taken for a change of the setting.
    #[test]
    fn surplus_pages_of_others_do_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let plant = |name: &str, value: u64| fs::write(dir.path().join(name), format!("{value}\n")).unwrap();
        let pages = || fs::read_to_string(dir.path().join("nr_hugepages")).unwrap();
        for (before, after) in [(0, 0), (3, 3), (3, 0), (0, 5)] {
            plant("nr_hugepages", 10 + before);
            plant("surplus_hugepages", before);
            let setting = Setting::pool(dir.path(), 256).unwrap();
            assert_eq!(setting.before, "10", "{before} {after}");
            // Another program takes or returns surplus pages during the experiment.
            plant("surplus_hugepages", after);
            plant("nr_hugepages", 256 - before + after);
            drop(setting);
            assert_eq!(pages(), "10\n", "{before} {after}");
        }
    }

    #[test]
    fn a_pool_grows_by_what_is_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let plant = |name: &str, value: u64| fs::write(dir.path().join(name), format!("{value}\n")).unwrap();
        plant("nr_hugepages", 13);
        plant("surplus_hugepages", 0);
        let setting = Setting::grow_pool(dir.path(), 7).unwrap();
        let pages = || fs::read_to_string(dir.path().join("nr_hugepages")).unwrap();
        assert_eq!((setting.before.as_str(), pages().as_str()), ("13", "20\n"));
        drop(setting);
        assert_eq!(pages(), "13\n");
        // The kernel counts the surplus pages as well: of these 20 there would be too few.
        plant("surplus_hugepages", 3);
        let error = format!("{:#}", Setting::grow_pool(dir.path(), 7).unwrap_err());
        assert!(
            error.contains(" has 14 pages beside its surplus instead of 17")
                && error.contains("compact_memory"),
            "{error}"
        );
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
