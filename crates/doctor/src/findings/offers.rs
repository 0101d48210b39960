// SPDX-License-Identifier: Apache-2.0
//! The options for huge pages that programs and allocators have themselves, and whether they are on, by
//! the arguments and the environment that a process was started with.
//!
//! The source of each entry is the program's manual: java(1), `node --help`, the PHP, PostgreSQL,
//! MySQL and MariaDB manuals, the Go documentation of `runtime`, the glibc manual ("Memory
//! Allocation Tunables"), jemalloc(3), the gperftools and mimalloc documentation.

use super::finding::Finding;
use super::process::name;
use crate::facts::Process;
use hugelift_core::addr::human_bytes;
use serde::Serialize;

/// The least memory for which an allocator's option is worth it.
const MUCH_HEAP: u64 = 64 << 20;
const GLIBC: &str = "glibc's malloc";

/// An option for huge pages that a program has itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Offer {
    /// The program or allocator.
    pub who: &'static str,
    /// The option that switches it on.
    pub how: &'static str,
    /// Whether it is on; `None` if that cannot be seen from outside.
    pub on: Option<bool>,
    /// The evidence for that.
    pub seen: String,
}

/// Returns the options that the process has.
pub fn offers(process: &Process) -> Vec<Offer> {
    let mut all = Vec::new();
    all.extend([java, node, php, postgres, mysql, go].into_iter().filter_map(|offer| offer(process)));
    all.extend(allocators(process));
    all
}

pub(super) fn findings(process: &Process, out: &mut Vec<Finding>) {
    for offer in offers(process).into_iter().filter(|o| o.on == Some(false)) {
        let title = format!("{} could put more on huge pages by itself", offer.who);
        let why = format!(
            "{} of its private memory are mostly on small pages, and hugelift lifts code and constants",
            human_bytes(process.anonymous)
        );
        out.push(
            Finding::note("program-offers", title, why)
                .seen(format!("/proc/{}", process.pid), offer.seen)
                .advice(format!("start it with {}", offer.how)),
        );
    }
}

fn has_object(process: &Process, start: &str) -> bool {
    process.objects.iter().any(|o| o.rsplit('/').next().is_some_and(|n| n.starts_with(start)))
}

/// Returns the last word that starts with one of `starts`, in the variables and then in the arguments.
fn word(process: &Process, variables: &[&str], starts: &[&str]) -> Option<String> {
    let from_env = variables.iter().filter_map(|v| variable(process, v)).flat_map(str::split_whitespace);
    let mut words = from_env.chain(process.args.iter().map(String::as_str));
    words.rfind(|w| starts.iter().any(|s| w.starts_with(s))).map(str::to_string)
}

fn variable<'a>(process: &'a Process, name: &str) -> Option<&'a str> {
    process.environment.iter().find_map(|e| e.strip_prefix(name)?.strip_prefix('='))
}

/// Makes an offer that a word switches on or off; without the word it is off.
fn by_word(who: &'static str, how: &'static str, word: Option<String>, off: &[&str]) -> Offer {
    let on = word.as_ref().is_some_and(|w| !off.iter().any(|o| w == o));
    let seen = word.unwrap_or_else(|| "no such option in its arguments and its environment".into());
    Offer { who, how, on: Some(on), seen }
}

fn java(process: &Process) -> Option<Offer> {
    if name(process) != "java" && !has_object(process, "libjvm.so") {
        return None;
    }
    let starts = [
        "-XX:+UseLargePages",
        "-XX:+UseTransparentHugePages",
        "-XX:-UseLargePages",
        "-XX:-UseTransparentHugePages",
    ];
    let word = word(process, &["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"], &starts);
    Some(by_word(
        "the JVM",
        "-XX:+UseTransparentHugePages, or -XX:+UseLargePages with a pool",
        word,
        &starts[2..],
    ))
}

fn node(process: &Process) -> Option<Offer> {
    if !["node", "nodejs"].contains(&name(process)) {
        return None;
    }
    let word = word(process, &["NODE_OPTIONS"], &["--use-largepages"]);
    let mut offer =
        by_word("node", "--use-largepages=silent, or hugelift run", word, &["--use-largepages=off"]);
    // Its code may be huge without the option: then there is nothing left to gain.
    if process.text.liftable > 0 && process.text.huge.saturating_mul(2) >= process.text.liftable {
        (offer.on, offer.seen) = (Some(true), "smaps: most of its code is huge already".into());
    }
    Some(offer)
}

fn php(process: &Process) -> Option<Offer> {
    let own = name(process);
    if !own.starts_with("php") && !has_object(process, "libphp") {
        return None;
    }
    let word = process.args.iter().rfind(|w| w.contains("opcache.huge_code_pages=")).cloned();
    let on = word.as_ref().map(|w| w.ends_with("=1") || w.to_ascii_lowercase().ends_with("=on"));
    let seen = word.unwrap_or_else(|| "not in its arguments; php -i shows what php.ini sets".into());
    Some(Offer { who: "PHP", how: "-d opcache.huge_code_pages=1", on, seen })
}

