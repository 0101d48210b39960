// SPDX-License-Identifier: Apache-2.0
//! Changes to the machine that are undone even when the test is killed.

use super::run::PATIENCE;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// A number of 2 MB pages that is enough for every program of these tests.
pub const PLENTY: u64 = 320;

/// A number of them that is enough for as many programs as there are tests at a time.
const MANY: u64 = 800;

/// How long tests may join those that have the pool already. Then those have their turn that need it alone.
const JOINED: Duration = Duration::from_secs(10);

/// The pool of huge pages of the usual size, kept at the number of pages that the test chooses.
/// Only one test of all test binaries holds it at a time.
pub struct Pool {
    restorer: Child,
    // Dropped last, so that the next holder of the lock finds the pool as it was.
    _lock: nix::fcntl::Flock<File>,
}

impl Pool {
    /// Sets the pool to exactly `pages` free pages, besides the pages that other programs already
    /// hold.
    ///
    /// # Errors
    /// Fails without root, without such a pool, with too little memory, or if another test keeps
    /// the lock.
    pub fn with_free(pages: u64) -> Result<Pool, String> {
        let pool = directory()?;
        let lock = lock()?;
        let (total, free) = (number(&pool, "nr_hugepages")?, number(&pool, "free_hugepages")?);
        let path = pool.join("nr_hugepages");
        // A value that is written counts only the persistent pages.
        let persistent = total - number(&pool, "surplus_hugepages")?;
        let restorer = restorer(&format!("echo {persistent} > {}", path.display()))?;
        let guard = Pool { restorer, _lock: lock };
        // Programs of other tests may take or return pages meanwhile, or have reserved some.
        let mut used = total - free;
        let mut got = 0;
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            fs::write(&path, format!("{}", used + pages))
                .map_err(|e| format!("cannot set {}: {e}", path.display()))?;
            got = number(&pool, "free_hugepages")?;
            if got == pages {
                return Ok(guard);
            }
            std::thread::sleep(Duration::from_millis(50));
            used = number(&pool, "nr_hugepages")? - number(&pool, "free_hugepages")?;
        }
        let reserved = number(&pool, "resv_hugepages")?;
        Err(format!("wanted a pool of {pages} free huge pages, got {got}, of which {reserved} are reserved"))
    }

    /// Fills the pool for tests that only need enough pages, and not an exact number: those of a program have it together.
    ///
    /// # Errors
    /// See [`Pool::with_free`].
    pub fn shared() -> Result<Arc<Pool>, String> {
        static HELD: Mutex<(Weak<Pool>, Option<Instant>)> = Mutex::new((Weak::new(), None));
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        let may_join = held.1.is_some_and(|since| since.elapsed() < JOINED);
        if let Some(pool) = held.0.upgrade().filter(|_| may_join) {
            return Ok(pool);
        }
        let pool = Arc::new(Pool::with_free(MANY)?);
        *held = (Arc::downgrade(&pool), Some(Instant::now()));
        Ok(pool)
    }

    /// Returns the number of free pages.
    pub fn free(&self) -> u64 {
        directory().and_then(|pool| number(&pool, "free_hugepages")).expect("the pool is there")
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        drop(self.restorer.stdin.take());
        let _ = self.restorer.wait();
    }
}

/// A file of swap space, in use until the guard is dropped.
pub struct Swap {
    restorer: Child,
    _dir: tempfile::TempDir,
}

impl Swap {
    /// Makes so many bytes of it.
    ///
    /// # Errors
    /// Fails without root, or where the file system of the target folder takes none.
    pub fn new(bytes: usize) -> Result<Swap, String> {
        let dir = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).map_err(|e| e.to_string())?;
        let path = dir.path().join("swap");
        // A file with holes is refused.
        fs::write(&path, vec![0; bytes]).map_err(|e| format!("{}: {e}", path.display()))?;
        let run = |command: &mut Command| match command.output() {
            Ok(done) if done.status.success() => Ok(()),
            Ok(done) => Err(format!("{command:?}: {}", done.stderr.escape_ascii())),
            Err(error) => Err(format!("{command:?}: {error}")),
        };
        run(Command::new("chmod").arg("600").arg(&path))?;
        run(Command::new("mkswap").arg(&path))?;
        let restorer = restorer(&format!("swapoff {}", path.display()))?;
        let guard = Swap { restorer, _dir: dir };
        run(Command::new("swapon").arg(&path))?;
        Ok(guard)
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        drop(self.restorer.stdin.take());
        let _ = self.restorer.wait();
    }
}

/// Starts a process that runs `command` when its stdin ends: when the guard is dropped, or when the
/// test dies for any reason.
fn restorer(command: &str) -> Result<Child, String> {
    use std::os::unix::process::CommandExt;
    Command::new("sh")
        .args(["-c", &format!("read line; {command}")])
        // In its own process group, which a ^C at the tests does not reach.
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|e| format!("sh: {e}"))
}

/// Settings of the kernel that are restored on drop. A test that changes them must hold a [`Pool`]
/// or an [`Exclusive`].
pub struct Settings {
    restorer: Child,
}

