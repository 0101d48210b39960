// SPDX-License-Identifier: Apache-2.0
//! Parses `/proc/PID/maps` (proc_pid_maps(5)).

use crate::addr::{Addr, Range};
use crate::printable::Escape;
use serde::Serialize;
use std::ffi::{CStr, OsStr};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// The protection of a mapping.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prot {
    /// `PROT_READ`
    pub read: bool,
    /// `PROT_WRITE`
    pub write: bool,
    /// `PROT_EXEC`
    pub exec: bool,
    /// `PROT_BTI` (AArch64): indirect branches must land on a `bti` instruction. The
    /// kernel shows it only in smaps, as `bt` among the flags.
    pub bti: bool,
}

impl Prot {
    /// No access (guard pages, reservations).
    pub const NONE: Prot = Prot { read: false, write: false, exec: false, bti: false };
    /// Read only.
    pub const R: Prot = Prot { read: true, write: false, exec: false, bti: false };
    /// Read and write.
    pub const RW: Prot = Prot { read: true, write: true, exec: false, bti: false };
    /// Read and execute.
    pub const RX: Prot = Prot { read: true, write: false, exec: true, bti: false };

    /// Returns whether it is writable and executable at once, which hugelift never makes.
    pub fn is_wx(self) -> bool {
        self.write && self.exec
    }
}

impl fmt::Display for Prot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bit = |on, c| if on { c } else { '-' };
        write!(f, "{}{}{}", bit(self.read, 'r'), bit(self.write, 'w'), bit(self.exec, 'x'))
    }
}

impl fmt::Debug for Prot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Prot {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// The file of a mapping: device and inode as maps shows them. On overlayfs and btrfs these differ from
/// stat(2)'s, so compare them only with each other.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId {
    /// Major device number.
    pub major: u32,
    /// Minor device number.
    pub minor: u32,
    /// Inode number; 0 where there is no file.
    pub inode: u64,
}

/// One line of `/proc/PID/maps`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Its addresses.
    pub range: Range,
    /// Its protection.
    pub prot: Prot,
    /// `MAP_SHARED`; otherwise it is private.
    pub shared: bool,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// The file; inode 0 for anonymous memory.
    pub file: FileId,
    /// Path or pseudo-path (`[heap]`, `[vdso]`, `[anon:...]`), without the kernel's ` (deleted)`; empty
    /// for unnamed memory.
    pub path: PathBuf,
    /// The file has been unlinked since.
    pub deleted: bool,
}

/// The name of the files in which copies on pages of the pool are made where the kernel cannot move such pages.
pub const POOL_FILE: &CStr = c"hugelift";

impl Mapping {
    /// Returns whether it maps a file of a file system.
    pub fn is_file(&self) -> bool {
        self.file.inode != 0
    }

    /// Returns whether `now` is this very mapping, as a process shows it at another time: with the same addresses, the
    /// same protection, and the same bytes of the same file. Its path does not count: a file may be renamed or removed
    /// while it is mapped. Neither does [`Prot::bti`], which the list of mappings does not show.
    pub fn is_same_as(&self, now: &Mapping) -> bool {
        let access = |prot: Prot| (prot.read, prot.write, prot.exec);
        let bytes = |m: &Mapping| (m.file, if m.is_file() { m.offset } else { 0 });
        (self.range, self.shared) == (now.range, now.shared)
            && access(self.prot) == access(now.prot)
            && bytes(self) == bytes(now)
    }

    /// Returns the part of it that lies in a range.
    pub fn within(&self, range: Range) -> Option<Mapping> {
        let range = self.range.intersect(range)?;
        // Anonymous memory has no offset.
        let offset =
            if self.is_file() { self.offset + (range.start.0 - self.range.start.0) } else { self.offset };
        Some(Mapping { range, offset, ..self.clone() })
    }

    /// Returns whether `now` is the same mapping ([`Mapping::is_same_as`]), or one of which it is a part.
    pub fn is_part_of(&self, now: &Mapping) -> bool {
        now.range.covers(self.range) && now.within(self.range).is_some_and(|part| self.is_same_as(&part))
    }