fn postgres(process: &Process) -> Option<Offer> {
    if !["postgres", "postmaster"].contains(&name(process)) {
        return None;
    }
    let how = "huge_pages=on, and a pool as large as its shared memory";
    if process.shared_hugetlb > 0 {
        return Some(in_use("PostgreSQL", how, process.shared_hugetlb));
    }
    let from_args = process.args.iter().rev().find_map(|a| a.split_once("huge_pages=").map(|(_, v)| v));
    let value = from_args.or(process.postgres_huge_pages.as_deref());
    // "try", the default, falls back to small pages silently.
    let seen =
        format!("huge_pages = {}, and no memory of a pool is mapped", value.unwrap_or("try (the default)"));
    Some(Offer { who: "PostgreSQL", how, on: Some(false), seen })
}

fn in_use(who: &'static str, how: &'static str, bytes: u64) -> Offer {
    Offer { who, how, on: Some(true), seen: format!("smaps: {} on pages of a pool", human_bytes(bytes)) }
}

fn mysql(process: &Process) -> Option<Offer> {
    let who = match name(process) {
        "mysqld" => "MySQL",
        "mariadbd" => "MariaDB",
        _ => return None,
    };
    let how = "--large-pages, and a pool as large as its buffer pool";
    let pooled = process.shared_hugetlb.saturating_add(process.writable_hugetlb);
    if pooled > 0 {
        return Some(in_use(who, how, pooled));
    }
    let word = word(process, &[], &["--large-pages", "--large_pages", "--skip-large-pages"]);
    let seen = word.unwrap_or_else(|| "no --large-pages in its arguments".into())
        + ", and no memory of a pool is mapped";
    Some(Offer { who, how, on: Some(false), seen })
}

fn go(process: &Process) -> Option<Offer> {
    if !process.go {
        return None;
    }
    let debug = variable(process, "GODEBUG").unwrap_or_default();
    let disabled = debug.split(',').any(|w| w == "disablethp=1");
    let how = "no disablethp=1 in GODEBUG; its heap is then huge where the machine's setting is 'always'";
    let seen = if debug.is_empty() { "no GODEBUG".into() } else { format!("GODEBUG={debug}") };
    Some(Offer { who: "Go", how, on: disabled.then_some(false), seen })
}

/// Returns the option of its allocator, which the mapped objects show.
fn allocators(process: &Process) -> Option<Offer> {
    let by_variable = |who, how, name: &str, is_on: &dyn Fn(&str) -> bool| {
        let value = variable(process, name);
        let seen = value.map_or(format!("no {name} in its environment"), |v| format!("{name}={v}"));
        Offer { who, how, on: Some(value.is_some_and(is_on)), seen }
    };
    let mut offer = if has_object(process, "libjemalloc") {
        let on = |v: &str| v.split(',').any(|w| w == "thp:always");
        by_variable("jemalloc", "MALLOC_CONF=thp:always,metadata_thp:auto", "MALLOC_CONF", &on)
    } else if has_object(process, "libmimalloc") {
        let how = "MIMALLOC_ALLOW_LARGE_OS_PAGES=1";
        by_variable("mimalloc", how, "MIMALLOC_ALLOW_LARGE_OS_PAGES", &|v| {
            !["0", "off", "no", "false"].contains(&v)
        })
    } else if has_object(process, "libtcmalloc") {
        let how = "TCMALLOC_MEMFS_MALLOC_PATH=FOLDER of a mounted hugetlbfs";
        by_variable("tcmalloc", how, "TCMALLOC_MEMFS_MALLOC_PATH", &|v| !v.is_empty())
    } else if has_object(process, "libc.so.6") && !["java", "node"].contains(&name(process)) && !process.go {
        let on =
            |v: &str| v.split(':').any(|w| w.strip_prefix("glibc.malloc.hugetlb=").is_some_and(|n| n != "0"));
        by_variable(GLIBC, "GLIBC_TUNABLES=glibc.malloc.hugetlb=1", "GLIBC_TUNABLES", &on)
    } else {
        return None;
    };
    // Without the option too the memory may be huge already, or there is little of it. Of glibc's malloc it is known which
    // memory is its own: a runtime with an allocator of its own has none there.
    let bytes = if offer.who == GLIBC { process.malloc } else { process.anonymous };
    let huge = process.writable_thp.saturating_add(process.writable_hugetlb);
    if offer.on == Some(false) && (bytes < MUCH_HEAP || huge.saturating_mul(2) >= process.anonymous) {
        offer.on = None;
        offer.seen = format!("{} of memory, {} of it huge", human_bytes(bytes), human_bytes(huge));
    }
    // Advice and collapse do nothing then.
    if offer.on == Some(false) && process.thp_enabled == Some(false) {
        offer.on = None;
        offer.seen = "transparent huge pages are off for it (PR_SET_THP_DISABLE)".into();
    }
    Some(offer)
}
