// SPDX-License-Identifier: Apache-2.0
//! Makes snapshots of recorded programs (fixtures/record.py).
#![allow(dead_code, reason = "each test file uses its own part of this")]

pub mod cases;

use hugelift_core::addr::PageSize;
use hugelift_core::elf::Headers;
use hugelift_core::maps::{Mapping, parse_maps};
use hugelift_core::snapshot::{Machine, Object, Pool, Snapshot};
use std::path::Path;

macro_rules! programs {
    ($($name:literal),*) => {
        /// Every recorded program, by name.
        pub const PROGRAMS: &[(&str, &str)] = &[$(($name, include_str!(concat!("../fixtures/", $name, ".txt")))),*];
    };
}
programs!("clang", "go", "java", "mariadbd", "musl", "node", "python", "rustc", "static", "static_pie");

/// Returns the text of maps in a record.
pub fn maps(record: &str) -> String {
    record
        .lines()
        .filter(|l| !l.starts_with("head ") && !l.starts_with("table "))
        .flat_map(|l| [l, "\n"])
        .collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    hex.as_bytes().chunks(2).map(byte).collect()
}

/// Returns the ELF heads in a record, with their paths.
pub fn heads(record: &str) -> Vec<(&str, Vec<u8>)> {
    let heads = record.lines().filter_map(|l| l.strip_prefix("head ")?.rsplit_once(' '));
    heads.map(|(path, hex)| (path, bytes(hex))).collect()
}

/// Returns offset and bytes of the program headers of `path` in a record, if they are not at the start of
/// the file.
pub fn table(record: &str, path: &str) -> Option<(u64, Vec<u8>)> {
    let line = record.lines().find_map(|l| l.strip_prefix("table ")?.strip_prefix(path));
    let (offset, hex) = line?.trim_start().split_once(' ').unwrap();
    Some((offset.parse().unwrap(), bytes(hex)))
}

/// Parses the headers of `path` in a record.
pub fn headers(record: &str, path: &str, head: &[u8]) -> Headers {
    let deeper =
        |offset, size| table(record, path).filter(|(at, t)| (*at, t.len()) == (offset, size)).map(|(_, t)| t);
    Headers::parse_with(head, deeper).unwrap()
}

/// Returns all ELF heads of all records.
pub fn all_heads() -> Vec<Vec<u8>> {
    PROGRAMS.iter().flat_map(|(_, record)| heads(record)).map(|(_, head)| head).collect()
}

/// Returns a machine with enough pages of both kinds.
pub fn machine() -> Machine {
    Machine {
        base_page: PageSize::SMALL,
        thp_page: Some(PageSize::MB2),
        folios: Vec::new(),
        thp_off: None,
        allows_thp: false,
        pools: vec![pool(PageSize::MB2, 4096)],
        moves_hugetlb: true,
        memory_left: 16 << 30,
        memory_limit: None,
    }
}

/// Returns a pool of `free` pages, all of them free.
pub fn pool(page: PageSize, free: u64) -> Pool {
    Pool { page, total: free, free, reserved: 0, surplus: 0, overcommit: 0 }
}

/// Returns a snapshot of the recorded program on `machine`.
pub fn snapshot(record: &str, machine: Machine) -> Snapshot {
    let mappings = parse_maps(maps(record).as_bytes()).unwrap();
    let objects = heads(record).into_iter().enumerate();
    let objects = objects
        .map(|(i, (path, head))| object(path, headers(record, path, &head), i == 0, &mappings))
        .collect();
    let brk = mappings.iter().find(|m| m.is_named("[heap]")).map(|m| m.range.start);
    Snapshot { brk, ..Snapshot::new(objects, mappings, machine) }
}

fn object(path: &str, headers: Headers, executable: bool, mappings: &[Mapping]) -> Object {
    let first = mappings.iter().find(|m| m.path == Path::new(path) && m.offset == 0).unwrap();
    let bias = first.range.start.0.wrapping_sub(headers.first_page(4096));
    let (path, file) = (first.path.clone(), first.file);
    Object { path, file, build_id: None, bias, headers, executable, textrel: false }
}