    /// Returns whether it is anonymous memory of a hugetlb pool, which the kernel lists as a deleted file.
    pub fn is_anonymous_hugetlb(&self) -> bool {
        self.deleted && !self.shared && self.path.as_os_str() == "/anon_hugepage"
    }

    /// Returns whether it is a copy on pages of the pool, which the kernel lists as a deleted file. One that covers the
    /// first page of an object begins with the object's headers, at offset 0 of that file.
    pub fn is_copy_on_pool(&self) -> bool {
        let name = self.path.as_os_str().as_bytes();
        let is_ours = || name.strip_prefix(b"/memfd:") == Some(POOL_FILE.to_bytes());
        self.is_anonymous_hugetlb() || (self.deleted && !self.shared && is_ours())
    }

    /// Returns whether the file that it maps may be that of a loaded object.
    pub fn may_be_of_object(&self) -> bool {
        self.is_file() && !self.shared && !self.is_copy_on_pool()
    }

    /// Returns whether it is one of the kernel's own pages, which must stay at their addresses: `[vdso]`,
    /// `[vvar]`, `[vsyscall]`, `[uprobes]`.
    pub fn is_kernel_code(&self) -> bool {
        let name = self.path.as_os_str().as_bytes();
        !self.is_file() && (name.starts_with(b"[v") || name == b"[uprobes]")
    }

    /// Returns whether it has the pseudo-path `name`, such as `[vdso]`.
    pub fn is_named(&self, name: &str) -> bool {
        self.path.as_os_str() == name
    }
}

/// What is wrong with a line that overlaps the mapping before it.
pub(crate) const OVERLAPS: &str = "overlaps the mapping before it";

/// A line that does not have the format of proc_pid_maps(5).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of maps: {what}: '{text}'")]
pub struct MapsError {
    /// Its number, counted from 1.
    pub line: usize,
    /// The field that is wrong.
    pub what: &'static str,
    /// The line, cut at 120 bytes.
    pub text: String,
}

impl MapsError {
    /// Returns whether the process changed its mappings while they were read. The kernel fills one buffer
    /// for each read(2) and begins the next one at the first mapping that ends behind the last one. If
    /// that mapping has grown or was merged meanwhile, it overlaps what was read before. Reading the
    /// whole file again helps.
    pub fn changed_meanwhile(&self) -> bool {
        self.what == OVERLAPS
    }
}

/// Parses all mappings of a process, which are in the order of their addresses.
///
/// # Errors
/// Returns the first line that does not parse, or that overlaps the one before it.
pub fn parse_maps(text: &[u8]) -> Result<Vec<Mapping>, MapsError> {
    let mut all: Vec<Mapping> = Vec::new();
    for (i, line) in lines(text) {
        let mapping = parse_line(line).map_err(|what| error(i, what, line))?;
        if all.last().is_some_and(|last| last.range.end > mapping.range.start) {
            return Err(error(i, OVERLAPS, line));
        }
        all.push(mapping);
    }
    Ok(all)
}

/// Returns the lines of a /proc text with their numbers from 1; a last line without a newline counts.
pub(crate) fn lines(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    text.split(|&b| b == b'\n').enumerate().map(|(i, l)| (i + 1, l)).filter(|(_, l)| !l.is_empty())
}

pub(crate) fn error(line: usize, what: &'static str, text: &[u8]) -> MapsError {
    let cut = &text[..text.len().min(120)];
    MapsError { line, what, text: cut.escaped().to_string() }
}

