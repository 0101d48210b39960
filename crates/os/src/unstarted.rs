// SPDX-License-Identifier: Apache-2.0
//! A process right behind its execve(2): finding its executable's image, and moving it.

use crate::memory;
use crate::procfs::{Auxv, Process};
use crate::ptrace::Error;
use crate::remote::{Remote, prot_bits};
use crate::snapshot::add_bti;
use hugelift_core::addr::{Addr, PageSize, Range};
use hugelift_core::elf::{HEAD_BYTES, Headers};
use hugelift_core::maps::{Mapping, Prot};
use hugelift_core::moving::{Anchors, Image, Layout, Unstarted};
use hugelift_core::snapshot::overlapping;
use hugelift_core::target::{Fault, FileHandle, Target};
use std::io;

/// The executable of process `pid`, as execve(2) has mapped it; `None` if it is not as usual.
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
    add_bti(process, mappings).ok()?;
    let image = Image::new(mappings, headers, first, page).ok()?;
    (image.headers.entry.wrapping_add(image.bias) == auxv.entry).then_some(image)
}

/// The addresses that the kernel keeps of process `pid`, whose program break has not moved yet.
///
/// # Errors
/// /proc cannot be read, or hides them.
pub fn layout(process: Process) -> io::Result<Layout> {
    let failed = |e: crate::procfs::ProcError| io::Error::other(e.to_string());
    let stat = process.read("stat").map_err(failed)?;
    let auxv = process.read("auxv").map_err(failed)?;
    let word = |c: &[u8]| c.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b));
    let mut layout = parse_stat(&stat).ok_or_else(|| io::Error::other("no addresses in /proc/PID/stat"))?;
    layout.auxv = auxv.chunks_exact(8).map(word).collect();
    Ok(layout)
}

/// The addresses in `/proc/PID/stat` (proc_pid_stat(5)); `None` if they are hidden.
fn parse_stat(text: &[u8]) -> Option<Layout> {
    // "pid (name) state ...", and the name may hold anything.
    let behind = text.windows(2).rposition(|w| w == b") ")? + 2;
    let rest = std::str::from_utf8(&text[behind..]).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // The first of these is field 3 of proc(5).
    let field = |n: usize| fields.get(n - 3)?.parse::<u64>().ok();
    let layout = Layout {
        start_code: field(26)?,
        end_code: field(27)?,
        start_stack: field(28)?,
        start_data: field(45)?,
        end_data: field(46)?,
        start_brk: field(47)?,
        brk: field(47)?,
        arg_start: field(48)?,
        arg_end: field(49)?,
        env_start: field(50)?,
        env_end: field(51)?,
        auxv: Vec::new(),
    };
    (layout.start_code != 0 && layout.start_brk != 0).then_some(layout)
}

const PR_SET_MM: u64 = 35;
const PR_SET_MM_MAP: u64 = 14;

impl Unstarted for Remote {
    fn open_executable(&mut self) -> Result<FileHandle, Fault> {
        self.lay_out(b"/proc/self/exe\0")?;
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
        let args = [libc::AT_FDCWD as i64 as u64, self.home.data.0, flags, 0, 0, 0];
        let fd = self.call("openat of /proc/self/exe", Range::default(), libc::SYS_openat, args)?;
        Ok(FileHandle(fd as i32))
    }

    fn map_file(&mut self, range: Range, prot: Prot, file: FileHandle, offset: u64) -> Result<(), Fault> {
        const CALL: &str = "mmap of the executable";
        let flags = (libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE) as u64;
        let args = [range.start.0, range.len(), prot_bits(prot), flags, file.0 as u64, offset];
        let got = self.call(CALL, range, libc::SYS_mmap, args)?;
        if got != range.start.0 {
            // Kernels before 4.17 take the address as a hint.
            if let Some(elsewhere) = Range::sized(Addr(got), range.len()) {
                self.munmap(elsewhere)?;
            }
            return Err(Fault::Call { call: CALL, range, errno: libc::EEXIST });
        }
        Ok(())
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
        let down = |at: Addr| Addr(at.0 - distance);
        Ok(pieces.iter().all(|m| {
            let range = Range { start: down(m.range.start), end: down(m.range.end) };
            // maps does not show it.
            let prot = Prot { bti: false, ..m.prot };
            let want = Mapping { range, prot, ..m.clone() };
            overlapping(&mappings, range) == [want]
        }))
    }

