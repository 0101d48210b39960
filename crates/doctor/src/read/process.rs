// SPDX-License-Identifier: Apache-2.0
//! Reads the facts of one process.

use crate::facts::{CodeObject, Coverage, Process as Facts};
use hugelift_core::addr::{Addr, Range};
use hugelift_core::maps::Prot;
use hugelift_core::plan::{is_nearly_all, plan};
use hugelift_core::policy::{Backing, Policy};
use hugelift_core::printable::text_to_parse;
use hugelift_core::report::{PartReport, Report};
use hugelift_core::smaps::Usage;
use hugelift_core::snapshot::{Part, Snapshot};
use hugelift_linux::command::start_words;
use hugelift_linux::elf::elf_file::ElfFile;
use hugelift_linux::elf::opened::opened;
use hugelift_linux::io::open;
use hugelift_linux::proc::mapped::MappedFiles;
use hugelift_linux::proc::memory::Reader;
use hugelift_linux::proc::procfs::{ProcError, Process};
use hugelift_linux::proc::{pagemap, snapshot};
use hugelift_pages::pagecache;
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Variables that switch huge pages on in some program. Others are left out: they may hold secrets.
const VARIABLES: [&str; 9] = [
    "GLIBC_TUNABLES",
    "GODEBUG",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "_JAVA_OPTIONS",
    "MALLOC_CONF",
    "MIMALLOC_ALLOW_LARGE_OS_PAGES",
    "NODE_OPTIONS",
    "TCMALLOC_MEMFS_MALLOC_PATH",
];
/// The most bytes of huge pages that are searched for zeros, spread evenly.
const EXAMINED: u64 = 64 << 20;

/// Reads the process.
///
/// # Errors
/// The process has ended, or this user may not read it.
pub fn facts(pid: u32) -> Result<Facts, ProcError> {
    let process = Process::new(pid).with_memory();
    let (mut snapshot, policy) = (snapshot::live(Some(process.pid()), 0)?, Policy::default());
    pagecache::find_wanted(process.pid(), &mut snapshot, &policy);
    let usage = process.smaps()?;
    let report = Report::new(&snapshot, Some(&usage), &plan(&snapshot, &policy), None);
    let exe = std::fs::read_link(process.path("exe")).unwrap_or_default();
    let total = report.totals.get(&Part::Text).copied().unwrap_or_default();
    let private = |u: &&Usage| u.mapping.prot.write && !u.mapping.shared;
    let sum = |of: fn(&Usage) -> u64| usage.iter().filter(private).map(of).fold(0, u64::saturating_add);
    let huge = HugeMemory::of(process, &usage);
    let (examined, zeros) = huge.zeros();
    Ok(Facts {
        pid,
        exe: text_to_parse(exe.as_os_str().as_bytes()).into_owned(),
        args: strings(&process.read("cmdline").unwrap_or_default()),
        start: start(process, &exe),
        environment: strings(&process.read("environ").unwrap_or_default())
            .into_iter()
            .filter(|e| e.split_once('=').is_some_and(|(name, _)| VARIABLES.contains(&name)))
            .collect(),
        objects: objects(&snapshot),
        go: is_go(process),
        allows_thp: snapshot.machine.allows_thp,
        thp_enabled: process.status().ok().and_then(|s| s.thp_enabled),
        text: Coverage { bytes: total.bytes, liftable: total.liftable_bytes, huge: total.huge_bytes },
        reasons: reasons(&report),
        malloc: malloc(&usage),
        writable_thp: sum(|u| u.anon_huge),
        writable_hugetlb: sum(|u| u.private_hugetlb),
        shared_hugetlb: usage.iter().map(|u| u.shared_hugetlb).fold(0, u64::saturating_add),
        anonymous: sum(|u| u.anonymous),
        forks: forks(process),
        examined,
        zeros,
        huge_zero: huge.zero_page,
        postgres_huge_pages: postgres(process, &exe),
        code: code(process.pid(), &snapshot, &report),
    })
}

/// Returns the objects with a huge page of code or more.
fn code(pid: u32, snapshot: &Snapshot, report: &Report) -> Vec<CodeObject> {
    let opened = opened(pid, snapshot);
    let extents = snapshot.extents();
    let mut all = Vec::new();
    for (index, object) in report.objects.iter().enumerate() {
        let parts = || object.parts.iter().filter(|p| p.part == Part::Text);
        let sum = |of: fn(&PartReport) -> u64| parts().map(of).fold(0, u64::saturating_add);
        let text = Coverage {
            bytes: sum(|p| p.bytes),
            liftable: sum(|p| p.liftable_bytes),
            huge: sum(|p| p.huge_bytes),
        };
        if text.liftable == 0 {
            continue;
        }
        let own = extents.iter().filter(|e| e.object == index && e.part == Part::Text);
        let cached = own.flat_map(|e| snapshot.cached.iter().filter_map(|c| c.intersect(e.range)));
        all.push(CodeObject {
            path: text_to_parse(object.path.as_os_str().as_bytes()).into_owned(),
            text,
            opened: opened.contains(&*object.path),
            lifted: parts().any(|p| p.backing.is_some_and(|b| b != Backing::Pagecache)),
            primed: is_nearly_all(cached.map(|r| r.len()).sum(), text.liftable),
        });
    }
    all
}

