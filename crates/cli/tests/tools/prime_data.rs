// SPDX-License-Identifier: Apache-2.0
//! Tests of `hugelift prime` with data files: every program that maps one gets its huge pages, also while it is written to, and
//! its bytes are what they were.

use crate::common::huge::smaps;
use crate::common::pressure::Pressure;
use crate::common::run::{finished, until};
use crate::common::{Cmd, End, HUGELIFT, WITH_FAULT_POINTS, fits, open_dir};
use crate::prime::prime;
use crate::{need, need_root, skip};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write as _;
use std::num::NonZeroUsize;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const MB: u64 = 1 << 20;
const HUGE: u64 = 2 * MB;

/// A data file whose words are all different, in a folder on the file system of the target folder.
struct Data {
    dir: TempDir,
    path: PathBuf,
}

impl Data {
    fn new(len: u64) -> Data {
        let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory");
        let path = dir.path().join("data");
        let words: Vec<u8> =
            (0..len / 8).flat_map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect();
        fs::write(&path, words).expect("write");
        File::open(&path).and_then(|file| file.sync_all()).expect("fsync");
        Data { dir, path }
    }

    fn name(&self) -> &str {
        self.path.to_str().expect("UTF-8")
    }

    /// Drops its pages. The kernel keeps those that another CPU has just used for a moment.
    fn drop_from_memory(&self) {
        let file = format!("if={}", self.name());
        until("it is not in memory", || {
            let dropped =
                Command::new("dd").args(["iflag=nocache", "count=0", "status=none", &file]).status();
            assert!(dropped.expect("dd").success());
            let report = prime(&["--check", self.name()]).1;
            let obstacles = report["files"][0]["segments"][0]["obstacles"].as_array().expect("obstacles");
            let is_in = |obstacle: &&Value| obstacle["reason"] != "not-read";
            // To find out that it is no ELF file, its first pages are read.
            let left: u64 = obstacles.iter().filter(is_in).filter_map(|left| left["bytes"].as_u64()).sum();
            bytes(&report["files"][0], "huge_bytes") == 0 && left <= HUGE
        });
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(&self.path).expect("read")
    }

    /// Returns the huge bytes of a new mapping of the file, read in whole, and whether it shows the file's bytes.
    fn mapped(&self, flags: MapFlags) -> u64 {
        let file = File::open(&self.path).expect("open");
        let len = NonZeroUsize::new(usize::try_from(file.metadata().expect("stat").len()).expect("a length"))
            .expect("data");
        // SAFETY: a new mapping, which is only read while the file has this length.
        let at = unsafe { mmap(None, len, ProtFlags::PROT_READ, flags, &file, 0).expect("mmap") };
        // SAFETY: the mapping made above.
        let bytes = unsafe { std::slice::from_raw_parts(at.as_ptr().cast::<u8>(), len.get()) };
        assert!(bytes == self.bytes(), "a mapping shows other bytes");
        let start = at.as_ptr() as u64;
        let found = smaps(std::process::id()).into_iter().find(|usage| usage.mapping.range.start.0 == start);
        let huge = found.expect("the mapping").file_huge;
        // SAFETY: nothing uses it any more.
        unsafe { munmap(at, len.get()).expect("munmap") };
        huge
    }
}

/// Maps a file, touches all of it, and waits. With a second argument it wants small pages meanwhile, and with "excluded" to the end.
const READER: &str = "import mmap, sys\n\
    f = open(sys.argv[1], 'rb')\n\
    m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n\
    if len(sys.argv) > 2: m.madvise(mmap.MADV_NOHUGEPAGE)\n\
    sum(m[::4096])\n\
    if sys.argv[2:] == ['small']: m.madvise(mmap.MADV_HUGEPAGE)\n\
    print('ready', flush=True)\n\
    sys.stdin.read()";

/// A python3 that executes [`READER`], and ends with the value.
struct Reader(Child);