impl Settings {
    /// Remembers the values of these files of /proc/sys and /sys.
    ///
    /// # Errors
    /// Fails if one of them cannot be read.
    pub fn keep(paths: &[&str]) -> Result<Settings, String> {
        let mut commands = String::new();
        for path in paths {
            let text = fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
            // Such a file reads "always [madvise] never".
            let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(c, _)| c);
            commands += &format!("echo '{}' > {path};", chosen.unwrap_or(text.trim()));
        }
        Ok(Settings { restorer: restorer(&commands)? })
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        drop(self.restorer.stdin.take());
        let _ = self.restorer.wait();
    }
}

/// Exclusive use of the machine's settings among all test binaries.
pub struct Exclusive {
    _lock: nix::fcntl::Flock<File>,
}

impl Exclusive {
    /// Waits until no other test uses them.
    ///
    /// # Errors
    /// Fails if another test does not release them in time.
    pub fn take() -> Result<Exclusive, String> {
        Ok(Exclusive { _lock: lock()? })
    }
}

/// One lock for all tests that change or depend on the pool.
fn lock() -> Result<nix::fcntl::Flock<File>, String> {
    let path = std::env::temp_dir().join("hugelift-tests.lock");
    let start = Instant::now();
    loop {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|e| format!("{}: {e}", path.display()))?;
        match nix::fcntl::Flock::lock(file, nix::fcntl::FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err(_) if start.elapsed() < Duration::from_secs(600) => {
                std::thread::sleep(Duration::from_millis(4))
            }
            Err((_, e)) => return Err(format!("{} is still locked: {e}", path.display())),
        }
    }
}

/// Returns the directory of the pool whose pages have the size of a transparent huge page.
fn directory() -> Result<PathBuf, String> {
    let size = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
        .map_or(2 << 20, |text| text.trim().parse().unwrap_or(2 << 20));
    let pool = PathBuf::from(format!("/sys/kernel/mm/hugepages/hugepages-{}kB", size >> 10));
    if pool.exists() { Ok(pool) } else { Err(format!("no {}", pool.display())) }
}

fn number(pool: &Path, name: &str) -> Result<u64, String> {
    let path = pool.join(name);
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    text.trim().parse().map_err(|e| format!("{}: {e}", path.display()))
}

/// A new control group, removed when dropped.
pub struct CGroup {
    path: PathBuf,
    switched_on: Option<(PathBuf, &'static str)>,
}

impl CGroup {
    /// Makes a group with the controller (`memory`, `hugetlb`), in the hierarchy that offers it.
    ///
    /// # Errors
    /// Fails if no hierarchy offers the controller, or if the group cannot be made.
    pub fn new(controller: &'static str) -> Result<CGroup, String> {
        let name = CGroup::name(controller);
        let mounts = fs::read_to_string("/proc/self/mounts").map_err(|e| format!("mounts: {e}"))?;
        let of = |line: &str| line.split(' ').map(str::to_string).collect::<Vec<_>>();
        for mount in mounts.lines().map(of).filter(|m| m.len() > 3) {
            let root = PathBuf::from(&mount[1]);
            let mut switched_on = None;
            match mount[2].as_str() {
                "cgroup" if mount[3].split(',').any(|option| option == controller) => {}
                "cgroup2" => {
                    let has = |file: &str| {
                        fs::read_to_string(root.join(file))
                            .is_ok_and(|text| text.split_whitespace().any(|c| c == controller))
                    };
                    if !has("cgroup.controllers") {
                        continue;
                    }
                    if !has("cgroup.subtree_control") {
                        fs::write(root.join("cgroup.subtree_control"), format!("+{controller}"))
                            .map_err(|e| format!("cannot switch {controller} on: {e}"))?;
                        switched_on = Some((root.join("cgroup.subtree_control"), controller));
                    }
                }
                _ => continue,
            }
            let path = root.join(&name);
            fs::create_dir(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            return Ok(CGroup { path, switched_on });
        }
        Err(format!("no cgroup controller '{controller}'"))
    }

    /// Makes a group of version 2 without a controller.
    ///
    /// # Errors
    /// Fails if version 2 is not mounted, or if the group cannot be made.
    pub fn v2() -> Result<CGroup, String> {
        let mounts = fs::read_to_string("/proc/self/mounts").map_err(|e| format!("mounts: {e}"))?;
        let root = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            Some(PathBuf::from(fields.next()?)).filter(|_| fields.next() == Some("cgroup2"))
        });
        let path = root.ok_or("no control groups of version 2")?.join(CGroup::name("v2"));
        fs::create_dir(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(CGroup { path, switched_on: None })
    }

    fn name(of: &str) -> String {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let made = MADE.fetch_add(1, Ordering::Relaxed);
        format!("hugelift-test-{}-{made}-{of}", std::process::id())
    }

    /// Puts a process into the group.
    pub fn take(&self, pid: u32) {
        fs::write(self.path.join("cgroup.procs"), pid.to_string()).expect("cgroup.procs");
    }

