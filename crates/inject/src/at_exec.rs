// SPDX-License-Identifier: Apache-2.0
//! A process at the stop that ends its execve(2): finds its executable's image, and moves it.

use crate::batch::{Batch, BatchResults, CALL_BYTES, errno, fail};
use crate::calls::{Calls as _, prot_bits};
use crate::frame::DATA_BYTES;
use crate::remote::Remote;
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::elf::{HEAD_BYTES, Headers};
use hugelift_core::maps::{Mapping, Prot};
use hugelift_core::relocate::{EntryPointers, ExecStopped, Image, Layout, Retired};
use hugelift_core::snapshot::overlapping;
use hugelift_core::target::{Fault, FileHandle, Target};
use hugelift_linux::proc::memory;
use hugelift_linux::proc::procfs::{Auxv, Process};
use std::io;

/// Returns the executable of `process` as execve(2) has mapped it; `None` if it is mapped in an unusual
/// way.
pub fn image(process: Process, mappings: &mut [Mapping], auxv: &Auxv, page: PageSize) -> Option<Image> {
    let file = mappings.iter().find(|m| m.range.contains(Addr(auxv.phdr)) && m.is_file())?.file;
    let first = mappings.iter().find(|m| m.file == file && m.offset == 0)?.range.start;
    let mut head = vec![0; HEAD_BYTES];
    let got = process.read_memory(first, &mut head).ok()?;
    let deeper = |_, size| {
        let mut table = vec![0; size];
        (process.read_memory(Addr(auxv.phdr), &mut table).ok()? == size).then_some(table)
    };
    let headers = Headers::parse_with(&head[..got], deeper).ok()?;
    process.add_bti(mappings).ok()?;
    let image = Image::new(mappings, headers, first, page).ok()?;
    (image.headers.entry.wrapping_add(image.bias) == auxv.entry).then_some(image)
}

/// Returns the addresses that the kernel keeps of `process`, whose program break has not moved yet.
///
/// # Errors
/// /proc cannot be read, or hides the addresses.
pub fn layout(process: Process) -> io::Result<Layout> {
    let failed = |e: hugelift_linux::proc::procfs::ProcError| io::Error::other(e.to_string());
    let addresses = process.stat().map_err(failed)?.addresses;
    let kept = addresses.ok_or_else(|| io::Error::other("no addresses in /proc/PID/stat"))?;
    let auxv = process.read("auxv").map_err(failed)?;
    let word = |c: &[u8]| c.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b));
    Ok(Layout {
        start_code: kept.start_code,
        end_code: kept.end_code,
        start_data: kept.start_data,
        end_data: kept.end_data,
        start_brk: kept.start_brk,
        brk: kept.start_brk,
        start_stack: kept.start_stack,
        arg_start: kept.arg_start,
        arg_end: kept.arg_end,
        env_start: kept.env_start,
        env_end: kept.env_end,
        auxv: auxv.chunks_exact(8).map(word).collect(),
    })
}

/// The most pieces that are mapped; linkers make fewer. One batch holds their calls, and those before
/// and after them.
const MOST_PIECES: usize = 48;
const _: () = assert!((MOST_PIECES as u64 + 4) * CALL_BYTES + 128 <= DATA_BYTES);

const PR_SET_MM: u64 = 35;
const PR_SET_MM_MAP: u64 = 14;