impl Reader {
    /// Starts it, and waits until it has touched the file.
    fn start(words: &[&str]) -> Reader {
        let mut command = Command::new("python3");
        let piped = command.args(["-c", READER]).args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut reader = Reader(piped.spawn().expect("python3"));
        let out = reader.0.stdout.as_mut().expect("its stdout");
        std::io::Read::read_exact(out, &mut [0; 5]).expect("ready");
        reader
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().expect("wait");
    }
}

/// Returns the report on the first file, or why its file system has no huge pages.
fn first(report: &Value) -> Result<&Value, String> {
    let file = &report["files"][0];
    let text = file.to_string();
    if text.contains("no-large-folios") { Err(format!("no huge pages: {text}")) } else { Ok(file) }
}

fn bytes(file: &Value, name: &str) -> u64 {
    file[name].as_u64().unwrap_or_else(|| panic!("no {name}: {file:#}"))
}

#[test]
fn issue_32_1_a_data_file_is_huge_for_all_who_map_it() {
    let data = Data::new(9 * MB);
    let before = data.bytes();
    let (status, report) = prime(&[data.name()]);
    let file = match first(&report) {
        Ok(file) => file,
        Err(why) => skip!("{why}"),
    };
    assert_eq!(
        (status, bytes(file, "whole_bytes"), bytes(file, "huge_bytes")),
        (0, 8 * MB, 8 * MB),
        "{report:#}"
    );
    assert_eq!(file["segments"][0]["part"], "data");
    // ext4 aligns mappings of this size by itself.
    assert_eq!(data.mapped(MapFlags::MAP_SHARED), 8 * MB);
    assert_eq!(data.mapped(MapFlags::MAP_PRIVATE), 8 * MB);
    assert!(data.bytes() == before);
    let shown = Cmd::new([HUGELIFT, "prime", "--check", data.name()]).bare();
    assert_eq!(shown.end, End::Code(0));
    assert!(shown.stdout.starts_with(&format!("{}: data 8 MB of 8 MB huge\n", data.name())), "{shown:?}");
}

/// Writes in place, by write(2), by a shared mapping, by copy_file_range(2) and by O_DIRECT, keep the bytes right, and those
/// through the page cache keep its huge pages.
#[test]
fn issue_32_1_a_file_that_is_written_to_stays_right_and_huge() {
    let data = Data::new(8 * MB);
    let writer = File::options().read(true).write(true).open(&data.path).expect("open");
    // A database has its file open for writing all the time.
    let (status, report) = prime(&[data.name()]);
    if let Err(why) = first(&report) {
        skip!("{why}");
    }
    assert_eq!(status, 0, "{report:#}");
    let len = NonZeroUsize::new(usize::try_from(8 * MB).expect("a length")).expect("a length");
    let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping of a file that keeps its length meanwhile.
    let at = unsafe { mmap(None, len, prot, MapFlags::MAP_SHARED, &writer, 0).expect("mmap") };
    let mut want = fs::read(&data.path).expect("read");
    for n in 0..64 {
        let offset = n * 131_071;
        let word = [n as u8 ^ 0x5a; 16];
        if n % 2 == 0 {
            writer.write_all_at(&word, offset as u64).expect("write");
        } else {
            // SAFETY: inside the mapping made above.
            unsafe { std::ptr::copy_nonoverlapping(word.as_ptr(), at.as_ptr().cast::<u8>().add(offset), 16) };
        }
        want[offset..offset + 16].copy_from_slice(&word);
    }
    // SAFETY: nothing uses it any more.
    unsafe { munmap(at, len.get()).expect("munmap") };
    assert!(fs::read(&data.path).expect("read") == want);
    assert_eq!(data.mapped(MapFlags::MAP_SHARED), 8 * MB, "writes keep the huge pages");

    let from = Data::new(MB);
    let (source, mut to) = (File::open(&from.path).expect("open"), 3 * MB as libc::loff_t);
    // SAFETY: copy_file_range(2) between two open files, with an offset of our own.
    let copied = unsafe {
        libc::copy_file_range(
            source.as_raw_fd(),
            std::ptr::null_mut(),
            writer.as_raw_fd(),
            &raw mut to,
            MB as usize,
            0,
        )
    };
    let copied = usize::try_from(copied).expect("copy_file_range");
    want[3 * MB as usize..3 * MB as usize + copied]
        .copy_from_slice(&fs::read(&from.path).expect("read")[..copied]);
    assert!(fs::read(&data.path).expect("read") == want);
    let block = from.dir.path().join("block");
    fs::write(&block, [7; 1 << 16]).expect("write");
    let direct = Command::new("dd")
        .args(["bs=64k", "count=1", "seek=80", "conv=notrunc", "oflag=direct", "status=none"])
        .args([format!("if={}", block.display()), format!("of={}", data.path.display())])
        .status();
    assert!(direct.expect("dd").success(), "a file system with huge pages has O_DIRECT");
    want[80 << 16..81 << 16].fill(7);
    assert!(fs::read(&data.path).expect("read") == want);

    // It is cut off, and grows again: the hole reads as zeros.
    writer.set_len(3 * MB + 100).expect("ftruncate");
    writer.set_len(8 * MB).expect("ftruncate");
    want[3 * MB as usize + 100..].fill(0);
    assert!(fs::read(&data.path).expect("read") == want);
    let (_, report) = prime(&[data.name()]);
    assert!(fs::read(&data.path).expect("read") == want, "{report:#}");
}

