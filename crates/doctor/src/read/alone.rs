// SPDX-License-Identifier: Apache-2.0
//! Tries what this machine does for huge pages by itself. Newer kernels read code in large folios and align large mappings;
//! newer loaders and service managers have switches of their own. Nothing is concluded from a version.

use super::probes::{LARGEST, checked, in_child, new_file};
use crate::facts::{Alone, Tried};
use hugelift_core::addr::{Addr, PageSize, Range, human_bytes};
use hugelift_core::folios::Folios;
use hugelift_core::printable::{Escape, text_to_parse};
use hugelift_linux::command::wait_for;
use hugelift_linux::machine::sysfs;
use hugelift_linux::machine::thp_switch::Allowance;
use hugelift_linux::proc::folios::Reader;
use hugelift_linux::proc::pagemap;
use hugelift_linux::proc::procfs::Process;
use hugelift_pages::pagecache::prime::file_system;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::ptr;
use std::time::Duration;

/// How long a command may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Huge pages of the file that is read.
const PAGES: usize = 4;
/// Where the C library's loader is, by architecture (the psABIs).
const LOADERS: [&str; 2] = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
/// It exists if systemd is the service manager (sd_booted(3)).
const SYSTEMD: &str = "/run/systemd/system";

/// Tries everything, with a file in `folder`.
pub fn try_all(folder: &Path) -> Alone {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let huge = sysfs::thp(&read).1.map(PageSize::bytes).filter(|bytes| *bytes <= LARGEST);
    let Some(huge) = huge.and_then(|bytes| usize::try_from(bytes).ok()) else {
        let none = || Tried::unknown("no transparent huge pages of a size to try");
        return Alone { code: none(), aligned_files: none(), memory: none(), ..switches() };
    };
    let file = new_file(folder, huge * PAGES);
    // A tmpfs has its files in memory, and aligns mappings by rules of its own.
    let in_memory =
        file.as_ref().map(file_system).ok().filter(|name| ["tmpfs", "ramfs"].contains(&name.as_str()));
    let with_file = |probe: fn(usize, &File) -> io::Result<Tried>| match (&file, &in_memory) {
        (_, Some(name)) => {
            let folder = folder.escaped();
            Tried::unknown(format!("{folder} is a {name}; hugelift doctor --dir DIR tries another folder"))
        }
        (Ok(file), None) => in_child(|| probe(huge, file)),
        (Err(error), None) => Tried::unknown(format!("cannot make a file in {}: {error}", folder.escaped())),
    };
    Alone {
        aligned_files: with_file(aligned),
        code: with_file(code),
        memory: in_child(|| memory(huge)),
        ..switches()
    }
}

/// Tries the switches of others.
fn switches() -> Alone {
    Alone {
        except_advised: in_child(|| {
            let is_known = Allowance::is_except_advised_known();
            Ok(if is_known { Tried::yes() } else { Tried::no("prctl(2) refuses it") })
        }),
        loader: loader(),
        units: units(),
        ..Alone::default()
    }
}

/// Maps `len` bytes at an address of the kernel's choice.
fn map(len: usize, prot: i32, file: Option<&File>) -> io::Result<*mut u8> {
    let (flags, fd) = match file {
        Some(file) => (libc::MAP_PRIVATE, file.as_raw_fd()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    // SAFETY: mmap(2) at an address of the kernel's choice. The child that calls this ends with its mappings.
    let mapped = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, fd, 0) };
    checked(mapped).map(<*mut libc::c_void>::cast)
}

/// Maps a file as a loader maps code.
fn map_code(huge: usize, file: &File) -> io::Result<*mut u8> {
    let len = huge * PAGES;
    map(len, libc::PROT_READ | libc::PROT_EXEC, Some(file)).or_else(|_| map(len, libc::PROT_READ, Some(file)))
}

fn aligned(huge: usize, file: &File) -> io::Result<Tried> {
    // One of them may be aligned by chance.
    for _ in 0..3 {
        let start = map_code(huge, file)?;
        if !start.addr().is_multiple_of(huge) {
            let huge = human_bytes(huge as u64);
            return Ok(Tried::no(format!("a mapping of {PAGES} pages of {huge} began within one")));
        }
        // An odd stretch between the mappings: the next one is not aligned because this one is.
        map(4096, libc::PROT_READ, None)?;
    }
    Ok(Tried::yes())
}

