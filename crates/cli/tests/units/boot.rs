// SPDX-License-Identifier: Apache-2.0
//! A systemd that is the first process of its own namespaces, in a control group of its own (boot.sh).

use crate::common::run::until;
use crate::common::{find, mounts, open_dir};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const BOOT: &str = include_str!("boot.sh");
/// What every script begins with.
const BEGIN: &str = r#"
exec 2>&1
cd /run/machine
until [ -S /run/systemd/private ]; do sleep 0.1; done
# Prints the main process of a service. With Type=forking and no PIDFile= systemd guesses it when the first process ends, and finds
# none where hugelift's helper has not ended yet, as on a busy machine (docs/reference/wrap.md).
pid() {
    main=$(systemctl show -p MainPID --value "$1")
    group=$(systemctl show -p ControlGroup --value "$1")
    [ "$main" != 0 ] || for pid in $(cat /sys/fs/cgroup$group/cgroup.procs /sys/fs/cgroup/systemd$group/cgroup.procs 2> /dev/null); do
        case $(readlink /proc/$pid/exe) in */hugelift) ;; *) main=$pid && break;; esac
    done
    echo "$main"
}
# Says whether the code of a process is huge.
huge() {
    awk '/^[0-9a-f]+-[0-9a-f]+ / { code = $2 ~ /x/ } code && /^(AnonHugePages|ShmemPmdMapped|FilePmdMapped):/ { huge += $2 }
        END { print (huge >= 4096 ? "huge" : (huge ? "some" : "small")) }' "/proc/$1/smaps"
}
"#;
/// The targets that services stand in relation to.
const TARGETS: [&str; 5] = ["test", "sysinit", "basic", "shutdown", "multi-user"];

/// The system that has started. Its end ends all processes in it.
pub struct Systemd {
    child: Child,
    groups: Vec<PathBuf>,
    dir: tempfile::TempDir,
}

impl Systemd {
    /// Starts systemd with these units, and these files at /run/machine, where hugelift is too.
    ///
    /// # Errors
    /// Returns what this machine lacks.
    pub fn start(units: &[(String, String)], files: &[&Path]) -> Result<Systemd, String> {
        let systemd =
            ["/usr/lib/systemd/systemd", "/lib/systemd/systemd"].into_iter().find(|p| Path::new(p).exists());
        let systemd = systemd.ok_or("needs systemd")?;
        let programs = ["unshare", "nsenter", "systemctl", "pivot_root", "awk"];
        if let Some(lacks) = programs.into_iter().find(|program| find(program).is_none()) {
            return Err(format!("needs {lacks}"));
        }
        if !nix::unistd::geteuid().is_root() {
            return Err("needs root".into());
        }
        if !mounts::kernel_has("overlay") {
            return Err("the kernel has no overlayfs".into());
        }
        let dir = open_dir(files);
        fs::create_dir(dir.path().join("units")).expect("a folder");
        let targets =
            TARGETS.map(|name| (format!("{name}.target"), "[Unit]\nDefaultDependencies=no\n".to_string()));
        for (name, text) in targets.iter().chain(units) {
            fs::write(dir.path().join("units").join(name), text).expect("a unit");
        }
        let boot = dir.path().join("boot.sh");
        fs::write(&boot, BOOT).expect("boot.sh");
        let groups = groups()?;
        // The shell goes into the groups before the namespaces are made: the group is their root.
        let enter =
            "for group in $GROUPS_OF_TEST; do echo $$ > $group/cgroup.procs || exit; done; exec \"$@\"";
        let mut command = Command::new("sh");
        command
            .args(["-c", enter, "sh", "unshare", "--mount", "--pid", "--ipc", "--uts", "--net", "--cgroup"]);
        command.args(["--fork", "--kill-child", "sh"]).arg(boot).arg(dir.path()).arg(systemd);
        let names: Vec<&str> = groups.iter().filter_map(|group| group.to_str()).collect();
        let console = fs::File::create(dir.path().join("console")).expect("a file");
        command.env("GROUPS_OF_TEST", names.join(" ")).stdin(Stdio::null());
        command.stdout(console.try_clone().expect("dup")).stderr(console);
        Ok(Systemd { child: command.spawn().expect("sh"), groups, dir })
    }

    /// Runs a script in the system, behind [`BEGIN`]. Returns what it prints.
    pub fn script(&self, text: &str) -> String {
        fs::write(self.path("script"), format!("{BEGIN}{text}")).expect("a script");
        let mut first = None;
        until(&format!("systemd runs: {}", self.log()), || {
            first = self.first();
            first.is_some()
        });
        let first = first.unwrap_or_default().to_string();
        let mut command = Command::new("timeout");
        command.args([
            "300",
            "nsenter",
            "-t",
            &first,
            "-m",
            "-p",
            "-C",
            "-i",
            "-u",
            "-n",
            "sh",
            "/run/machine/script",
        ]);
        command.env("SYSTEMD_UNIT_PATH", "/etc/systemd/system").env_remove("HUGELIFT_STORE");
        let out = command.stdin(Stdio::null()).output().expect("nsenter(1)");
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// Returns the pid of systemd, once it runs.
    fn first(&self) -> Option<u32> {
        let pid = self.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        let child = children.split_whitespace().next()?.parse().ok()?;
        fs::read_link(format!("/proc/{child}/exe")).is_ok_and(|exe| exe.ends_with("systemd")).then_some(child)
    }

    /// Returns where a file of /run/machine is.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns what the system has said on its console.
    pub fn log(&self) -> String {
        fs::read_to_string(self.path("console")).unwrap_or_default()
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        // unshare(1) passes no signal on, but its child dies with it, and with that all that are in its namespace.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for group in &self.groups {
            let gone = || {
                let _ = Command::new("find")
                    .arg(group)
                    .args(["-depth", "-type", "d", "-exec", "rmdir", "{}", "+"])
                    .output();
                !group.exists()
            };
            until("the control groups are empty", gone);
        }
    }
}

/// Makes a control group for the system in each hierarchy that it uses.
fn groups() -> Result<Vec<PathBuf>, String> {
    let top = Path::new("/sys/fs/cgroup");
    let hierarchies = match top.join("cgroup.controllers").exists() {
        true => vec![top.to_path_buf()],
        false => ["unified", "systemd", "memory"].map(|name| top.join(name)).to_vec(),
    };
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let name = format!("hugelift-units-{}-{number}", std::process::id());
    let make = |hierarchy: PathBuf| {
        let group = hierarchy.join(&name);
        match fs::create_dir(&group) {
            Ok(()) => Ok(group),
            Err(error) => Err(format!("cannot make a control group in {}: {error}", hierarchy.display())),
        }
    };
    hierarchies.into_iter().map(make).collect()
}