impl ExecStopped for Remote {
    fn map_image(&mut self, pieces: &[Mapping], distance: u64) -> Vec<Result<(), Fault>> {
        const OPEN: &str = "openat of /proc/self/exe";
        const MMAP: &str = "mmap of the executable";
        let refuse = |call, errno| fail(pieces.len(), &Fault::Call { call, range: Range::default(), errno });
        if pieces.len() > MOST_PIECES {
            return refuse(MMAP, libc::E2BIG);
        }
        // openat(2) returns the lowest free descriptor: no other thread runs that could take it.
        let fd = match Process::new(self.pid.cast_unsigned()).next_descriptor() {
            Ok(fd) => fd,
            Err(e) => return refuse(OPEN, e.raw_os_error().unwrap_or(libc::EIO)),
        };
        let mut batch = self.batch();
        let path = batch.add_bytes(b"/proc/self/exe\0");
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
        let open = batch.add_call(libc::SYS_openat, [libc::AT_FDCWD as i64 as u64, path, flags, 0, 0, 0]);
        let add = |piece: &Mapping| {
            let range = piece.range.down(distance);
            let (kind, fd) = if piece.is_file() { (0, fd) } else { (libc::MAP_ANONYMOUS, u64::MAX) };
            let flags = (libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE | kind) as u64;
            let args = [range.start.0, range.len(), prot_bits(piece.prot), flags, fd, piece.offset];
            (range, batch.add_call(libc::SYS_mmap, args))
        };
        let mmaps: Vec<_> = pieces.iter().map(add).collect();
        batch.add_call(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
        let made = match self.make(batch) {
            Ok(made) => made,
            Err(error) => return fail(pieces.len(), &Fault::Lost(error.to_string())),
        };
        let opened = made.result(open);
        let is_other = errno(opened).is_none() && opened as u64 != fd;
        if is_other && let Err(fault @ Fault::Lost(_)) = self.close(FileHandle(opened as i32)) {
            return fail(pieces.len(), &fault);
        }
        let came = |(piece, (range, mmap)): (&Mapping, (Range, usize))| {
            let mapped = made.result(mmap);
            let refused = match (errno(opened), errno(mapped)) {
                (Some(errno), _) if piece.is_file() => (OPEN, errno),
                (_, Some(errno)) => (MMAP, errno),
                // It is another descriptor, so the file of `fd` is unknown.
                _ if is_other && piece.is_file() => (OPEN, libc::EBADF),
                // Kernels before 4.17 take the address as a hint.
                _ if mapped as u64 != range.start.0 => (MMAP, libc::EEXIST),
                _ => return Ok(()),
            };
            if errno(mapped).is_none()
                && let Some(there) = Range::sized(Addr(mapped as u64), range.len())
            {
                self.unmap(there)?;
            }
            let (call, errno) = refused;
            Err(Fault::Call { call, range, errno })
        };
        pieces.iter().zip(mmaps).map(came).collect()
    }

    fn munmap(&mut self, range: Range) -> Result<(), Fault> {
        self.unmap(range)
    }

    fn equalize(&mut self, from: Range, to: Addr) -> Result<(), Fault> {
        let (mut want, mut have) = (vec![0; from.len() as usize], vec![0; from.len() as usize]);
        let copy = memory::read(self.pid, from.start, &mut want)
            .and_then(|_| memory::read(self.pid, to, &mut have))
            .and_then(|_| if want == have { Ok(()) } else { memory::write(self.pid, to, &want) });
        copy.map_err(|e| Fault::Call {
            call: "copying the last page of .data",
            range: from,
            errno: e.raw_os_error().unwrap_or(libc::EIO),
        })
    }

    fn is_copied(&mut self, pieces: &[Mapping], distance: u64) -> Result<bool, Fault> {
        let process = Process::new(self.pid.cast_unsigned());
        let mappings = process.maps().map_err(|e| Fault::Lost(e.to_string()))?;
        Ok(pieces.iter().all(|m| {
            let range = m.range.down(distance);
            // /proc/PID/maps does not show BTI.
            let prot = Prot { bti: false, ..m.prot };
            let want = Mapping { range, prot, ..m.clone() };
            overlapping(&mappings, range) == [want]
        }))
    }

    fn switch(&mut self, old: &Layout, new: &Layout) -> Result<(), Fault> {
        let none =
            || Fault::Call { call: "the auxiliary vector", range: Range::default(), errno: libc::ENOENT };
        let (from, to) = (old.entry_pointers().ok_or_else(none)?, new.entry_pointers().ok_or_else(none)?);
        // A static program begins in the executable itself.
        let is_static = self.restore_frame.regs.pc() == Addr(from.entry);
        let switched = self.point_to(new, to, is_static)?;
        if switched.pointers.is_err() || switched.layout.is_err() {
            let back = self.point_to(old, from, is_static)?;
            // Only what was done is to be undone.
            let kept = [(&switched.pointers, back.pointers), (&switched.layout, back.layout)];
            let kept =
                kept.into_iter().find_map(|(done, undone)| done.is_ok().then(|| undone.err()).flatten());
            if let Some(why) = kept {
                return Err(Fault::Lost(format!("the move of the executable was to be undone: {why}")));
            }
            return switched.pointers.and(switched.layout);
        }
        if is_static {
            self.restore_frame.regs =
                self.restore_frame.regs.at(Addr(to.entry), self.restore_frame.regs.sp());
        }
        Ok(())
    }

    fn retire(&mut self, ranges: &[Range], layout: Option<&Layout>) -> Retired {
        let lost = |fault: Fault| Retired { unmapped: fail(ranges.len(), &fault), layout: Err(fault) };
        let mut batch = self.batch();
        let unmap =
            |range: &Range| batch.add_call(libc::SYS_munmap, [range.start.0, range.len(), 0, 0, 0, 0]);
        let unmaps: Vec<usize> = ranges.iter().map(unmap).collect();
        let set = match layout.map(|layout| add_layout(&mut batch, layout)).transpose() {
            Ok(set) => set,
            Err(fault) => return lost(fault),
        };
        let made = match self.make(batch) {
            Ok(made) => made,
            Err(error) => return lost(Fault::Lost(error.to_string())),
        };
        let came = |(n, range): (&usize, &Range)| result_of(&made, *n, "munmap", *range);
        Retired {
            unmapped: unmaps.iter().zip(ranges).map(came).collect(),
            layout: set.map_or(Ok(()), |n| result_of(&made, n, SET_LAYOUT, Range::default())),
        }
    }

    fn set_layout(&mut self, layout: &Layout) -> Result<(), Fault> {
        self.retire(&[], Some(layout)).layout
    }
}

const SET_LAYOUT: &str = "prctl(PR_SET_MM_MAP)";
const WRITE: &str = "process_vm_writev to itself";

/// What came of the two calls of a switch.
struct Switched {
    pointers: Result<(), Fault>,
    layout: Result<(), Fault>,
}

impl Remote {
    /// Writes the entry pointers to the stack, and for a static program to its frame, and tells the kernel the
    /// layout. The target makes both calls in one batch: if the tracer dies meanwhile, it makes both as well. The
    /// pointers are written by one call, so no death can leave only some written.
    fn point_to(
        &mut self,
        layout: &Layout,
        pointers: EntryPointers,
        is_static: bool,
    ) -> Result<Switched, Fault> {
        let mut slots = vec![(self.auxv_slots.phdr, pointers.phdr), (self.auxv_slots.entry, pointers.entry)];
        if is_static {
            slots.push((self.restore_frame.pc_slot(), pointers.entry));
        }
        let n = slots.len() as u64;
        let mut batch = self.batch();
        let values: Vec<u64> = slots.iter().map(|(_, value)| *value).collect();
        let values = batch.add_bytes(&bytes_of(&values));
        let local = batch.add_bytes(&bytes_of(&[values, 8 * n]));
        let places: Vec<u64> = slots.iter().flat_map(|(at, _)| [at.0, 8]).collect();
        let places = batch.add_bytes(&bytes_of(&places));
        let write = batch.add_call(libc::SYS_process_vm_writev, [self.pid as u64, local, 1, places, n, 0]);
        let set = add_layout(&mut batch, layout)?;
        let made = self.make(batch).map_err(|e| Fault::Lost(e.to_string()))?;
        let pointers = match made.result(write) {
            written if errno(written).is_none() && written as u64 != 8 * n => {
                return Err(Fault::Lost(format!("{WRITE}: {written} of {} bytes", 8 * n)));
            }
            _ => result_of(&made, write, WRITE, Range::default()),
        };
        Ok(Switched { pointers, layout: result_of(&made, set, SET_LAYOUT, Range::default()) })
    }
}

/// Adds the prctl(2) that tells the kernel `layout`; returns its index.
fn add_layout(batch: &mut Batch, layout: &Layout) -> Result<usize, Fault> {
    // struct prctl_mm_map (linux/prctl.h)
    const BYTES: u64 = 104;
    /// Kernels write some 350 bytes.
    const MOST_AUXV: usize = 768;
    if 8 * layout.auxv.len() > MOST_AUXV {
        return Err(Fault::Call { call: SET_LAYOUT, range: Range::default(), errno: libc::E2BIG });
    }
    let auxv = batch.add_bytes(&bytes_of(&layout.auxv));
    let no_file = u64::from(u32::MAX) << 32;
    let map = batch.add_bytes(&bytes_of(&[
        layout.start_code,
        layout.end_code,
        layout.start_data,
        layout.end_data,
        layout.start_brk,
        layout.brk,
        layout.start_stack,
        layout.arg_start,
        layout.arg_end,
        layout.env_start,
        layout.env_end,
        auxv,
        (8 * layout.auxv.len() as u64) | no_file,
    ]));
    Ok(batch.add_call(libc::SYS_prctl, [PR_SET_MM, PR_SET_MM_MAP, map, BYTES, 0, 0]))
}

/// Returns what came of call `n` of a batch.
fn result_of(made: &BatchResults, n: usize, call: &'static str, range: Range) -> Result<(), Fault> {
    errno(made.result(n)).map_or(Ok(()), |errno| Err(Fault::Call { call, range, errno }))
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_ne_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_layout() {
        let layout = layout(Process::OWN).unwrap();
        let code = own_layout as fn() as usize as u64;
        assert!(layout.start_code < code && code < layout.end_code, "{layout:x?}");
        let entry_pointers = layout.entry_pointers().unwrap();
        assert!(layout.start_code <= entry_pointers.entry && entry_pointers.entry < layout.end_code);
        // The headers are in the segment before the code.
        assert!(entry_pointers.phdr < layout.end_code);
        assert!(layout.arg_start < layout.arg_end && layout.arg_end <= layout.env_start);
        assert_eq!(layout.auxv[layout.auxv.len() - 2..], [0, 0]);
    }
}
