// SPDX-License-Identifier: Apache-2.0
//! Findings on made-up facts; the tests of the command have recorded machines.

use super::*;
use crate::facts::{CodeObject, Coverage, Limit, Probes, Process, Reading, Thp, Tried, Zone};
use hugelift_core::pool::{NodePool, SizePool};
use offers::offers;
use proptest::prelude::*;
use shell::write_command;

fn keys(facts: &Facts) -> Vec<&'static str> {
    diagnose(facts).iter().map(|f| f.key).collect()
}

fn reading(value: &str) -> Option<Reading> {
    Some(Reading { source: "/x".into(), value: value.into() })
}

fn process(exe: &str) -> Process {
    let (args, start) = (vec![exe.into()], vec![exe.into()]);
    Process { pid: 7, exe: exe.into(), args, start, ..Process::default() }
}

fn of(process: Process) -> Facts {
    Facts { process: Some(process), ..Facts::default() }
}

#[test]
fn no_facts_give_no_findings() {
    assert_eq!(keys(&Facts::default()), Vec::<&str>::new());
    assert_eq!(keys(&of(process("/bin/x"))), Vec::<&str>::new());
}

#[test]
fn attach_is_advised_where_it_helps() {
    let text = Coverage { bytes: 9 << 20, liftable: 8 << 20, huge: 0 };
    let small = CodeObject { path: "/lib/x.so".into(), text, opened: true, ..CodeObject::default() };
    let advice = |attaches, object: CodeObject| {
        let facts = Facts { attaches, ..of(Process { text, code: vec![object], ..process("/bin/x") }) };
        diagnose(&facts).into_iter().find(|f| f.key == "code-not-huge").and_then(|f| f.advice)
    };
    assert_eq!(advice(true, small.clone()).as_deref(), Some("lift it as it runs: hugelift attach 7"));
    assert_eq!(advice(false, small.clone()), None);
    assert_eq!(advice(true, CodeObject { primed: true, ..small.clone() }), None);
    assert_eq!(advice(true, CodeObject { lifted: true, ..small.clone() }), None);
    let needed = CodeObject { opened: false, ..small };
    assert_eq!(
        advice(true, needed).as_deref(),
        Some("lift it as it runs: hugelift attach 7; or start it as: hugelift run -- /bin/x")
    );
}

#[test]
fn worst_first() {
    let thp = Thp {
        enabled: reading("always madvise [never]"),
        defrag: reading("never"),
        use_zero_page: reading("0"),
        ..Thp::default()
    };
    let facts = Facts { thp, ..Facts::default() };
    assert_eq!(keys(&facts), ["thp-never", "thp-defrag-never", "zero-page-off"]);
}

#[test]
fn what_was_tried_and_failed() {
    let no = Tried::no("EPERM");
    let mut facts = Facts {
        probes: Some(Probes {
            ptrace: no.clone(),
            fault: no.clone(),
            collapse_shmem: no,
            ..Probes::default()
        }),
        ..Facts::default()
    };
    facts.thp.enabled = reading("always [madvise] never");
    facts.thp.shmem_enabled = reading("never");
    assert_eq!(keys(&facts), ["ptrace-denied", "thp-refused", "shmem-off"]);
    // Yama explains it already, and with the setting off no huge page is expected.
    facts.trace.yama = reading("3");
    facts.thp.enabled = reading("never");
    assert_eq!(keys(&facts), ["thp-never", "yama", "shmem-off"]);
    facts.probes = None;
    assert_eq!(keys(&facts), ["thp-never", "yama"]);
}