/// Returns the words that start the process again.
fn start(process: Process, exe: &Path) -> Vec<String> {
    let words = start_words(process);
    let words = if words.is_empty() { vec![exe.as_os_str().to_os_string()] } else { words };
    words.iter().map(|word| text_to_parse(word.as_bytes()).into_owned()).collect()
}

/// Returns the anonymous bytes of glibc's malloc that can be told from other memory: the heap, and the heaps of further
/// arenas, which begin at a multiple of their greatest size (malloc/arena.c, `HEAP_MAX_SIZE`) and have the rest of it
/// reserved behind them. Large blocks that it maps alone cannot be told.
fn malloc(usage: &[Usage]) -> u64 {
    const ARENA: u64 = 64 << 20;
    let is_free = |u: &Usage| !u.mapping.is_file() && !u.mapping.prot.read && !u.mapping.prot.write;
    let ends_with = |here: &Usage, next: &Usage| {
        let end = next.mapping.range.end.0;
        here.mapping.range.end == next.mapping.range.start && is_free(next) && end.is_multiple_of(ARENA)
    };
    let is_arena = |(at, here): &(usize, &Usage)| {
        here.mapping.range.start.0.is_multiple_of(ARENA)
            && here.mapping.path.as_os_str().is_empty()
            && usage.get(at + 1).is_some_and(|next| ends_with(here, next))
    };
    let all = usage.iter().enumerate().filter(|(_, u)| u.mapping.prot == Prot::RW && !u.mapping.shared);
    let own = all.filter(|one| one.1.mapping.is_named("[heap]") || is_arena(one));
    own.map(|(_, u)| u.anonymous).fold(0, u64::saturating_add)
}

/// Splits strings that end with NUL.
fn strings(bytes: &[u8]) -> Vec<String> {
    let mut all: Vec<String> = bytes.split(|&b| b == 0).map(|s| text_to_parse(s).into_owned()).collect();
    all.pop_if(|last| last.is_empty());
    all
}

fn objects(snapshot: &Snapshot) -> Vec<String> {
    snapshot.objects.iter().map(|o| text_to_parse(o.path.as_os_str().as_bytes()).into_owned()).collect()
}

/// Returns why code is not huge, with the bytes, most first.
fn reasons(report: &Report) -> Vec<(u64, String)> {
    let mut all: BTreeMap<String, u64> = BTreeMap::new();
    let parts = report.objects.iter().flat_map(|o| &o.parts).filter(|p| p.part == Part::Text);
    for skip in parts.flat_map(|p| &p.skips) {
        *all.entry(skip.detail.clone()).or_default() += skip.bytes;
    }
    let mut all: Vec<(u64, String)> = all.into_iter().map(|(why, bytes)| (bytes, why)).collect();
    all.sort_by(|a, b| b.cmp(a));
    all
}

/// Whether the file has an ELF note named `Go`, which Go's linker writes.
fn is_go(process: Process) -> bool {
    let exe = MappedFiles::of(process).executable().ok().and_then(|file| ElfFile::of_open(&file).ok());
    let Some(file) = exe else { return false };
    let named = |note: Vec<u8>| note.windows(4).step_by(4).any(|word| word == b"Go\0\0");
    file.headers.notes.iter().filter_map(|&note| file.read(note)).any(named)
}

/// Counts the children that run the same executable.
fn forks(process: Process) -> u64 {
    let Ok(own) = std::fs::read_link(process.path("exe")) else { return 0 };
    let Ok(tasks) = std::fs::read_dir(process.path("task")) else { return 0 };
    let children = tasks.flatten().filter_map(|t| std::fs::read_to_string(t.path().join("children")).ok());
    let all: Vec<u32> = children
        .flat_map(|text| text.split_whitespace().filter_map(|w| w.parse().ok()).collect::<Vec<_>>())
        .collect();
    let same = |pid: &&u32| std::fs::read_link(Process::new(**pid).path("exe")).is_ok_and(|exe| exe == own);
    all.iter().filter(same).count() as u64
}

/// The private writable memory that huge entries map.
struct HugeMemory {
    process: Process,
    ranges: Vec<Range>,
    /// Bytes that the huge zero page maps; `None` where the kernel does not show it.
    zero_page: Option<u64>,
}

