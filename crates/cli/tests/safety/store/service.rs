// SPDX-License-Identifier: Apache-2.0
//! Tests that the service of systemd uses the machine's store: under a systemd that is started as the first process of its
//! own namespaces. Its root is an overlay, its units are those of the test alone, so nothing of the machine is changed.

use super::*;
use crate::common::open_dir;
use crate::{need, need_root, skip};
use std::fmt::Write as _;

/// Makes the namespaces' mounts in `$1`, and becomes systemd.
const BOOT: &str = r#"
set -e
dir=$1
mount --make-rprivate /
mkdir $dir/mem
mount -t tmpfs -o mode=0755 tmpfs $dir/mem
root=$dir/mem/root
mkdir $dir/mem/upper $dir/mem/work $root
mount -t overlay -o lowerdir=/,upperdir=$dir/mem/upper,workdir=$dir/mem/work overlay $root
mount -t tmpfs -o mode=0755,nosuid,nodev,noexec tmpfs $root/run
mount -t tmpfs -o mode=1777 tmpfs $root/tmp
mount -t tmpfs -o mode=0755 tmpfs $root/dev
mount -t proc proc $root/proc
mount -t sysfs -o ro sysfs $root/sys
mount -t cgroup2 cgroup2 $root/sys/fs/cgroup
for name in null zero full random urandom tty; do
    touch $root/dev/$name
    mount --bind /dev/$name $root/dev/$name
done
mkdir $root/run/units $root/run/machine $root/run/old
mount --bind $dir $root/run/machine
cp $dir/units/* $root/run/units/
cd $root
pivot_root . run/old
umount -l /run/old
exec env -i container=test PATH=$PATH SYSTEMD_UNIT_PATH=/run/units SYSTEMD_GENERATOR_PATH=/none SYSTEMD_PROC_CMDLINE= \
    $2 --system --unit=test.target --default-standard-output=null --default-standard-error=null \
    --show-status=false --log-target=console
"#;

/// Runs in the namespaces of that systemd. Prints a line for each thing that is so.
const SCRIPT: &str = r#"
exec 2>&1
cd /run/machine
until [ -S /run/systemd/private ]; do sleep 0.1; done
pid() { systemctl show -p MainPID --value $1; }
entries() { find /run/hugelift/store -size +1M 2> /dev/null | xargs -r stat -c '%n %a'; }
systemctl start served hugelift
for i in $(seq 600); do
    ! grep -q /store/ /proc/$(pid served)/maps || break
    sleep 0.1
done
[ "$(readlink /proc/$(pid hugelift)/ns/mnt)" = "$(readlink /proc/1/ns/mnt)" ] && echo in the first namespace
first=$(entries)
case $first in *' 444') echo public;; esac
systemctl restart hugelift
systemctl is-active hugelift
[ -n "$first" ] && [ "$first" = "$(entries)" ] && echo survives a restart
systemctl stop hugelift served
./hugelift run --backing shared --report report ./served < /dev/null > out
grep -q 'wrong [1-9]' out && echo wrong code
grep -q shared report && [ "$first" = "$(entries)" ] && echo used by a later start
"#;

/// systemd in its own namespaces. Its end ends all processes in them.
struct Booted(std::process::Child);

impl Drop for Booted {
    fn drop(&mut self) {
        // unshare(1) passes no signal on, but its child dies with it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the only child of a process, once it runs `program`.
fn child_of(pid: u32, program: &str) -> Option<u32> {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while std::time::Instant::now() < until {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        let child = children.split_whitespace().next().and_then(|word| word.parse().ok());
        let is_it =
            |pid: &u32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("systemd"));
        if let Some(child) = child.filter(is_it) {
            return Some(child);
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    println!("{program} has not started");
    None
}

/// The service makes an entry for all users in the machine's store. It stays when the service is started again, and a
/// later start of the same program uses it.
#[test]
fn the_service_of_systemd_uses_the_machines_store() {
    need_root!();
    need!("unshare", "nsenter", "systemctl", "pivot_root");
    let place =
        ["/usr/lib/systemd/systemd", "/lib/systemd/systemd"].into_iter().find(|p| Path::new(p).exists());
    let Some(systemd) = place else { skip!("needs systemd") };
    if !crate::common::mounts::kernel_has("overlay") {
        skip!("the kernel has no overlayfs");
    }
    let served = fat("hold").flags(&["-no-pie"]).build();
    let dir = open_dir(&[&served]);
    let at = |name: &str| dir.path().join(name);
    fs::rename(at(served.file_name().and_then(|n| n.to_str()).expect("a name")), at("served"))
        .expect("rename");
    fs::create_dir(at("units")).expect("a directory");
    nix::unistd::mkfifo(&at("held"), nix::sys::stat::Mode::S_IRUSR).expect("a FIFO");
    // The program ends when this end of its stdin is closed.
    let _held = fs::File::options().read(true).write(true).open(at("held")).expect("the FIFO");
    let mut unit = String::from("[Service]\nExecStart=/run/machine/served burn\n");
    writeln!(unit, "StandardInput=file:/run/machine/held").expect("write");
    fs::write(at("units/served.service"), unit).expect("write");
    for target in ["test", "sysinit", "basic", "shutdown", "multi-user"] {
        fs::write(at(&format!("units/{target}.target")), "[Unit]\nDefaultDependencies=no\n").expect("write");
    }
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../systemd");
    let unit = fs::read_to_string(tree.join("hugelift.service")).expect("the unit");
    // At once, and nothing else than the store.
    let options = "attach --watch --eager --backing shared --unit served";
    let unit = unit.replace("/usr/bin/hugelift service", &format!("/run/machine/hugelift {options}"));
    let unit = unit.replace("ConditionPathExists=/etc/hugelift/service.toml\n", "");
    assert!(unit.contains(options), "{unit}");
    fs::write(at("units/hugelift.service"), unit).expect("write");
    for (name, text) in [("boot", BOOT), ("script", SCRIPT)] {
        fs::write(at(name), text).expect("write");
    }
    let mut boot = Command::new("unshare");
    boot.args(["--mount", "--pid", "--ipc", "--uts", "--cgroup", "--fork", "--kill-child", "sh"]);
    boot.arg(at("boot")).arg(dir.path()).arg(systemd).stdin(Stdio::null());
    let console = fs::File::create(at("console")).expect("a file");
    boot.stdout(console.try_clone().expect("dup")).stderr(console);
    let booted = Booted(boot.spawn().expect("unshare(1)"));
    let log = || fs::read_to_string(at("console")).unwrap_or_default();
    let Some(first) = child_of(booted.0.id(), systemd) else { panic!("{}", log()) };
    let mut script = Command::new("timeout");
    script.args([
        "300",
        "nsenter",
        "-t",
        &first.to_string(),
        "-m",
        "-p",
        "-C",
        "-i",
        "-u",
        "sh",
        "/run/machine/script",
    ]);
    let out = script.env_remove("HUGELIFT_STORE").stdin(Stdio::null()).output().expect("nsenter(1)");
    let told = String::from_utf8_lossy(&out.stdout);
    let expected = "in the first namespace\npublic\nactive\nsurvives a restart\nused by a later start\n";
    assert_eq!(told, expected, "{}", log());
}
