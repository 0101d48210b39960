# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
# boot.sh FOLDER SYSTEMD: becomes SYSTEMD, in new namespaces and in the control group that it is started in. Its root is an
# overlay, its units are those of FOLDER/units alone, and FOLDER is at /run/machine: nothing of the machine is changed.
set -e
dir=$1
mount --make-rprivate /
mkdir "$dir/mem"
mount -t tmpfs -o mode=0755 tmpfs "$dir/mem"
root=$dir/mem/root
mkdir "$dir/mem/upper" "$dir/mem/work" "$root"
mount -t overlay -o "lowerdir=/,upperdir=$dir/mem/upper,workdir=$dir/mem/work" overlay "$root"
mount -t tmpfs -o mode=0755,nosuid,nodev,noexec tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o mode=0755 tmpfs "$root/dev"
mount -t tmpfs -o mode=0755 tmpfs "$root/etc/systemd/system"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
groups=$root/sys/fs/cgroup
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mount -t cgroup2 cgroup2 "$groups"
else # version 1 has the memory, as systemd's hybrid hierarchy
    mount -t tmpfs -o mode=0755 tmpfs "$groups"
    mkdir "$groups/unified" "$groups/systemd" "$groups/memory"
    mount -t cgroup2 cgroup2 "$groups/unified"
    mount -t cgroup -o none,name=systemd cgroup "$groups/systemd"
    mount -t cgroup -o memory cgroup "$groups/memory"
fi
for name in null zero full random urandom tty; do
    touch "$root/dev/$name"
    mount --bind "/dev/$name" "$root/dev/$name"
done
mkdir "$root/dev/pts" "$root/dev/shm" "$root/run/machine" "$root/run/old"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
mount --bind "$dir" "$root/run/machine"
cp "$dir"/units/* "$root/etc/systemd/system/"
cd "$root"
pivot_root . run/old
umount -l /run/old
exec env -i container=test "PATH=$PATH" SYSTEMD_UNIT_PATH=/etc/systemd/system SYSTEMD_GENERATOR_PATH=/none \
    SYSTEMD_PROC_CMDLINE= "$2" --system --unit=test.target --default-standard-output=null --default-standard-error=null \
    --show-status=false --log-target=console