#[test]
fn issue_32_1_holes_are_not_read_and_the_budget_is_kept() {
    let sparse = Data::new(2 * MB);
    // A file that is much larger than any memory, of which two huge pages have data.
    let file = File::options().write(true).open(&sparse.path).expect("open");
    if let Err(why) = file.set_len(1 << 43) {
        skip!("the file system has no file of 8 TB: {why}");
    }
    file.write_all_at(b"end", 1 << 42).expect("write");
    let (_, report) = prime(&[sparse.name()]);
    let found = match first(&report) {
        Ok(found) => found,
        Err(why) => skip!("{why}"),
    };
    assert_eq!((bytes(found, "whole_bytes"), bytes(found, "huge_bytes")), (2 * HUGE, 2 * HUGE), "{report:#}");
    drop(file);

    let data = Data::new(8 * MB);
    data.drop_from_memory();
    let (status, report) = prime(&["--budget", "4M", data.name()]);
    let obstacle = &report["files"][0]["segments"][0]["obstacles"][0];
    assert_eq!(
        (status, obstacle["reason"].as_str(), obstacle["bytes"].as_u64()),
        (1, Some("over-budget"), Some(8 * MB)),
        "{report:#}"
    );
    let helps = format!("with a budget of its own: hugelift prime --budget 8M {}", data.name());
    assert_eq!(obstacle["hint"].as_str(), Some(&helps[..]), "{report:#}");
    // What is read at a time is less than the file: the hint is for all that is left.
    let (_, report) = prime(&["--budget", "2M", "--rate", "16M", data.name()]);
    let hints: Vec<_> = report["files"][0]["segments"][0]["obstacles"]
        .as_array()
        .expect("obstacles")
        .iter()
        .map(|one| one["hint"].as_str())
        .collect();
    let left = 8 * MB - bytes(&report["files"][0], "huge_bytes");
    let helps = format!("with a budget of its own: hugelift prime --budget {}M {}", left / MB, data.name());
    assert!(!hints.is_empty() && hints.iter().all(|hint| *hint == Some(&helps[..])), "{report:#}");
    data.drop_from_memory();
    // It is for all files together: the first one takes it.
    let other = Data::new(4 * MB);
    other.drop_from_memory();
    let (status, report) = prime(&["--budget", "8M", data.name(), other.name()]);
    assert_eq!((status, bytes(&report["files"][1], "huge_bytes")), (1, 0), "{report:#}");
    let (status, report) = prime(&["--budget", "4M", data.name(), other.name()]);
    assert_eq!((status, bytes(&report["files"][0], "huge_bytes")), (0, 8 * MB), "{report:#}");
}