#[test]
fn free_blocks_are_counted_as_huge_pages() {
    let zone = |free: &[u64]| Zone { node: 0, name: "Normal".into(), free: free.to_vec() };
    // 3 blocks of 4 kB, one of 2 MB, two of 4 MB.
    let free = zone(&[3, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
    assert_eq!(memory::free_and_huge(&free, 4096, 2 << 20), (12288 + (10 << 20), 5));
    let mut facts = Facts::default();
    (facts.memory.base_page, facts.thp.page_size) = (Some(4096), Some(2 << 20));
    // 160 MB in blocks of 64 kB.
    facts.memory.zones = vec![free, zone(&[0, 0, 0, 0, 2560])];
    assert_eq!((memory::ready_huge_pages(&facts), keys(&facts)), (Some(5), vec!["fragmented"]));
    // With little free memory there is no finding.
    facts.memory.zones[1].free[4] = 100;
    assert_eq!(keys(&facts), Vec::<&str>::new());
}

#[test]
fn a_locked_memory_limit_is_raised_as_far_as_it_may_be() {
    let command = |soft, hard, pid: Option<u32>| {
        let mut facts = Facts { memlock: Some(Limit { soft: Some(soft), hard }), ..Facts::default() };
        facts.process = pid.map(|pid| Process { pid, ..process("/bin/x") });
        diagnose(&facts).first().and_then(|f| f.command.clone())
    };
    assert_eq!(command(65536, None, None).unwrap(), "ulimit -S -l unlimited");
    assert_eq!(command(65536, Some(8 << 20), None).unwrap(), "ulimit -S -l 8192");
    assert_eq!(command(65536, Some(65536), None).unwrap(), "ulimit -l unlimited");
    assert_eq!(command(65536, Some(8 << 20), Some(9)).unwrap(), "prlimit --pid 9 --memlock=8388608:");
    assert_eq!(command(8 << 20, Some(8 << 20), None), None);
}

#[test]
fn forks_of_a_process_with_huge_memory() {
    let redis = Process { writable_thp: 1 << 30, ..process("/usr/bin/redis-server") };
    let mut facts = of(redis);
    facts.thp.enabled = reading("[always] madvise never");
    assert_eq!(keys(&facts), ["fork-thp", "thp-always"]);
    assert_eq!(diagnose(&facts)[0].command.as_deref(), Some("echo madvise > /x"));
    facts.thp.enabled = reading("always [madvise] never");
    let finding = &diagnose(&facts)[0];
    assert!(finding.command.is_none() && finding.advice.as_ref().unwrap().contains("disable-thp"));
    let other = Process { writable_hugetlb: 1 << 30, forks: 2, ..process("/bin/other") };
    assert_eq!(keys(&of(other.clone())), ["fork-hugetlb"]);
    assert_eq!(keys(&of(Process { forks: 0, ..other })), Vec::<&str>::new());
}

#[test]
fn issue_13_b3_a_process_that_is_all_huge_has_no_problem() {
    let worst = |huge: u64, anonymous: u64| {
        let text = Coverage { bytes: 9 << 20, liftable: 8 << 20, huge };
        let lifted = Process { text, anonymous, thp_enabled: Some(false), ..process("/bin/x") };
        let mut facts = of(lifted);
        facts.thp.enabled = reading("always madvise [never]");
        let found = diagnose(&facts);
        assert!(found.iter().any(|f| f.key == "process-thp-off"), "{found:?}");
        found.iter().map(|f| f.severity).max()
    };
    assert_eq!(worst(8 << 20, 1 << 20), Some(Severity::Note));
    assert_eq!(worst(6 << 20, 1 << 20), Some(Severity::Problem), "some of its code is not");
    assert_eq!(worst(8 << 20, 1 << 30), Some(Severity::Problem), "its memory is not");
}

/// Code is not said to need what cannot help it, nor to get nothing where hugelift can lift it.
#[test]
fn issue_29_b5_what_is_said_of_a_process_without_huge_pages_fits_what_can_be_done() {
    let text = Coverage { bytes: 9 << 20, liftable: 8 << 20, huge: 0 };
    let of = |allows_thp| {
        let code = vec![CodeObject { path: "/bin/x".into(), text, ..CodeObject::default() }];
        let facts = Process { text, code, allows_thp, thp_enabled: Some(false), ..process("/bin/x") };
        diagnose(&Facts { attaches: true, ..of(facts) })
    };
    let keys = |found: &[Finding]| found.iter().map(|f| (f.key, f.severity)).collect::<Vec<_>>();
    let can = of(true);
    assert_eq!(keys(&can), [("process-thp-off", Severity::Note), ("code-not-huge", Severity::Note)]);
    assert!(can[1].advice.as_ref().unwrap().contains("hugelift attach 7"), "{can:?}");
    let cannot = of(false);
    assert_eq!(keys(&cannot), [("process-thp-off", Severity::Problem)]);
    assert!(cannot[0].advice.as_ref().unwrap().contains("hugelift attach --backing hugetlb 7"), "{cannot:?}");
}

#[test]
fn programs_offer() {
    let on = |process: &Process| offers(process).first().and_then(|o| o.on);
    let with = |exe: &str, args: &[&str], environment: &[&str]| Process {
        args: args.iter().map(ToString::to_string).collect(),
        environment: environment.iter().map(ToString::to_string).collect(),
        ..process(exe)
    };
    let java = "/usr/lib/jvm/bin/java";
    assert_eq!(on(&with(java, &["java", "-jar", "x"], &[])), Some(false));
    assert_eq!(on(&with(java, &["java", "-XX:+UseTransparentHugePages"], &[])), Some(true));
    assert_eq!(on(&with(java, &[], &["JAVA_TOOL_OPTIONS=-Xmx1g -XX:+UseLargePages"])), Some(true));
    // The arguments come last.
    let env = &["JAVA_TOOL_OPTIONS=-XX:+UseLargePages"];
    assert_eq!(on(&with(java, &["java", "-XX:-UseLargePages"], env)), Some(false));
    let embedded = Process { objects: vec!["/opt/lib/libjvm.so".into()], ..process("/opt/app") };
    assert_eq!(offers(&embedded)[0].who, "the JVM");

    assert_eq!(on(&with("/usr/bin/node", &["node"], &[])), Some(false));
    assert_eq!(on(&with("/usr/bin/node", &["node", "--use-largepages=silent"], &[])), Some(true));
    assert_eq!(on(&with("/usr/bin/node", &[], &["NODE_OPTIONS=--use-largepages=off"])), Some(false));
    let text = Coverage { bytes: 9 << 20, liftable: 8 << 20, huge: 8 << 20 };
    assert_eq!(on(&Process { text, ..with("/usr/bin/node", &["node"], &[]) }), Some(true));

    assert_eq!(on(&with("/usr/sbin/php-fpm8.2", &["php-fpm"], &[])), None);
    assert_eq!(on(&with("/usr/bin/php", &["php", "-dopcache.huge_code_pages=1"], &[])), Some(true));
    let postgres = process("/usr/lib/postgresql/bin/postgres");
    assert_eq!(on(&postgres), Some(false));
    assert_eq!(on(&Process { shared_hugetlb: 2 << 20, ..postgres }), Some(true));
    let mysql = with("/usr/sbin/mysqld", &["mysqld", "--large-pages"], &[]);
    assert!(offers(&mysql)[0].seen.starts_with("--large-pages, and no memory"));
    assert_eq!(on(&Process { shared_hugetlb: 2 << 20, ..mysql }), Some(true));
    let go = |debug: &str| Process { go: true, ..with("/bin/g", &[], &[debug]) };
    assert_eq!((on(&go("GODEBUG=disablethp=1")), on(&go("GODEBUG=gctrace=1"))), (Some(false), None));
}

#[test]
fn allocators_offer_where_there_is_much_to_gain() {
    let with = |object: &str, variable: &str, anonymous| Process {
        objects: vec![format!("/lib/{object}")],
        environment: vec![variable.to_string()],
        anonymous,
        malloc: anonymous,
        ..process("/bin/x")
    };
    let on = |object, variable, anonymous| offers(&with(object, variable, anonymous))[0].on;
    for (object, variable) in [
        ("libc.so.6", "GLIBC_TUNABLES=a.b=1:glibc.malloc.hugetlb=2"),
        ("libjemalloc.so.2", "MALLOC_CONF=thp:always,narenas:1"),
        ("libmimalloc.so.2", "MIMALLOC_ALLOW_LARGE_OS_PAGES=1"),
        ("libtcmalloc.so.4", "TCMALLOC_MEMFS_MALLOC_PATH=/mnt/huge/x"),
    ] {
        assert_eq!(on(object, "X=", 1 << 30), Some(false), "{object}");
        assert_eq!(on(object, variable, 1 << 30), Some(true), "{object}");
        assert_eq!(on(object, "X=", 1 << 20), None, "{object}: too little memory");
    }
    assert_eq!(on("libc.so.6", "GLIBC_TUNABLES=glibc.malloc.hugetlb=0", 1 << 30), Some(false));
    let huge = Process { writable_thp: 900 << 20, ..with("libc.so.6", "X=", 1 << 30) };
    assert_eq!(offers(&huge)[0].on, None);
    // Memory that is not its own: a runtime with an allocator of its own.
    let other = Process { malloc: 1 << 20, ..with("libc.so.6", "X=", 1 << 30) };
    assert_eq!(offers(&other)[0].on, None);
    assert_eq!(keys(&of(with("libc.so.6", "X=", 1 << 30))), ["program-offers"]);
}

#[test]
fn a_path_with_a_quote_stays_one_word() {
    assert_eq!(write_command(1, "/a b/'c"), r"echo 1 > '/a b/'\''c'");
}

proptest! {
    /// Any numbers give findings in order.
    #[test]
    fn any_numbers_give_an_answer(
        numbers in proptest::collection::vec(any::<u64>(), 12),
        free in proptest::collection::vec(any::<u64>(), 0..80),
        value in "[ -~]{0,12}",
    ) {
        let mut facts = Facts::default();
        let pool = SizePool {
            page_size: numbers[0].max(1),
            default: true,
            total: numbers[1],
            free: numbers[2],
            reserved: numbers[3],
            surplus: numbers[4],
            overcommit: numbers[5],
            available: numbers[6] % 2,
            nodes: vec![Default::default(), NodePool { node: 1, total: numbers[7], ..Default::default() }],
        };
        facts.pools = vec![pool];
        facts.thp.page_size = Some(numbers[0].max(1));
        facts.memory.base_page = Some(numbers[8]);
        facts.memory.total = Some(numbers[9]);
        facts.memory.zones = vec![Zone { node: 0, name: value.clone(), free }];
        facts.thp.enabled = reading(&value);
        facts.thp.scan_sleep = reading(&numbers[10].to_string());
        facts.thp.pages_to_scan = reading(&numbers[11].to_string());
        facts.process = Some(Process {
            text: Coverage { bytes: numbers[0], liftable: numbers[1].max(numbers[2]), huge: numbers[2] },
            examined: Some(numbers[3]),
            zeros: numbers[4],
            huge_zero: Some(numbers[5]),
            anonymous: numbers[6],
            writable_thp: numbers[7],
            writable_hugetlb: numbers[8],
            forks: numbers[9],
            ..process("/usr/bin/redis-server")
        });
        let found = diagnose(&facts);
        prop_assert!(found.windows(2).all(|w| w[0].severity >= w[1].severity));
    }
}