/// Parses one line without its newline.
pub(crate) fn parse_line(line: &[u8]) -> Result<Mapping, &'static str> {
    // "55d0c8a00000-55d0c8a01000 r-xp 00001000 fe:00 131  /usr/bin/true": five fields
    // separated by single spaces, then padding and the path, which may contain spaces.
    let mut rest = line;
    let mut field = || {
        let n = rest.iter().position(|&b| b == b' ').unwrap_or(rest.len());
        let (head, tail) = rest.split_at(n);
        rest = tail.strip_prefix(b" ").unwrap_or(tail);
        head
    };
    let (range, perms, offset, dev, inode) = (field(), field(), field(), field(), field());
    let path = rest.iter().position(|&b| b != b' ').map_or(&rest[rest.len()..], |n| &rest[n..]);

    let (start, end) = split_once(range, b'-').ok_or("no address range")?;
    let range =
        Range::new(Addr(hex(start).ok_or("bad start address")?), Addr(hex(end).ok_or("bad end address")?))
            .filter(|r| !r.is_empty())
            .ok_or("empty or inverted range")?;
    let &[r, w, x, s] = perms else { return Err("bad permissions") };
    let bit = |got: u8, want: u8| match got {
        b'-' => Ok(false),
        c if c == want => Ok(true),
        _ => Err("bad permissions"),
    };
    let prot = Prot { read: bit(r, b'r')?, write: bit(w, b'w')?, exec: bit(x, b'x')?, bti: false };
    let shared = match s {
        b's' => true,
        b'p' => false,
        _ => return Err("bad permissions"),
    };
    let (major, minor) = split_once(dev, b':').ok_or("bad device")?;
    let number = |b| hex(b).and_then(|n| u32::try_from(n).ok()).ok_or("bad device");
    let file =
        FileId { major: number(major)?, minor: number(minor)?, inode: decimal(inode).ok_or("bad inode")? };
    let deleted = file.inode != 0 && path.ends_with(b" (deleted)");
    let path = if deleted { &path[..path.len() - b" (deleted)".len()] } else { path };
    Ok(Mapping {
        range,
        prot,
        shared,
        offset: hex(offset).ok_or("bad offset")?,
        file,
        path: unescape(path),
        deleted,
    })
}

/// Undoes the kernel's only escape, which stands for the newline (`seq_file_path(m, file, "\n")`).
fn unescape(path: &[u8]) -> PathBuf {
    if !path.windows(4).any(|w| w == b"\\012") {
        return PathBuf::from(OsStr::from_bytes(path));
    }
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&b, tail)) = rest.split_first() {
        if let Some(tail) = rest.strip_prefix(b"\\012") {
            out.push(b'\n');
            rest = tail;
        } else {
            out.push(b);
            rest = tail;
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(out))
}

fn split_once(bytes: &[u8], by: u8) -> Option<(&[u8], &[u8])> {
    let n = bytes.iter().position(|&b| b == by)?;
    Some((&bytes[..n], &bytes[n + 1..]))
}

fn hex(bytes: &[u8]) -> Option<u64> {
    // from_str_radix accepts a sign, which the kernel does not write.
    if bytes.first().is_none_or(|b| !b.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(bytes).ok()?, 16).ok()
}