#[test]
fn issue_32_1_a_file_is_read_at_the_rate() {
    let data = Data::new(8 * MB);
    data.drop_from_memory();
    let began = Instant::now();
    let (status, report) = prime(&["--rate", "8M", data.name()]);
    let took = began.elapsed();
    let file = match first(&report) {
        Ok(file) => file,
        Err(why) => skip!("{why}"),
    };
    assert_eq!((status, bytes(file, "huge_bytes")), (0, 8 * MB), "{report:#}");
    // The first huge page is in memory, as it tells that the file is no code. Two of the others wait for the one before.
    assert!(took >= Duration::from_millis(450), "{took:?}");
    // What is in memory is not read, and takes no time.
    let (status, report) = prime(&["--rate", "64K", data.name()]);
    assert_eq!((status, bytes(&report["files"][0], "huge_bytes")), (0, 8 * MB), "{report:#}");
    for rate in ["0", "63K"] {
        let none = Cmd::new([HUGELIFT, "prime", "--rate", rate, data.name()]).bare();
        assert!(none.end == End::Code(125) && none.stderr.contains("64 kB is the least"), "{none:?}");
    }
}

/// What is cut off while it is primed is not called huge.
#[test]
fn issue_32_1_a_file_that_becomes_shorter_meanwhile() {
    let data = Data::new(24 * MB);
    data.drop_from_memory();
    let mut command = Command::new(HUGELIFT);
    command.args(["prime", "--json", "--rate", "2M", data.name()]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("hugelift");
    until("it has read a part", || {
        bytes(&prime(&["--check", data.name()]).1["files"][0], "huge_bytes") > HUGE
    });
    File::options().write(true).open(&data.path).and_then(|file| file.set_len(MB)).expect("truncate");
    let outcome = finished(child);
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap_or_else(|e| panic!("{e}: {outcome:?}"));
    let file = match first(&report) {
        Ok(file) => file,
        Err(why) => skip!("{why}"),
    };
    assert_eq!((outcome.end, bytes(file, "huge_bytes")), (End::Code(1), 0), "{report:#}");
    assert!(file.to_string().contains("the file was changed while it was primed"), "{report:#}");
}

#[test]
fn issue_32_1_nothing_is_read_while_memory_is_short() {
    let data = Data::new(4 * MB);
    data.drop_from_memory();
    let pressure = Pressure::none();
    pressure.set("40.00");
    let mut command = Command::new(WITH_FAULT_POINTS);
    command.args(["prime", "--json", data.name()]).env("HUGELIFT_TEST_PRESSURE", pressure.path());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("hugelift");
    std::thread::sleep(Duration::from_secs(1));
    let (_, report) = prime(&["--check", data.name()]);
    assert_eq!(bytes(&report["files"][0], "huge_bytes"), 0, "{report:#}");
    // Between the two limits it is as short as before.
    pressure.set("7.00");
    std::thread::sleep(Duration::from_secs(1));
    let (_, report) = prime(&["--check", data.name()]);
    assert_eq!(bytes(&report["files"][0], "huge_bytes"), 0, "{report:#}");
    pressure.set("2.00");
    let outcome = finished(child);
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap_or_else(|e| panic!("{e}: {outcome:?}"));
    let file = match first(&report) {
        Ok(file) => file,
        Err(why) => skip!("{why}"),
    };
    assert_eq!((outcome.end, bytes(file, "huge_bytes")), (End::Code(0), 4 * MB), "{report:#}");
}

/// A folder stands for its large files; those that a process has mapped are found too.
#[test]
fn issue_32_1_folders_and_processes_stand_for_their_files() {
    let data = Data::new(4 * MB);
    let below = data.dir.path().join("below");
    fs::create_dir(&below).expect("a folder");
    fs::copy(&data.path, below.join("other")).expect("copy");
    fs::write(below.join("small"), "x").expect("write");
    std::os::unix::fs::symlink("/usr", below.join("elsewhere")).expect("a link");
    let folder = data.dir.path().to_str().expect("UTF-8");
    let paths = |report: &Value| -> Vec<String> {
        let files = report["files"].as_array().expect("files").iter();
        files.map(|file| file["path"].as_str().expect("a path").to_string()).collect()
    };
    let (_, report) = prime(&["--check", "--recursive", folder]);
    assert_eq!(paths(&report), [data.name().to_string(), format!("{folder}/below/other")]);
    let (status, report) = prime(&[folder]);
    assert_eq!(status, 125, "without --recursive a folder is no file: {report:#}");

    let reader = Reader::start(&[data.name()]);
    let (_, report) = prime(&["--check", "--pid", &reader.pid().to_string()]);
    assert!(paths(&report).contains(&data.name().to_string()), "{report:#}");
}

/// Files in a folder that may be listed and not be entered are named: their sizes are not known.
#[test]
fn issue_32_1_files_that_may_not_be_seen_are_named() {
    need_root!();
    need!("setpriv");
    let dir = open_dir(&[]);
    let closed = dir.path().join("closed");
    fs::create_dir(&closed).expect("a folder");
    fs::write(closed.join("large"), vec![1; 4 << 20]).expect("write");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o744)).expect("chmod");
    let copy = dir.path().join(Path::new(HUGELIFT).file_name().expect("a name"));
    let copy = copy.to_str().expect("UTF-8");
    let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", copy, "prime", "--recursive"];
    let out = Cmd::new(user).arg(closed.to_str().expect("UTF-8")).bare();
    assert!(out.stdout.contains("closed/large: Permission denied"), "{out:?}");
    assert_eq!(out.end, End::Code(125), "{out:?}");
}