/// Reads a file that is not in memory from its begin to its end, as a program that uses all of its code.
fn code(huge: usize, file: &File) -> io::Result<Tried> {
    // SAFETY: posix_fadvise(2) on an open descriptor; the file was written back before.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    let (start, len) = (map_code(huge, file)?, huge * PAGES);
    let mut present = vec![0u8; len.div_ceil(4096)];
    // SAFETY: mincore(2) writes one byte at most for each 4 kB of the mapping.
    if unsafe { libc::mincore(start.cast(), len, present.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if present.iter().any(|page| page & 1 != 0) {
        return Ok(Tried::unknown("the file that was to be read anew stayed in memory"));
    }
    for at in (0..len).step_by(4096) {
        // SAFETY: inside the mapping, which is readable.
        unsafe { start.add(at).read_volatile() };
    }
    let range = Range::sized(Addr(start.addr() as u64), len as u64).ok_or(io::ErrorKind::InvalidData)?;
    let mapped = pagemap::huge_bytes_at_least(Process::OWN.pid().cast_signed(), range)?;
    let found = format!("{} of {}", human_bytes(mapped), human_bytes(range.len()));
    let sizes = || {
        let mut folios = Folios::default();
        Reader::open(std::process::id()).ok()?.add(range, &mut folios).ok()?;
        let (least, most) = (folios.bytes.keys().next()?, folios.bytes.keys().last()?);
        let up_to = if most > least { format!(" to {}", human_bytes(*most)) } else { String::new() };
        Some(format!(", in folios of {}{up_to}", human_bytes(*least)))
    };
    let detail = found + &sizes().unwrap_or_default();
    Ok(Tried { works: Some(mapped >= range.len() / 2), detail: Some(detail) })
}

fn memory(huge: usize) -> io::Result<Tried> {
    let start = map(2 * huge, libc::PROT_READ | libc::PROT_WRITE, None)?;
    let first = start.addr().next_multiple_of(huge);
    // SAFETY: of two huge pages one whole one lies in the mapping, which is writable.
    unsafe { start.add(first - start.addr()).write_volatile(1) };
    let range = Range::sized(Addr(first as u64), huge as u64).ok_or(io::ErrorKind::InvalidData)?;
    let found = pagemap::huge_bytes_at_least(Process::OWN.pid().cast_signed(), range)?;
    Ok(if found >= range.len() { Tried::yes() } else { Tried::no("the first touch gave a small page") })
}

/// Asks the C library's loader for its tunables.
fn loader() -> Tried {
    let Some(path) = LOADERS.iter().map(Path::new).find(|path| path.exists()) else {
        return Tried::unknown("no loader of glibc");
    };
    match said(Command::new(path).arg("--list-tunables")) {
        Ok(all) if all.lines().any(|line| line.starts_with("glibc.elf.thp")) => Tried::yes(),
        Ok(_) => Tried::no(format!("{} has no such tunable", path.escaped())),
        Err(error) => Tried::unknown(error),
    }
}

/// Asks the running systemd for a property that services have, of one that each machine with systemd has.
fn units() -> Tried {
    if !Path::new(SYSTEMD).exists() {
        return Tried::unknown("systemd does not run here");
    }
    let words = ["show", "--property=MemoryTHP", "systemd-journald.service"];
    match said(Command::new("/usr/bin/systemctl").args(words)) {
        Ok(shown) if shown.starts_with("MemoryTHP=") => Tried::yes(),
        Ok(_) => Tried::no("this systemd has no such property"),
        Err(error) => Tried::unknown(error),
    }
}

/// Returns what a command prints, which is less than a pipe holds (pipe(7)).
fn said(command: &mut Command) -> Result<String, String> {
    let name = PathBuf::from(command.get_program());
    let failed = |error: io::Error| format!("{}: {error}", name.escaped());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(failed)?;
    let status = wait_for(&mut child, PATIENCE).map_err(failed)?;
    let status = status.ok_or_else(|| format!("{} has not answered in {PATIENCE:?}", name.escaped()))?;
    let mut bytes = Vec::new();
    child.stdout.take().map_or(Ok(0), |mut out| out.read_to_end(&mut bytes)).map_err(failed)?;
    match status.success() {
        true => Ok(text_to_parse(&bytes).into_owned()),
        false => Err(format!("{}: {status}", name.escaped())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_32_6_everything_is_tried() {
        let alone = try_all(&std::env::temp_dir());
        let Alone { code, aligned_files, memory, except_advised, loader, units } = &alone;
        assert!(except_advised.works.is_some(), "{alone:?}");
        for tried in [code, aligned_files, memory] {
            let is_told = tried.works.is_some() || tried.detail.is_some();
            assert!(is_told, "{alone:?}");
        }
        // What is not known has its reason.
        for tried in [loader, units] {
            assert!(tried.works == Some(true) || tried.detail.is_some(), "{alone:?}");
        }
    }
}