    fn anchor(&mut self, anchors: Anchors) -> Result<(), Fault> {
        const CALL: &str = "process_vm_writev to itself";
        let mut slots = vec![(self.vector.phdr, anchors.phdr), (self.vector.entry, anchors.entry)];
        if slots.iter().any(|(at, _)| at.0 == 0) {
            return Err(Fault::Call { call: CALL, range: Range::default(), errno: libc::EFAULT });
        }
        // A static program goes on at its own entry point: in the registers that we hold, and in
        // those that the way home has.
        let entry = memory::read_array(self.pid, self.vector.entry).map(u64::from_ne_bytes);
        let is_static = entry.is_ok_and(|entry| self.home.regs.pc() == Addr(entry));
        if is_static {
            slots.push((self.home.pc_slot(), anchors.entry));
        }
        // Made by the target in one call: nobody's death can come between.
        let (data, n) = (self.home.data.0, slots.len() as u64);
        let mut words: Vec<u64> = slots.iter().map(|(_, value)| *value).collect();
        words.extend([data, 8 * n]);
        words.extend(slots.iter().flat_map(|(at, _)| [at.0, 8]));
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        self.lay_out(&bytes)?;
        let args = [self.pid as u64, data + 8 * n, 1, data + 8 * n + 16, n, 0];
        let written = self.call(CALL, Range::default(), libc::SYS_process_vm_writev, args)?;
        if written != 8 * n {
            return Err(Fault::Lost(format!("{CALL}: {written} of {} bytes", 8 * n)));
        }
        if is_static {
            self.home.regs = self.home.regs.at(Addr(anchors.entry), self.home.regs.sp());
        }
        Ok(())
    }

    fn set_layout(&mut self, layout: &Layout) -> Result<(), Fault> {
        const CALL: &str = "prctl(PR_SET_MM_MAP)";
        let data = self.home.data.0;
        // struct prctl_mm_map (linux/prctl.h), and the vector behind it.
        const BYTES: u64 = 104;
        let mut words = vec![
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
            data + BYTES,
        ];
        let no_file = u64::from(u32::MAX) << 32;
        words.push(8 * layout.auxv.len() as u64 | no_file);
        words.extend(&layout.auxv);
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        self.lay_out(&bytes)?;
        let args = [PR_SET_MM, PR_SET_MM_MAP, data, BYTES, 0, 0];
        self.call(CALL, Range::default(), libc::SYS_prctl, args).map(drop)
    }
}

impl Remote {
    /// Puts arguments of a system call where the program does not look.
    fn lay_out(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        if bytes.len() as u64 > crate::home::DATA_BYTES {
            return Err(Fault::Call { call: "its arguments", range: Range::default(), errno: libc::E2BIG });
        }
        let stopped = self.stopped.as_ref().ok_or(Error::Vanished(self.pid));
        stopped.and_then(|s| self.home.write_data(s, bytes)).map_err(|e| Fault::Lost(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_layout() {
        let layout = layout(Process::OWN).unwrap();
        let code = own_layout as fn() as usize as u64;
        assert!(layout.start_code < code && code < layout.end_code, "{layout:x?}");
        let anchors = layout.anchors().unwrap();
        assert!(layout.start_code <= anchors.phdr && anchors.phdr < layout.end_code);
        assert!(layout.arg_start < layout.arg_end && layout.arg_end <= layout.env_start);
        assert_eq!(layout.auxv[layout.auxv.len() - 2..], [0, 0]);
    }

    #[test]
    fn names_and_short_lines_in_stat() {
        let own = std::fs::read("/proc/self/stat").unwrap();
        let behind = own.windows(2).rposition(|w| w == b") ").unwrap();
        let odd = [b"1 (a) b) S (c", &own[behind..]].concat();
        assert_eq!(parse_stat(&odd), parse_stat(&own));
        for cut in 0..own.len().min(200) {
            assert_eq!(parse_stat(&own[..cut]), None);
        }
        assert_eq!(parse_stat(b""), None);
    }
}