impl HugeMemory {
    fn of(process: Process, usage: &[Usage]) -> HugeMemory {
        let pid = process.pid().cast_signed();
        let mut found = HugeMemory { process, ranges: Vec::new(), zero_page: Some(0) };
        let private =
            usage.iter().filter(|u| u.mapping.prot.write && !u.mapping.shared && !u.mapping.is_file());
        for used in private.filter(|u| u.private_hugetlb == 0) {
            let range = used.mapping.range;
            match pagemap::huge_ranges(pid, range, true) {
                Ok(zero) => {
                    let bytes: u64 = zero.iter().map(|r| r.len()).sum();
                    found.zero_page = found.zero_page.map(|sum| sum + bytes);
                }
                Err(_) => found.zero_page = None,
            }
            if used.anon_huge > 0 {
                found.ranges.extend(match pagemap::huge_ranges(pid, range, false) {
                    Ok(ranges) => ranges,
                    // Before Linux 6.7 the ranges are known only where the whole mapping is huge.
                    Err(_) if used.anon_huge >= range.len() => vec![range],
                    Err(_) => Vec::new(),
                });
            }
        }
        found
    }

    /// Searches for zeros. Returns the bytes read, and the bytes of base pages that hold only zeros.
    fn zeros(&self) -> (Option<u64>, u64) {
        const PIECE: u64 = 64 << 10;
        const BASE: usize = 4096;
        let all: u64 = self.ranges.iter().map(|r| r.len()).sum();
        // The stride skips pieces if all of them would exceed the limit.
        let stride = all.div_ceil(EXAMINED).max(1) * PIECE;
        let (mut examined, mut zeros) = (0, 0);
        let mut bytes = vec![0; PIECE as usize];
        // Of a process that has forked, pins would make copies of what it shares with its child.
        let Ok(memory) = Reader::without_pins(self.process) else { return (None, 0) };
        for range in &self.ranges {
            let mut at = range.start.0;
            while at < range.end.0 {
                let want = usize::try_from(range.end.0 - at).unwrap_or(usize::MAX).min(bytes.len());
                // These pages are mapped, so reading allocates none.
                let Ok(got) = memory.read(Addr(at), &mut bytes[..want]) else { break };
                for page in bytes[..got].chunks_exact(BASE) {
                    examined += BASE as u64;
                    zeros += if page.iter().all(|&b| b == 0) { BASE as u64 } else { 0 };
                }
                at = at.saturating_add(stride);
            }
        }
        // `None` if nothing was read.
        ((examined > 0).then_some(examined), zeros)
    }
}

/// The most bytes of a configuration that are read.
const MAX_CONFIGURATION: u64 = 1 << 20;

/// Reads `huge_pages` from the server's configuration. The working directory is its data directory;
/// the file that ALTER SYSTEM writes is read last.
fn postgres(process: Process, exe: &Path) -> Option<String> {
    let name = exe.file_name()?.to_str()?;
    if !["postgres", "postmaster"].contains(&name) {
        return None;
    }
    let folder: PathBuf = process.path("cwd");
    let files = ["postgresql.conf", "postgresql.auto.conf"];
    // Any process may have this name, with anything in its working directory.
    let texts = files.iter().filter_map(|f| open::text(&folder.join(f), MAX_CONFIGURATION).ok());
    texts.filter_map(|text| setting(&text, "huge_pages")).next_back()
}

/// Returns the last `name = value` of a configuration, without quotes and comment.
fn setting(text: &str, name: &str) -> Option<String> {
    let value = |line: &str| {
        let rest = line.split('#').next()?.trim().strip_prefix(name)?;
        let rest = rest.strip_prefix([' ', '\t', '=']).map(|r| r.trim_start_matches([' ', '\t', '=']))?;
        Some(rest.trim().trim_matches('\'').to_string())
    };
    text.lines().filter_map(value).next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_lines() {
        let text = "#huge_pages = on\nhuge_pages = 'try' # default\nhuge_page_size = 0\nhuge_pages=off\n";
        assert_eq!(setting(text, "huge_pages").as_deref(), Some("off"));
        assert_eq!(setting("huge_pages on\n", "huge_pages").as_deref(), Some("on"));
        assert_eq!(setting("huge_pages_x = 1\n", "huge_pages"), None);
    }

    #[test]
    fn nul_ends_a_string() {
        assert_eq!(strings(b"a\0\0b=\xff\0"), ["a", "", "b=\u{fffd}"]);
        assert_eq!(strings(b""), Vec::<String>::new());
    }

    #[test]
    fn own_process() {
        let own = facts(std::process::id()).unwrap();
        assert!(own.text.bytes > 0 && own.anonymous > 0 && !own.go, "{own:?}");
        assert_eq!(PathBuf::from(&own.exe), std::env::current_exe().unwrap());
        assert!(own.objects.iter().any(|o| o.contains("libc.so")), "{own:?}");
    }
}
