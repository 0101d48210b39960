// SPDX-License-Identifier: Apache-2.0
//! The table of docs/reference/wrap.md: what a wrapped service has of huge pages under each setting of its unit.

use super::boot::Systemd;
use crate::common::fat;
use crate::skip;
use std::fmt::Write as _;

/// What hugelift says of a program that it starts as it is.
#[derive(Clone, Copy)]
enum Ends {
    /// Its code is huge.
    Huge,
    /// It is not, and hugelift says why.
    Small(&'static str),
}
use Ends::{Huge, Small};

const FILTERED: &str = "a seccomp filter is on";
/// The setting, options of `hugelift run`, and how it ends. The words of the program follow from `Type=`.
const ROWS: [(&str, &str, &str, Ends); 25] = [
    ("simple", "Type=simple", "", Huge),
    ("exec", "Type=exec", "", Huge),
    ("notify", "Type=notify", "", Huge),
    ("forking", "Type=forking", "", Huge),
    ("pidfile", "Type=forking\nPIDFile=/run/pidfile.pid", "", Huge),
    ("user", "User=nobody", "", Huge),
    ("dynamic", "DynamicUser=yes", "--seccomp try", Huge),
    ("strict", "ProtectSystem=strict", "", Huge),
    ("home", "ProtectHome=yes", "", Huge),
    ("tmp", "PrivateTmp=yes", "", Huge),
    ("privileges", "NoNewPrivileges=yes", "", Huge),
    ("memory", "MemoryMax=256M", "", Small("need 12 MB; hugelift run --spare 12M")),
    ("spare", "MemoryMax=256M", "--spare 16M", Huge),
    ("execute", "MemoryDenyWriteExecute=yes", "", Small(FILTERED)),
    ("execute-try", "MemoryDenyWriteExecute=yes", "--seccomp try", Huge),
    ("namespaces", "RestrictNamespaces=yes", "", Small(FILTERED)),
    ("namespaces-try", "RestrictNamespaces=yes", "--seccomp try", Huge),
    ("tunables-try", "ProtectKernelTunables=yes", "--seccomp try", Huge),
    ("families-try", "RestrictAddressFamilies=AF_UNIX", "--seccomp try", Huge),
    ("native-try", "SystemCallArchitectures=native", "--seccomp try", Huge),
    ("devices-try", "PrivateDevices=yes", "--seccomp try", Huge),
    ("personality-try", "LockPersonality=yes\nRestrictRealtime=yes", "--seccomp try", Huge),
    ("calls", "SystemCallFilter=@system-service", "", Small(FILTERED)),
    (
        "calls-try",
        "SystemCallFilter=@system-service",
        "--seccomp try",
        Small("its helper could not be forked, or ended"),
    ),
    (
        "most-try",
        "User=nobody\nProtectSystem=strict\nProtectHome=yes\nPrivateTmp=yes\nPrivateDevices=yes\nNoNewPrivileges=yes\n\
         MemoryDenyWriteExecute=yes\nRestrictNamespaces=yes\nLockPersonality=yes\nSystemCallArchitectures=native",
        "--seccomp try",
        Huge,
    ),
];

/// Wraps, starts, unwraps and starts again. Prints what is so after each start.
const ONE: &str = r#"
state() { echo "$1 $2 $(systemctl is-active "$1") $(huge "$(pid "$1")")"; }
one() {
    name=$1
    shift
    ./hugelift wrap "$name" -- -v --eager --backing thp "$@" > "wrap.$name" 2>&1 || cat "wrap.$name"
    systemctl start "$name"
    # With Type=simple it has started before the program has. Its helper says what is lifted, at the end.
    for i in $(seq 600); do
        [ ! -s "err.$name" ] || break
        sleep 0.1
    done
    state "$name" wrapped
    cp "err.$name" "said.$name"
    ./hugelift unwrap "$name" >> "wrap.$name" 2>&1 || cat "wrap.$name"
    systemctl restart "$name"
    state "$name" unwrapped
    systemctl stop "$name"
}
"#;

/// Lifts from outside what is not lifted from inside.
const OUTSIDE: &str = "
systemctl start calls
# With Type=simple it has started before it is the program.
until [ \"$(readlink /proc/$(pid calls)/exe)\" = /run/machine/served ]; do sleep 0.1; done
./hugelift attach --whole --backing thp --unit calls > attached 2>&1 || cat attached
state calls attached
";

fn unit_of((name, settings, ..): (&str, &str, &str, Ends)) -> (String, String) {
    let words = match name {
        "notify" | "forking" => name,
        "pidfile" => "forking /run/pidfile.pid",
        _ => "simple",
    };
    let text = format!(
        "[Service]\n{settings}\nExecStart=/run/machine/served {words}\nStandardError=truncate:/run/machine/err.{name}\n"
    );
    (format!("{name}.service"), text)
}

#[test]
fn issue_33_each_setting_of_a_unit() {
    let built = fat("served").build();
    let dir = tempfile::tempdir().expect("a folder");
    let served = dir.path().join("served");
    std::fs::copy(built, &served).expect("a copy");
    let system = match Systemd::start(&ROWS.map(unit_of), &[&served]) {
        Ok(system) => system,
        Err(why) => skip!("{why}"),
    };
    let (mut script, mut expected) = (String::from(ONE), String::new());
    for (name, _, options, ends) in ROWS {
        writeln!(script, "one {name} {options}").expect("write");
        let lifted = if matches!(ends, Huge) { "huge" } else { "small" };
        writeln!(expected, "{name} wrapped active {lifted}\n{name} unwrapped active small").expect("write");
    }
    script += OUTSIDE;
    expected += "calls attached active huge\n";
    let told = system.script(&script);
    let said = |file: String| std::fs::read_to_string(system.path(&file)).unwrap_or_default();
    let all: String =
        ROWS.iter().map(|(name, ..)| format!("{name}: {}\n", said(format!("said.{name}")))).collect();
    assert_eq!(told, expected, "{all}\n{}", system.log());
    for (name, _, _, ends) in ROWS {
        let said_by_wrap = said(format!("wrap.{name}"));
        assert!(
            said_by_wrap.contains(&format!("systemctl restart {name}.service")),
            "{name}: {said_by_wrap}"
        );
        if let Small(why) = ends {
            let said = said(format!("said.{name}"));
            assert!(said.contains(why), "{name}: {said}");
        }
    }
}
