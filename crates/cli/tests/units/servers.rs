// SPDX-License-Identifier: Apache-2.0
//! A machine with its servers: MariaDB, PostgreSQL, Redis, PHP behind nginx, Node.js, Java, Go and builds by clang, by their
//! own units under a systemd, with file systems of ext4 and XFS. hugelift is installed, enabled, stopped and purged while
//! clients work; packages are upgraded. No server is restarted, and no client sees an error.

use super::boot::Systemd;
use crate::common::build::must;
use crate::common::{find, mounts};
use crate::{need, need_root, skip};
use sample::{Unit, table, units};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

mod packages;
mod sample;

/// What is asserted to be huge after this time.
const SOON: Duration = Duration::from_secs(90);
/// Bytes of huge code.
const HUGE: u64 = 2 << 20;
/// The files that the machine has at /run/machine, beside those that are built.
const FILES: [(&str, &str); 6] = [
    ("client.sh", include_str!("servers/client.sh")),
    ("server.js", include_str!("servers/server.js")),
    ("index.php", include_str!("servers/index.php")),
    ("nginx.conf", include_str!("servers/nginx.conf")),
    ("work.cpp", include_str!("servers/work.cpp")),
    ("service.toml", POLICY),
];
const PREPARE: &str = include_str!("servers/prepare.sh");
const SAMPLE: &str = include_str!("servers/sample.sh");
/// The units of Debian's packages.
const OF_PACKAGES: [&str; 4] =
    ["postgresql@.service", "redis-server.service", "php8.2-fpm.service", "nginx.service"];
/// The units of those that have none.
const OWN: [(&str, &str); 5] = [
    (
        "mariadb.service",
        "User=nobody\nExecStart=/srv/ext4/mariadbd --no-defaults --datadir=/var/lib/test-mariadb --tmpdir=/var/lib/test-mariadb \
         --socket=/var/lib/test-mariadb/socket --pid-file=/var/lib/test-mariadb/pid --skip-networking --skip-grant-tables \
         --skip-log-bin --innodb-buffer-pool-size=64M --innodb-flush-log-at-trx-commit=0",
    ),
    ("node-server.service", "User=nobody\nExecStart=/srv/xfs/node /run/machine/server.js"),
    ("java-server.service", "User=nobody\nExecStart=/usr/bin/java -Xmx128m -cp /run/machine Server"),
    ("go-server.service", "User=nobody\nExecStart=/run/machine/go-server"),
    ("client@.service", "ExecStart=/bin/sh /run/machine/client.sh %i"),
];
/// The page cache alone is kept of files that the machine has for itself: other tests use the others.
const POLICY: &str = r#"
[keep]
programs = ["/srv/xfs/llvm/bin/clang++"]
budget = "0"
interval = "5s"

[[rule]]
name = "own files"
unit = ["mariadb", "node-server", "client@builds"]
do = ["pagecache", "code"]

[[rule]]
name = "cache"
unit = "redis-server"
do = ["code", "memory"]

[[rule]]
name = "servers"
unit = ["postgresql@*", "php8.2-fpm", "nginx", "java-server", "go-server"]
do = ["code"]