    /// Freezes its processes, or lets them go on.
    pub fn freeze(&self, frozen: bool) {
        let (file, texts) = match self.is_v2() {
            true => ("cgroup.freeze", ["0", "1"]),
            false => ("freezer.state", ["THAWED", "FROZEN"]),
        };
        fs::write(self.path.join(file), texts[usize::from(frozen)]).expect(file);
    }

    /// Sets the first of these limits that the group has.
    ///
    /// # Errors
    /// Fails if none of them can be set.
    pub fn limit(&self, names: &[&str], value: &str) -> Result<(), String> {
        let path = names.iter().map(|n| self.path.join(n)).find(|p| p.exists());
        let path = path.ok_or_else(|| format!("{} has none of {names:?}", self.path.display()))?;
        fs::write(&path, value).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// Returns the most memory that the group ever had, in bytes.
    ///
    /// # Errors
    /// Fails where the kernel does not report it (before Linux 5.19).
    pub fn peak(&self) -> Result<u64, String> {
        let names = ["memory.peak", "memory.max_usage_in_bytes"];
        let path = names.iter().map(|n| self.path.join(n)).find(|p| p.exists());
        let path = path.ok_or_else(|| format!("{} has none of {names:?}", self.path.display()))?;
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        text.trim().parse().map_err(|e| format!("{}: {e}", path.display()))
    }

    /// Returns the path of the group as `/proc/PID/cgroup` has it; `None` if the process is not in it yet.
    pub fn path_of(&self, pid: u32) -> Option<String> {
        let inside = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("its groups");
        let name = self.path.file_name()?.to_str()?;
        let line = inside.lines().find(|line| line.ends_with(name))?;
        Some(line.rsplit(':').next()?.to_string())
    }

    /// Ends all processes of the group, by SIGTERM and after some seconds by SIGKILL.
    pub fn end(&self) {
        use nix::sys::signal::{Signal, kill};
        let began = Instant::now();
        for round in 0.. {
            let text = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
            let pids: Vec<i32> = text.lines().filter_map(|line| line.parse().ok()).collect();
            if pids.is_empty() {
                return;
            }
            let is_late = began.elapsed() > Duration::from_secs(5);
            for pid in pids.into_iter().filter(|_| round == 0 || is_late) {
                let signal = if is_late { Signal::SIGKILL } else { Signal::SIGTERM };
                let _ = kill(nix::unistd::Pid::from_raw(pid), signal);
            }
            // A child that has not been waited for stays in the group.
            if began.elapsed() > Duration::from_secs(7) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns how many bytes of files the page cache holds for the group: what its processes were the
    /// first to read or write. Shared memory is not counted.
    ///
    /// # Errors
    /// Fails if `memory.stat` does not have these numbers.
    pub fn file_cache(&self) -> Result<u64, String> {
        let path = self.path.join("memory.stat");
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let value = |name: &str| {
            let words = text.lines().filter_map(|line| line.split_once(' '));
            words.filter(|(n, _)| *n == name).find_map(|(_, v)| v.parse::<u64>().ok())
        };
        // Version 1 calls it cache, version 2 file. Both count shared memory.
        match (value("cache").or_else(|| value("file")), value("shmem")) {
            (Some(all), Some(shared)) => Ok(all.saturating_sub(shared)),
            _ => Err(format!("{} has no page cache in it: {text}", path.display())),
        }
    }

    /// Returns its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether it is a group of version 2.
    pub fn is_v2(&self) -> bool {
        self.path.join("cgroup.controllers").exists()
    }

    /// Resets the value of [`CGroup::peak`], where the kernel can (version 2: Linux 6.12).
    pub fn reset_peak(&self) {
        for name in ["memory.peak", "memory.max_usage_in_bytes"] {
            let _ = OpenOptions::new().write(true).open(self.path.join(name)).and_then(|mut file| {
                use std::io::Write;
                file.write_all(b"0")
            });
        }
    }

    /// Returns whether its memory has ever been at its limit.
    pub fn was_full(&self) -> bool {
        let of = |name: &str| fs::read_to_string(self.path.join(name)).unwrap_or_default();
        let (events, failures) = (of("memory.events"), of("memory.failcnt"));
        let times = events.lines().find_map(|l| l.strip_prefix("max ")).unwrap_or(failures.trim());
        times.parse::<u64>().is_ok_and(|n| n > 0)
    }

    /// Returns words that run the rest of a command inside the group.
    pub fn words(&self) -> Vec<String> {
        let join = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.path.display());
        ["sh", "-c", &join, "sh"].map(String::from).to_vec()
    }
}

impl Drop for CGroup {
    fn drop(&mut self) {
        // Processes that are frozen could not end.
        for (file, text) in [("cgroup.freeze", "0"), ("freezer.state", "THAWED")] {
            let file = self.path.join(file);
            if file.exists() {
                let _ = fs::write(file, text);
            }
        }
        // A process that just ended keeps the group busy for a moment.
        for _ in 0..500 {
            if fs::remove_dir(&self.path).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        if let Some((file, controller)) = &self.switched_on {
            let _ = fs::write(file, format!("-{controller}"));
        }
    }
}