#[test]
fn issue_32_1_inspect_says_of_a_file_what_is_huge_and_why_the_rest_is_not() {
    let data = Data::new(9 * MB);
    let inspect = |options: &[&str], name: &str| {
        Cmd::new([HUGELIFT, "inspect"]).args(options).args([name]).cwd(data.dir.path()).bare()
    };
    let seen = inspect(&["--json"], data.name());
    let report: Value = serde_json::from_str(&seen.stdout).expect("JSON");
    fits("prime", &report);
    assert_eq!((seen.end, &report), (End::Code(0), &prime(&["--check", data.name()]).1));
    assert_eq!(bytes(&report["files"][0], "whole_bytes"), 8 * MB);
    // A name without a slash that is no program is a file of the current folder.
    let text = inspect(&[], "data").stdout;
    assert!(text.starts_with("data: data ") && text.contains(" of 8 MB huge\n"), "{text}");
    fs::write(data.dir.path().join("small"), "hello, world").expect("write");
    assert_eq!(inspect(&[], "small").stdout, "small: no whole huge page\n");
    for (options, says) in [
        (&["--heat", "1"][..], "--heat samples a process"),
        (&["--unused"], "--unused reads the memory of a process"),
        (&["--cost", "1"], "--cost watches a process"),
        (&["--html", "-"], "this is a data file"),
        (&["--parts", "data"], "options that choose what is lifted"),
        (&["--exclude", "x"], "options that choose what is lifted"),
    ] {
        let refused = inspect(options, "data");
        assert_eq!((refused.end, refused.stdout.as_str()), (End::Code(125), ""), "{options:?}");
        assert!(refused.stderr.contains(says) && refused.stderr.lines().count() == 1, "{refused:?}");
    }
}