[[rule]]
name = "rest"
do = []
"#;
const CLIENTS: [&str; 8] = ["mariadb", "postgres", "redis", "php", "node", "java", "go", "builds"];
/// Installs the package and enables its unit, which systemd looks for in /etc alone here.
const ENABLE: &str = "
dpkg --force-unsafe-io -i hugelift_1.deb > installed 2>&1 || cat installed
ln -s /usr/lib/systemd/system/hugelift.service /etc/systemd/system/
systemctl daemon-reload
systemctl enable --now hugelift > enabled 2>&1 || cat enabled
systemctl is-active hugelift
";
const UPGRADE: &str = "
dpkg --force-all --force-unsafe-io -i test-mariadb_2.deb test-node_2.deb > installed 2>&1 || cat installed
sync -f /srv/xfs
sync -f /srv/ext4
";
/// Where the package manager may not start or stop units (policy-rc.d of a container), it does so here.
const PURGE: &str = "
systemctl stop hugelift
systemctl is-active hugelift
systemctl show -p Result --value hugelift
systemctl start hugelift
rm -f /usr/sbin/policy-rc.d
dpkg --purge hugelift > purged 2>&1 || cat purged
systemctl is-active hugelift
ls -d /usr/bin/hugelift /var/lib/hugelift /etc/systemd/system/*/hugelift.service 2>&-
true
";

/// The machine that runs.
struct Machine {
    system: Systemd,
    /// What was built for it.
    _built: tempfile::TempDir,
}

impl Machine {
    /// Builds what it needs, and starts it.
    ///
    /// # Errors
    /// Returns what this machine lacks.
    fn start() -> Result<Machine, String> {
        let built = tempfile::tempdir().expect("a folder");
        let files = build(built.path());
        let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
        let mut all = Vec::new();
        for name in OF_PACKAGES {
            let path = Path::new("/lib/systemd/system").join(name);
            all.push((name.to_string(), fs::read_to_string(path).map_err(|_| format!("needs {name}"))?));
        }
        all.extend(OWN.map(|(name, text)| (name.to_string(), format!("[Service]\n{text}\n"))));
        Ok(Machine { system: Systemd::start(&all, &files)?, _built: built })
    }

    fn sample(&self) -> BTreeMap<String, Unit> {
        let told = self.system.script(SAMPLE);
        let found = units(&told);
        assert_eq!(found.len(), 9, "{told}");
        found
    }

    /// Returns what the service says, in words.
    fn said(&self) -> String {
        self.system.script("hugelift service status")
    }

    /// Returns what the service says.
    ///
    /// # Errors
    /// It does not answer.
    fn status(&self) -> Result<Value, String> {
        let told = self.system.script("hugelift service status --json");
        serde_json::from_str(&told).map_err(|error| format!("{error}: {told}"))
    }

    fn read(&self, name: String) -> String {
        fs::read_to_string(self.system.path(&name)).unwrap_or_default()
    }

    fn rounds(&self) -> Vec<u64> {
        CLIENTS.iter().map(|name| self.read(format!("rounds.{name}")).trim().parse().unwrap_or(0)).collect()
    }

    /// Waits until each client has begun and ended a round. None may have failed.
    fn serves(&self, when: &str) {
        let before = self.rounds();
        within(SOON, &format!("each client works {when}"), || {
            let failed: String = CLIENTS.iter().map(|name| self.read(format!("failed.{name}"))).collect();
            assert_eq!(failed, "", "{when}");
            let pairs = || self.rounds().into_iter().zip(before.clone());
            pairs().all(|(now, then)| now >= then + 2).then_some(()).ok_or(format!("{:?}", self.rounds()))
        });
    }
}

/// Waits until `done` returns a value, at most for this time. Otherwise it returns what is missing.
fn within<T>(time: Duration, what: &str, mut done: impl FnMut() -> Result<T, String>) -> T {
    let began = Instant::now();
    loop {
        match done() {
            Ok(value) => return value,
            Err(missing) => assert!(began.elapsed() < time, "{what}: {missing}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Builds the servers and the packages in this folder. Returns the files that the machine is to have.
fn build(folder: &Path) -> Vec<PathBuf> {
    for (name, text) in FILES {
        fs::write(folder.join(name), text).expect("write");
    }
    fs::write(folder.join("Server.java"), include_str!("servers/Server.java")).expect("write");
    fs::write(folder.join("server.go"), include_str!("servers/server.go")).expect("write");
    must(Command::new("javac").current_dir(folder).args(["-d", ".", "Server.java"]));
    must(Command::new("go").current_dir(folder).args(["build", "-o", "go-server", "server.go"]));
    let [mariadb, node] =
        ["mariadbd", "node"].map(|name| find(name).expect("needed").canonicalize().expect("a file"));
    let mut files = vec![packages::hugelift(folder)];
    for version in [1, 2] {
        files.push(packages::server(folder, "test-mariadb", &mariadb, "srv/ext4/mariadbd", version));
        files.push(packages::server(folder, "test-node", &node, "srv/xfs/node", version));
    }
    files.extend(FILES.map(|(name, _)| folder.join(name)));
    files.push(folder.join("go-server"));
    // The class has others beside it, for its lambda expressions none.
    files.push(folder.join("Server.class"));
    files
}

/// Returns whether all of a file that can be huge is so in the page cache, as the service says.
fn is_primed(status: &Value, path: &str) -> Result<(), String> {
    let files = status["files"].as_array().ok_or("no files")?;
    let file = files.iter().find(|file| file["path"] == path).ok_or(format!("{path} is not kept"))?;
    let is_huge = file["whole_bytes"] != 0 && file["huge_bytes"] == file["whole_bytes"];
    if is_huge { Ok(()) } else { Err(file.to_string()) }
}

fn identities(units: &BTreeMap<String, Unit>) -> BTreeMap<&str, &str> {
    units.iter().map(|(name, unit)| (name.as_str(), unit.identity.as_str())).collect()
}

#[test]
fn issue_33_a_machine_with_its_servers() {
    need_root!();
    need!(
        "mariadbd",
        "postgres",
        "redis-server",
        "redis-benchmark",
        "php-fpm8.2",
        "nginx",
        "node",
        "javac",
        "go"
    );
    need!(
        "sysbench",
        "pgbench",
        "curl",
        "dpkg-deb",
        "deb-systemd-invoke",
        "mkfs.ext4",
        "mkfs.xfs",
        "setpriv"
    );
    if !Path::new("/usr/lib/llvm-19/bin/clang").exists() {
        skip!("needs clang-19");
    }
    if !mounts::kernel_has("xfs") {
        skip!("the kernel has no XFS");
    }
    let machine = match Machine::start() {
        Ok(machine) => machine,
        Err(why) => skip!("{why}"),
    };
    let told = machine.system.script(PREPARE);
    assert_eq!(told, "", "{}", machine.system.log());
    machine.serves("before");
    let before = machine.sample();

    assert_eq!(machine.system.script(ENABLE), "active\n", "{}", machine.system.log());
    // Those that have several whole huge pages of code in use. The smaller ones are in the table alone.
    let large = ["mariadb", "node-server", "java-server"];
    let after = within(SOON, "they have huge code", || {
        let after = machine.sample();
        let missing: Vec<_> = large.iter().filter(|name| after[**name].huge < HUGE).collect();
        let why = || format!("{missing:?}\n{}\n{}", table(&before, &after), machine.said());
        if missing.is_empty() { Ok(after) } else { Err(why()) }
    });
    println!("{}", table(&before, &after));
    machine.serves("lifted");

    assert_eq!(machine.system.script(UPGRADE), "", "the upgrade");
    for path in ["/srv/ext4/mariadbd", "/srv/xfs/node"] {
        within(SOON, "the new file is primed", || is_primed(&machine.status()?, path));
    }
    machine.serves("after the upgrade");

    assert_eq!(machine.system.script(PURGE), "inactive\nsuccess\ninactive\n", "{}", machine.system.log());
    machine.serves("after the purge");
    let end = machine.sample();
    println!("{}", table(&before, &end));
    assert_eq!(identities(&before), identities(&end), "a server was restarted");
    let lost: Vec<_> = large.iter().filter(|name| end[**name].huge < HUGE).collect();
    assert!(lost.is_empty(), "what is lifted stays: {lost:?}");
}
