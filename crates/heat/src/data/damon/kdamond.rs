// SPDX-License-Identifier: Apache-2.0
//! The kernel's configuration of DAMON (`/sys/kernel/mm/damon/admin/kdamonds`), claimed, filled, and given back.

use hugelift_core::addr::Range;
use hugelift_core::heat::data::damon::{Region, has_word, number};
use hugelift_core::printable::Escape;
use hugelift_linux::io::lock::lock;
use hugelift_linux::io::read::read_whole;
use nix::errno::Errno;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Below /sys.
const FOLDER: &str = "kernel/mm/damon/admin/kdamonds";
/// The operations for the virtual addresses that are given, and no others.
const OPERATIONS: &str = "fvaddr";
/// How long to wait for another hugelift that claims it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Why DAMON does not watch.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The kernel has none.
    #[error("this kernel has no /sys/kernel/mm/damon/admin (CONFIG_DAMON_SYSFS)")]
    Lacking,
    /// The kernel's DAMON knows no virtual addresses.
    #[error("the kernel's DAMON knows only: {0}, not fvaddr (CONFIG_DAMON_VADDR)")]
    NoAddresses(String),
    /// Somebody else uses it.
    #[error(
        "DAMON is in use: nr_kdamonds in /sys/kernel/mm/damon/admin/kdamonds is {0}, and hugelift leaves what others \
         have set up (as root, writing 0 there ends it)"
    )]
    Busy(u64),
    /// The kernel itself uses it.
    #[error(
        "DAMON is in use by a part of the kernel (N in /sys/module/damon_*/parameters/enabled ends it: damon_stat, \
         damon_reclaim or damon_lru_sort)"
    )]
    BusyKernel,
    /// The kernel's DAMON does not list its regions.
    #[error("the kernel's DAMON lists no regions (tried_regions, Linux 6.2)")]
    NoRegions,
    /// Only root may use it.
    #[error("/sys/kernel/mm/damon/admin/kdamonds: {0}: only root may set DAMON up (sudo)")]
    Denied(Errno),
    /// The process has no data in memory.
    #[error("the process has no data in memory")]
    NoData,
    /// The pages of the process cannot be read.
    #[error("cannot read which pages are in memory: {0}")]
    Pages(io::Error),
    /// No thread could be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// A file of sysfs has other contents than the kernel documents.
    #[error("{path} holds no number: '{text}'")]
    Text {
        /// The file.
        path: String,
        /// What it holds.
        text: String,
    },
    /// Anything else.
    #[error("{path}: {errno}")]
    Os {
        /// The file.
        path: String,
        /// Why.
        errno: Errno,
    },
}

/// What DAMON is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setup {
    /// The process.
    pub pid: u32,
    /// The regions, by address.
    pub ranges: Vec<Range>,
    /// The time between two checks of a region.
    pub interval: Duration,
    /// Checks of each region that are summed up.
    pub checks: u32,
}

/// The configuration, which is ours until this is dropped.
#[derive(Debug)]
pub struct Kdamond {
    folder: PathBuf,
}

impl Drop for Kdamond {
    fn drop(&mut self) {
        // It is off already if the process has ended.
        let _ = self.write("0/state", "off");
        let _ = self.write("nr_kdamonds", 0);
    }
}