#[test]
fn issue_32_1_inspect_says_of_a_process_why_a_file_is_on_small_pages() {
    need_root!();
    let data = Data::new(9 * MB);
    if let Err(why) = first(&prime(&[data.name()]).1) {
        skip!("{why}");
    }
    // What inspect says of the file that a process has mapped, and the reader, which waits.
    let seen_in = |pid: u32| {
        let out = Cmd::new([HUGELIFT, "inspect", "--json", &pid.to_string()]).bare();
        let report: Value = serde_json::from_str(&out.stdout).expect("JSON");
        fits("report", &report);
        let files = report["data_files"].as_array().expect("files").iter();
        files.clone().find(|file| file["path"] == data.name()).cloned().expect("the file")
    };
    let reader = Reader::start(&[data.name()]);
    let seen = seen_in(reader.pid());
    assert_eq!(
        (bytes(&seen, "huge_bytes"), &seen["reason"], &seen["hint"]),
        (8 * MB, &Value::Null, &Value::Null)
    );
    drop(reader);

    let reader = Reader::start(&[data.name(), "small"]);
    let seen = seen_in(reader.pid());
    let hint = format!("as root: hugelift attach --parts files {}", reader.pid());
    assert_eq!(
        (bytes(&seen, "huge_bytes"), &seen["reason"], &seen["hint"]),
        (0, &"mapped-small".into(), &hint.into())
    );
    drop(reader);

    let reader = Reader::start(&[data.name(), "excluded"]);
    let seen = seen_in(reader.pid());
    assert_eq!((&seen["reason"], &seen["hint"]), (&"excluded".into(), &Value::Null), "{seen:#}");
    drop(reader);

    // Written by pages of 4 kB, which stay in small folios.
    let bytes_of_it = data.bytes();
    fs::remove_file(&data.path).expect("remove");
    let mut file = File::create(&data.path).expect("create");
    bytes_of_it.chunks(4096).for_each(|page| file.write_all(page).expect("write"));
    file.sync_all().expect("fsync");
    let reader = Reader::start(&[data.name()]);
    let seen = seen_in(reader.pid());
    assert_eq!((bytes(&seen, "huge_bytes"), &seen["reason"]), (0, &"small-folios".into()), "{seen:#}");
    // The command that it names helps.
    let attached = Cmd::new([HUGELIFT, "attach", "--parts", "files", &reader.pid().to_string()]).bare();
    assert_eq!(attached.end, End::Code(0), "{attached:?}");
    let seen = seen_in(reader.pid());
    assert_eq!((bytes(&seen, "huge_bytes"), &seen["reason"]), (8 * MB, &Value::Null), "{seen:#}");
    drop(reader);
    assert!(data.bytes() == bytes_of_it, "it has other bytes");
}

#[test]
fn issue_32_1_what_is_no_file_or_cannot_be_read_is_one_line() {
    let dir = TempDir::new().expect("a temporary directory");
    let pipe = dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR).expect("mkfifo");
    for (path, says) in [(Path::new("/dev/zero"), "is not a regular file"), (&pipe, "is not a regular file")]
    {
        let (status, report) = prime(&[path.to_str().expect("UTF-8")]);
        assert_eq!(status, 125);
        assert!(report["files"][0]["error"].as_str().expect("why").contains(says), "{report:#}");
    }
    let small = dir.path().join("small");
    fs::write(&small, "text").expect("write");
    let out = Cmd::new([HUGELIFT, "prime", small.to_str().expect("UTF-8")]).bare();
    assert_eq!((out.end, out.stdout), (End::Code(0), format!("{}: no whole huge page\n", small.display())));
    // What a command names it takes.
    let mut file = File::create(dir.path().join("-x")).expect("create");
    (0..1024).for_each(|_| file.write_all(&[1; 4096]).expect("write"));
    let here = |words: &[&str]| Cmd::new([HUGELIFT]).args(words).cwd(dir.path()).bare();
    let out = here(&["prime", "--check", "--", "-x"]);
    assert!(out.stdout.contains("hugelift prime ./-x\n"), "{out:?}");
    // A name that is on no PATH is that of a file here, whatever it is.
    let out = here(&["inspect", "pipe"]);
    assert!(out.end == End::Code(125) && out.stderr.contains("is not a regular file"), "{out:?}");
    for words in [["stat", "--counters", "/dev/zero"].as_slice(), &["ministat", "/dev/zero"]] {
        let out = here(words);
        assert!(out.stderr.contains("cannot read /dev/zero: it has more than "), "{out:?}");
    }
    // Only code is replaced.
    let (status, report) = prime(&["--replace", small.to_str().expect("UTF-8")]);
    assert!(status == 125 && report.to_string().contains("not an ELF file"), "{report:#}");
}