/// Parses a number of digits alone: `parse` would accept a sign.
pub(crate) fn decimal(bytes: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(bytes).ok()?;
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const REAL: &[u8] = b"\
00400000-00401000 r--p 00000000 fe:00 131                                /usr/bin/a b
7f0000000000-7f0000021000 rw-p 00000000 00:00 0 \n\
7fff00000000-7fff00002000 r-xp 00000000 00:00 0                          [vdso]
7fff10000000-7fff10002000 r-xs 00001000 103:02 77                        /tmp/x\\012y (deleted)
";

    #[test]
    fn real_lines() {
        let maps = parse_maps(REAL).unwrap();
        assert_eq!(maps.len(), 4);
        assert_eq!(maps[0].path, Path::new("/usr/bin/a b"));
        assert!(maps[0].is_file() && maps[0].prot == Prot::R && !maps[0].deleted);
        assert!(!maps[1].is_file() && maps[1].path == Path::new(""));
        assert!(maps[2].is_named("[vdso]"));
        assert!(maps[3].deleted && maps[3].shared && maps[3].path == Path::new("/tmp/x\ny"));
        assert_eq!(maps[3].file, FileId { major: 0x103, minor: 2, inode: 77 });
    }

    /// Each field that the program can change tells two mappings apart; what others can change does not.
    #[test]
    fn the_same_mapping_has_the_same_protection_and_bytes() {
        let all = parse_maps(REAL).unwrap();
        let (code, bss) = (&all[0], &all[1]);
        let renamed = Mapping { path: "/usr/bin/b".into(), deleted: true, ..code.clone() };
        let guarded = Mapping { prot: Prot { bti: true, ..code.prot }, ..code.clone() };
        assert!(code.is_same_as(&renamed) && code.is_same_as(&guarded) && guarded.is_same_as(code));
        // The kernel may say any offset of anonymous memory.
        assert!(bss.is_same_as(&Mapping { offset: 0x1000, ..bss.clone() }));
        let end = Addr(code.range.end.0 + 0x1000);
        for other in [
            Mapping { prot: Prot { write: true, ..code.prot }, ..code.clone() },
            Mapping { prot: Prot::RX, ..code.clone() },
            Mapping { prot: Prot::NONE, ..code.clone() },
            Mapping { range: Range { end, ..code.range }, ..code.clone() },
            Mapping { shared: true, ..code.clone() },
            Mapping { offset: 0x1000, ..code.clone() },
            Mapping { file: FileId { inode: 132, ..code.file }, ..code.clone() },
            Mapping { file: FileId { minor: 1, ..code.file }, ..code.clone() },
            Mapping { file: FileId::default(), ..code.clone() },
        ] {
            assert!(!code.is_same_as(&other) && !other.is_same_as(code), "{other:?}");
        }
    }

    #[test]
    fn hostile_lines_are_errors_with_their_number() {
        for bad in [
            "x",
            "1000-1000 r--p 0 0:0 0",
            "2000-1000 r--p 0 0:0 0",
            "1000-2000 r--q 0 0:0 0",
            "1000-2000 rwx 0 0:0 0",
            "1000-2000 r--p +0 0:0 0",
            "1000-2000 r--p 0 0 0",
            "1000-2000 r--p 0 0:0 -1",
            "1000-2000 r--p 0 0:0 +1",
            "1000-fffffffffffffffff r--p 0 0:0 0",
        ] {
            assert_eq!(parse_maps(bad.as_bytes()).unwrap_err().line, 1, "{bad}");
        }
        let twice = [REAL, b"7fff00001000-7fff00003000 r--p 0 0:0 0"].concat();
        assert_eq!(parse_maps(&twice).unwrap_err().line, 5);
    }

    /// A program whose first segment holds text and the headers (`-z noseparate-code`), lifted by
    /// `attach --backing hugetlb`. Position-independent programs of AArch64 look the same where the random base is a
    /// multiple of a huge page.
    #[test]
    fn copies_on_the_pool_are_of_no_object() {
        let maps = parse_maps(
            b"\
00400000-00800000 r-xp 00000000 00:11 128768                             /anon_hugepage (deleted)
00800000-00c00000 r-xp 00400000 00:11 128768                             /anon_hugepage (deleted)
00c00000-01000000 r-xp 00800000 00:11 128768                             /anon_hugepage (deleted)
01000000-01002000 r-xp 00c00000 fe:00 10078454                           /tmp/wait.nosep
01002000-01003000 r--p 00c01000 fe:00 10078454                           /tmp/wait.nosep
01003000-01004000 rw-p 00c02000 fe:00 10078454                           /tmp/wait.nosep
33595000-335b6000 rw-p 00000000 00:00 0                                  [heap]
",
        )
        .unwrap();
        let of_object: Vec<_> = maps.iter().filter(|m| m.may_be_of_object()).collect();
        assert_eq!(of_object.iter().map(|m| m.offset).collect::<Vec<_>>(), [0xc0_0000, 0xc0_1000, 0xc0_2000]);

        let only = |line: &str| parse_maps(line.as_bytes()).unwrap().remove(0);
        let ours = only("400000-800000 r-xp 00000000 00:11 3 /memfd:hugelift (deleted)");
        assert!(ours.is_copy_on_pool() && !ours.is_anonymous_hugetlb());
        for program in [
            "400000-800000 r-xp 00000000 00:01 3 /memfd:runc_cloned:/proc/self/exe (deleted)",
            "400000-800000 r-xp 00000000 fe:00 3 /tmp/upgraded (deleted)",
            "400000-800000 r-xp 00000000 fe:00 3 /anon_hugepage",
            "400000-800000 r-xp 00000000 fe:00 3 /memfd:hugelift",
        ] {
            assert!(only(program).may_be_of_object(), "{program}");
        }
    }
}