impl Kdamond {
    /// Claims the configuration, if nobody has one and the kernel's DAMON knows virtual addresses.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn claim(sys: &Path) -> Result<Kdamond, Refused> {
        let folder = sys.join(FOLDER);
        // Of two that find no user at the same time only one may claim it.
        let _turn = File::open(folder.join("nr_kdamonds")).map(|file| lock(file.into(), PATIENCE));
        let ours = match read_number(&folder.join("nr_kdamonds"))? {
            0 => {
                write(&folder.join("nr_kdamonds"), 1)?;
                let ours = Kdamond { folder };
                ours.write("0/contexts/nr_contexts", 1)?;
                ours
            }
            count => {
                // A kernel without virtual addresses gets no help from the end of the other user.
                let known = read(&folder.join("0/contexts/0/avail_operations"));
                known.map_or(Ok(()), |known| knows_addresses(&known))?;
                return Err(Refused::Busy(count));
            }
        };
        knows_addresses(&read(&ours.context("avail_operations"))?)?;
        Ok(ours)
    }

    /// Makes DAMON watch.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn start(self, setup: &Setup) -> Result<Kdamond, Refused> {
        let microseconds = |time: Duration| time.as_micros().max(1);
        self.set("operations", OPERATIONS)?;
        self.set("monitoring_attrs/intervals/sample_us", microseconds(setup.interval))?;
        self.set("monitoring_attrs/intervals/aggr_us", microseconds(setup.interval * setup.checks))?;
        // Fewer than three are refused. With one or two regions the kernel halves them.
        let count = setup.ranges.len().max(3);
        self.set("monitoring_attrs/nr_regions/min", count)?;
        self.set("monitoring_attrs/nr_regions/max", count)?;
        self.set("targets/nr_targets", 1)?;
        self.set("targets/0/pid_target", setup.pid)?;
        self.set("targets/0/regions/nr_regions", setup.ranges.len())?;
        for (i, range) in setup.ranges.iter().enumerate() {
            self.set(&format!("targets/0/regions/{i}/start"), range.start.0)?;
            self.set(&format!("targets/0/regions/{i}/end"), range.end.0)?;
        }
        self.set("schemes/nr_schemes", 1)?;
        self.set("schemes/0/action", "stat")?;
        // All that was accessed at all.
        for (name, least, most) in
            [("sz", 0, u64::MAX), ("nr_accesses", 1, u32::MAX.into()), ("age", 0, u32::MAX.into())]
        {
            self.set(&format!("schemes/0/access_pattern/{name}/min"), least)?;
            self.set(&format!("schemes/0/access_pattern/{name}/max"), most)?;
        }
        if !self.context("schemes/0/tried_regions").is_dir() {
            return Err(Refused::NoRegions);
        }
        self.write("0/state", "on").map_err(|why| match why {
            Refused::Os { errno: Errno::EBUSY, .. } => Refused::BusyKernel,
            other => other,
        })?;
        Ok(self)
    }

    /// Waits for the end of the next aggregation interval, and returns the regions that were accessed in it.
    ///
    /// # Errors
    /// See [`Refused`]: also because the process has ended, and DAMON with it.
    pub fn regions(&self) -> Result<Vec<Region>, Refused> {
        self.write("0/state", "update_schemes_tried_regions")?;
        if !read(&self.folder.join("0/state"))?.starts_with(b"on") {
            return Err(Refused::Os { path: "state".into(), errno: Errno::ESRCH });
        }
        self.tried()
    }

    /// Reads the regions that the kernel has listed.
    fn tried(&self) -> Result<Vec<Region>, Refused> {
        let tried = self.context("schemes/0/tried_regions");
        let entries = std::fs::read_dir(&tried).map_err(|error| refused(&tried, &error))?;
        let folders = entries.filter_map(|entry| {
            let entry = entry.ok()?;
            number(entry.file_name().as_encoded_bytes()).map(|_| entry.path())
        });
        let region = |folder: PathBuf| {
            let file = |name: &str| read(&folder.join(name)).ok();
            Region::parse(&file("start")?, &file("end")?, &file("nr_accesses")?)
        };
        Ok(folders.filter_map(region).collect())
    }

    fn context(&self, name: &str) -> PathBuf {
        self.folder.join("0/contexts/0").join(name)
    }

    fn set(&self, name: &str, value: impl ToString) -> Result<(), Refused> {
        write(&self.context(name), value)
    }

    fn write(&self, name: &str, value: impl ToString) -> Result<(), Refused> {
        write(&self.folder.join(name), value)
    }
}

fn knows_addresses(operations: &[u8]) -> Result<(), Refused> {
    match has_word(operations, OPERATIONS) {
        true => Ok(()),
        false => {
            let words = operations.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
            Err(Refused::NoAddresses(
                words.map(|word| word.escaped().to_string()).collect::<Vec<_>>().join(", "),
            ))
        }
    }
}

fn write(path: &Path, value: impl ToString) -> Result<(), Refused> {
    // No file is made: only the kernel makes those.
    let file = std::fs::OpenOptions::new().write(true).open(path);
    let written = file.and_then(|mut file| io::Write::write_all(&mut file, value.to_string().as_bytes()));
    written.map_err(|error| refused(path, &error))
}

fn read(path: &Path) -> Result<Vec<u8>, Refused> {
    read_whole(path).map_err(|error| refused(path, &error))
}

fn read_number(path: &Path) -> Result<u64, Refused> {
    let text = read(path)?;
    let show = || text[..text.len().min(40)].trim_ascii().escaped().to_string();
    number(&text).ok_or_else(|| Refused::Text { path: path.escaped().to_string(), text: show() })
}

fn refused(path: &Path, error: &io::Error) -> Refused {
    match Errno::from_raw(error.raw_os_error().unwrap_or(0)) {
        Errno::ENOENT if path.ends_with("nr_kdamonds") => Refused::Lacking,
        errno @ (Errno::EACCES | Errno::EPERM | Errno::EROFS) => Refused::Denied(errno),
        errno => Refused::Os { path: path.escaped().to_string(), errno },
    }
}

#[cfg(test)]
mod tests;
