// SPDX-License-Identifier: Apache-2.0
//! The mappings of files of a process, to compare them before a lift and after a restore.

use hugelift_core::maps::Mapping;
use hugelift_linux::proc::procfs::Process;

/// Returns what `/proc/PID/maps` says of mappings of files. Neighbours that continue each other are one: where a page of a
/// file was copied, as that of the code of a borrowed thread, `restore` has to open the file anew, and the kernel does not
/// join the two.
pub fn files(pid: u32) -> Vec<String> {
    let all = Process::new(pid).maps().expect("its maps");
    let mut joined: Vec<Mapping> = Vec::new();
    for mapping in all.into_iter().filter(Mapping::is_file) {
        match joined.last_mut() {
            Some(last) if is_continued_by(last, &mapping) => last.range.end = mapping.range.end,
            _ => joined.push(mapping),
        }
    }
    let line = |m: &Mapping| format!("{:?} {:?} {:x} {}", m.range, m.prot, m.offset, m.path.display());
    joined.iter().map(line).collect()
}

/// Returns whether `next` continues `one`: at the next address, with the same protection, the next bytes of the same file.
/// The kernel does not join two such mappings if one has pages of its own.
fn is_continued_by(one: &Mapping, next: &Mapping) -> bool {
    one.range.end == next.range.start
        && (one.file, one.prot) == (next.file, next.prot)
        && one.offset + one.range.len() == next.offset
}
