// SPDX-License-Identifier: Apache-2.0
//! Reads in folios of which sizes the memory of a process lies: the frames by `/proc/PID/pagemap`, their folios by
//! `/proc/kpageflags` (Documentation/admin-guide/mm/pagemap.rst). Root alone sees both.

use crate::machine::{base_page, thp_page};
use crate::proc::clock::cpu_time_of_thread;
use crate::proc::pagemap;
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::fields::field;
use hugelift_core::folios::{Folios, frames_of_folios};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

const FLAGS: &str = "/proc/kpageflags";
/// So much CPU time the pages of a process may take: where its frames lie far apart, each takes a read of its own. The rest is
/// left out.
const TIME: Duration = Duration::from_millis(300);
/// So many entries of the pagemap are read at once.
const AT_ONCE: u64 = 1 << 12;
/// So many stretches of frames are remembered.
const REMEMBERED: usize = 4096;

/// Reads the sizes of folios.
pub struct Reader {
    pagemap: File,
    flags: File,
    base: PageSize,
    /// Frames of a huge page: no smaller folio reaches across their bounds.
    stretch: u64,
    known: HashMap<u64, Vec<u32>>,
    group: Option<u64>,
    until: Duration,
    whole: bool,
}

impl Reader {
    /// Opens what is read of a process.
    ///
    /// # Errors
    /// EACCES without root, or as root of a container; the process has ended; the kernel has no such file.
    pub fn open(pid: u32) -> io::Result<Reader> {
        let base = base_page();
        let huge = thp_page().ok_or(io::ErrorKind::Unsupported)?;
        if !nix::unistd::geteuid().is_root() || !shows_frames(base)? {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(Reader {
            pagemap: pagemap::open(pid.cast_signed())?,
            flags: File::open(FLAGS)?,
            base,
            stretch: huge.bytes() / base.bytes(),
            known: HashMap::new(),
            group: group(base),
            until: cpu_time_of_thread() + TIME,
            whole: true,
        })
    }

    /// Adds the memory of a range.
    ///
    /// # Errors
    /// pread(2)
    pub fn add(&mut self, range: Range, folios: &mut Folios) -> io::Result<()> {
        // A large reservation has few pages.
        let mut present = Vec::new();
        match pagemap::present_stretches(&self.pagemap, range, &mut |found| present.push(found)) {
            Ok(()) => {}
            // Before Linux 6.7.
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => present = vec![range],
            Err(error) => return Err(error),
        }
        present.into_iter().try_for_each(|stretch| self.add_present(stretch, folios))
    }

    fn add_present(&mut self, stretch: Range, folios: &mut Folios) -> io::Result<()> {
        let page = self.base.bytes();
        let mut rest = stretch;
        while !rest.is_empty() {
            if cpu_time_of_thread() >= self.until {
                self.whole = false;
                break;
            }
            let pages = (rest.len() / page).clamp(1, AT_ONCE);
            let part = Range { end: rest.end.min(Addr(rest.start.0 + pages * page)), ..rest };
            let entries = pagemap::entries(&self.pagemap, part)?;
            let (first, group, base) = (part.start.0 / page, self.group, self.base);
            folios.add(first, &entries, base, group, |frame| self.frames(frame));
            rest.start = part.end;
        }
        Ok(())
    }

    /// Returns whether all was read that was asked for.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Returns how many frames the folio of a frame has; 0 if that cannot be read, or if it is larger than a huge page.
    fn frames(&mut self, frame: u64) -> u32 {
        let first = frame / self.stretch * self.stretch;
        if self.known.len() >= REMEMBERED {
            self.known.clear();
        }
        let (flags, stretch) = (&self.flags, self.stretch);
        let found = self.known.entry(first).or_insert_with(|| {
            let mut bytes = vec![0; usize::try_from(stretch * 8).unwrap_or(0)];
            let got = flags.read_at(&mut bytes, first * 8).unwrap_or(0);
            let (words, _) = bytes[..got].as_chunks();
            frames_of_folios(&words.iter().map(|word| u64::from_ne_bytes(*word)).collect::<Vec<u64>>())
        });
        found.get((frame - first) as usize).copied().unwrap_or(0)
    }
}

/// Returns whether the pagemap shows frames: without CAP_SYS_ADMIN, as root in a container, all of them are 0.
fn shows_frames(base: PageSize) -> io::Result<bool> {
    const FRAME: u64 = (1 << 55) - 1;
    let here = 0u8;
    let start = Addr((&raw const here).addr() as u64).align_down(base);
    let range = Range::sized(start, base.bytes()).ok_or(io::ErrorKind::InvalidData)?;
    let entries = pagemap::entries(&pagemap::open(std::process::id().cast_signed())?, range)?;
    Ok(entries.iter().any(|entry| entry & FRAME != 0))
}

/// Returns how many base pages that lie side by side this CPU can hold in one TLB entry, if that is known: four on AMD since Zen
/// (Software Optimization Guide for the AMD Family 17h, "TLB"), sixteen pages of 4 kB on AArch64, if the kernel sets the
/// contiguous bit (Arm ARM, D8.7.1).
fn group(base: PageSize) -> Option<u64> {
    if cfg!(target_arch = "aarch64") {
        return (base == PageSize::SMALL).then_some(16);
    }
    let cpu = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let family = field(&cpu, "cpu family")?.parse::<u32>().ok()?;
    let is_zen = field(&cpu, "vendor_id")? == "AuthenticAMD" && family >= 0x17;
    is_zen.then_some(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_memory_is_counted() {
        let mut reader = match Reader::open(std::process::id()) {
            Ok(reader) => reader,
            Err(error) => return println!("SKIP: {error}"),
        };
        let memory = vec![1u8; 4 << 20];
        let at = memory.as_ptr().addr() as u64;
        let page = base_page().bytes();
        let range =
            Range { start: Addr(at.next_multiple_of(page)), end: Addr((at + (4 << 20)) / page * page) };
        let mut folios = Folios::default();
        reader.add(range, &mut folios).unwrap();
        assert_eq!(folios.bytes.values().sum::<u64>(), range.len(), "{folios:?}");
        assert!(reader.is_whole() && folios.bytes.keys().all(|size| size.is_power_of_two()));
        // The time is over.
        reader.until = Duration::ZERO;
        let mut some = Folios::default();
        reader.add(range, &mut some).unwrap();
        assert_eq!((some, reader.is_whole()), (Folios::default(), false));
        drop(memory);
    }
}
