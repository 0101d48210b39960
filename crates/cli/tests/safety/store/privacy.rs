// SPDX-License-Identifier: Apache-2.0
//! Tests that users read from root's store only what every user may read.

use super::*;
use crate::common::open_dir;
use crate::{need, need_root};

/// Runs a script as root in its own mount and pid namespaces, with an empty `/run`, and returns its
/// output. In the script `$dir` is a directory that every user can reach, with the programs `hugelift` and
/// `program`; `run PROGRAM` starts a program from the store; `user COMMAND` runs a command as the user
/// nobody; `modes` prints the modes of all entries, `names` their names, and `readable` the number of files
/// of the store that the user nobody can read.
fn world(script: &str) -> String {
    let dir = open_dir(&[]);
    program(dir.path(), "program");
    let all = format!(
        "exec 2>&1
        set -e
        dir={}
        mount -t tmpfs -o noexec,mode=0755 tmpfs /run
        run() {{ $dir/hugelift run --backing shared \"$1\" > $dir/out 2>&1 && ! grep -q 'DIFFERS\\|^hugelift' $dir/out ||
            {{ echo failed; cat $dir/out; }}; }}
        entries() {{ find /run/hugelift/store -size +1M | sort; }}
        names() {{ entries | xargs -n1 basename | xargs echo; }}
        modes() {{ entries | xargs stat -c %a | sort | xargs echo; }}
        user() {{ setpriv --reuid=65534 --regid=65534 --clear-groups \"$@\"; }}
        readable() {{
            n=0
            for file in $(find /run/hugelift* -type f); do
                case $file in */lock) continue;; esac
                ! user cat $file > /dev/null 2>&1 || n=$((n + 1))
            done
            echo $n
        }}
        store() {{ $dir/hugelift store \"$@\"; }}
        {script}",
        dir.path().display()
    );
    let mut cmd = Command::new("unshare");
    cmd.args(["--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", &all]).current_dir("/");
    let out = cmd.env_remove("HUGELIFT_STORE").stdin(Stdio::null()).output().expect("unshare(1)");
    let text = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    assert!(out.status.success(), "{text}");
    text
}

#[test]
fn entries_that_are_no_longer_public_are_closed() {
    need_root!();
    need!("unshare", "mount", "setpriv");
    // A user who opened or linked an entry while it was public gets nothing from it later: here a link
    // shows that.
    let told = world(
        "cp $dir/program $dir/other; printf x >> $dir/other
        try() {
            mkdir -m 755 $dir/open
            cp $dir/program $dir/open/program
            run $dir/open/program
            echo before: $(modes) $(readable)
            entry=$(names)
            ln /run/hugelift/store/$entry /run/hugelift/store/linked
            chmod $1
            # The link has changed a time of the entry: 'verify' calls it damaged.
            $2 > /dev/null || [ \"$2\" = 'store verify' ]
            echo after: $(stat -c %a /run/hugelift/store/linked)
            [ ! /run/hugelift/store/$entry -ef /run/hugelift/store/linked ] || echo there: $1, $2
            [ \"$2\" = \"run $dir/other\" ] || echo readable: $(readable)
            rm -r $dir/open /run/hugelift/store/linked
            store drop --all > /dev/null
        }
        try \"700 $dir/open\" \"run $dir/open/program\"
        try \"705 $dir/open\" \"run $dir/open/program\"
        try \"700 $dir/open/program\" \"run $dir/open/program\"
        try \"705 $dir/open/program\" \"run $dir/open/program\"
        try \"700 $dir/open\" 'store gc'
        try \"700 $dir/open/program\" 'store gc'
        try \"700 $dir/open\" 'store list'
        try \"700 $dir/open\" 'store verify'
        try \"700 $dir/open\" \"run $dir/other\"",
    );
    let count = |line: &str| told.lines().filter(|l| *l == line).count();
    assert_eq!((count("before: 444 2"), count("after: 400"), count("readable: 0")), (9, 9, 8), "{told}");
    assert_eq!(told.lines().count(), 26, "{told}");
}

/// Where /run allows no code, the first start mounts a tmpfs.
#[test]
fn first_starts_at_a_time_mount_one_store() {
    need_root!();
    need!("unshare", "mount");
    let told = world(
        "mounts() { grep -c ' /run/hugelift/store ' /proc/self/mounts || true; }
        # The machine's own is listed too, below this /run.
        before=$(mounts)
        for round in $(seq 20); do
            pids=
            for n in 1 2 3 4; do
                $dir/hugelift run --backing shared $dir/program > $dir/out$n 2>&1 &
                pids=\"$pids $!\"
            done
            for pid in $pids; do wait $pid; done
            echo $(($(mounts) - before))
            # One that waits too long for the copy of another says so.
            grep -h '^hugelift\\|DIFFERS' $dir/out? | grep -v 'another start' || true
            while umount -l /run/hugelift/store 2> /dev/null; do :; done
            rm -r /run/hugelift
        done",
    );
    assert_eq!(told, "1\n".repeat(20));
}

#[test]
fn public_and_private_objects_of_the_same_bytes_do_not_share() {
    need_root!();
    need!("unshare", "mount", "setpriv");
    let told = world(
        "mkdir -m 755 $dir/open
        mkdir -m 700 $dir/closed
        cp $dir/program $dir/open/program
        cp $dir/program $dir/closed/program
        for order in 'open closed' 'closed open'; do
            for place in $order; do run $dir/$place/program; done
            first=$(names)
            echo modes: $(modes)
            for place in $order $order; do run $dir/$place/program; done
            [ \"$first\" = \"$(names)\" ] || echo made again
            store verify
            store drop --all > /dev/null
        done",
    );
    let count = |end: &str| told.lines().filter(|l| l.starts_with(end)).count();
    assert_eq!((count("modes: 400 444"), count("good: ")), (2, 4), "{told}");
    assert_eq!(told.lines().count(), 6, "{told}");
}

/// Two public objects of the same bytes have one entry. When one of them is removed or is no longer
/// public, the entry stays for the other one.
#[test]
fn an_entry_stays_for_the_object_that_is_still_public() {
    need_root!();
    need!("unshare", "mount", "setpriv");
    let told = world(
        "for change in 'chmod 700 $dir/one' 'rm -r $dir/one'; do
            mkdir -m 755 $dir/one $dir/two
            for place in one two; do cp $dir/program $dir/$place/; run $dir/$place/program; done
            first=$(names)
            echo modes: $(modes)
            eval $change
            store gc > /dev/null
            [ \"$first\" = \"$(names)\" ] || echo made again
            store verify
            run $dir/two/program
            echo modes: $(modes) $(readable)
            rm -r $dir/one $dir/two
            store drop --all > /dev/null
        done 2> /dev/null || true",
    );
    let count = |line: &str| told.lines().filter(|l| l.starts_with(line)).count();
    assert_eq!((count("modes: 444"), count("modes: 444 2"), count("good: ")), (4, 2, 2), "{told}");
    assert_eq!(told.lines().count(), 6, "{told}");
}

/// The name of an entry is a hash. For a private object it must not let users confirm a guess of the bytes.
#[test]
fn names_and_directories_reveal_nothing_private() {
    need_root!();
    need!("unshare", "mount", "setpriv");
    let told = world(
        "mkdir -m 700 $dir/closed
        cp $dir/program $dir/closed/program
        run $dir/closed/program
        first=$(names)
        user ls /run/hugelift/store > /dev/null 2>&1 && echo listed
        store drop --all > /dev/null
        run $dir/closed/program
        [ \"$first\" != \"$(names)\" ] || echo the name depends on the bytes alone
        echo readable $(readable)
        store drop --all > /dev/null",
    );
    assert_eq!(told, "readable 0\n");
}

/// Users still share what root has stored, though they cannot list it.
#[test]
fn a_user_shares_public_entries() {
    need_root!();
    need!("unshare", "mount", "setpriv");
    let told = world(
        "run $dir/program
        user $dir/hugelift run --backing shared -v $dir/program
        user $dir/hugelift store --store /run/hugelift/store list || echo status $?",
    );
    assert!(!told.contains("DIFFERS"), "{told}");
    assert!(told.contains("text 4 MB of 4 MB") || told.contains("text 6 MB of 6 MB"), "{told}");
    assert!(told.contains("Permission denied") && told.ends_with("status 125\n"), "{told}");
}

/// In a chroot hugelift cannot see the modes of the directories above the root. On some file systems it
/// cannot see what the server or the mount allows. Copies of such files are private.
#[test]
fn files_that_modes_do_not_prove_public_are_private() {
    need_root!();
    need!("unshare", "mount", "chroot", "ldd");
    let told = world(
        "jail=$dir/closed/jail
        mkdir -m 700 $dir/closed
        mkdir -m 755 $jail $jail/proc $jail/sys $jail/run
        for file in $dir/hugelift $dir/program; do
            cp $file $jail/
            for library in $(ldd $file 2> /dev/null | grep -o '/[^ ]*'); do cp --parents $library $jail/; done
        done
        mkdir -m 755 /run/hugelift
        mount -t tmpfs -o mode=0755 tmpfs /run/hugelift
        mount --bind /proc $jail/proc
        mount --bind /sys $jail/sys
        mount --rbind /run $jail/run
        chroot $jail /hugelift run --backing shared /program > /dev/null
        for entry in $(entries); do stat -c 'chroot %a' $entry; done | sort -u
        rm -r /run/hugelift/store
        mkdir -m 755 $dir/ramfs
        mount -t ramfs -o mode=0755 ramfs $dir/ramfs
        cp $dir/program $dir/ramfs/
        run $dir/ramfs/program
        echo ramfs $(modes)
        rm -r /run/hugelift/store
        mount -t tmpfs -o mode=0755 tmpfs $dir/ramfs
        cp $dir/program $dir/ramfs/
        run $dir/ramfs/program
        echo tmpfs $(modes)",
    );
    assert_eq!(told, "chroot 400\nramfs 400\ntmpfs 444\n");
}
