# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What the rights of the chart's container are good for, in a container of containerd. ci/kubernetes/node sources it.
# shellcheck disable=SC2154 # dir: of that script
default="CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP NET_BIND_SERVICE SYS_CHROOT KILL AUDIT_WRITE"
policy=$dir/service.toml
tasks=/run/containerd/io.containerd.runtime.v2.task
printf '[[rule]]\nname = "large"\nprogram = "/large"\nany_user = true\ndo = ["code"]
[[rule]]\nname = "nothing else"\nprogram = "/*"\nany_user = true\ndo = []\n' >"$policy"

# Prints the capabilities of the service, in mode lift, that the chart adds.
capabilities() {
  helm template hugelift kubernetes/hugelift --set mode=lift --kube-version 1.34 --show-only templates/daemonset.yaml |
    python3 -c 'import sys, yaml; print(*yaml.safe_load(sys.stdin)["spec"]["template"]["spec"]["containers"][0]["securityContext"]["capabilities"]["add"])'
}

# NAME CAPABILITIES OPTION...: the service as the chart starts it, with a read-only root and the pids of the node.
service() {
  local one flags=()
  for one in $default; do [[ " $2 " == *" $one "* ]] || flags+=(--cap-drop "CAP_$one"); done
  for one in $2; do flags+=(--cap-add "CAP_$one"); done
  ctr -n k8s.io run --detach --read-only "${flags[@]}" "${@:3}" --with-ns pid:/proc/1/ns/pid \
    --mount "type=bind,src=$policy,dst=/etc/hugelift/service.toml,options=rbind:ro" \
    --mount type=tmpfs,src=tmpfs,dst=/run/hugelift,options=rw \
    --mount type=bind,src=/var/lib/hugelift,dst=/var/lib/hugelift,options=rbind:rw \
    --mount type=bind,src=/var/lib/containerd,dst=/var/lib/containerd,options=rbind:rslave:ro \
    --mount "type=bind,src=$tasks,dst=$tasks,options=rbind:rslave:ro" \
    --log-uri "file://$dir/log/$1" docker.io/library/hugelift:1 "$1" /hugelift service
}

# Ends a container, and removes it.
end() {
  ctr -n k8s.io tasks kill --signal "$2" "$1"
  await 30 "the end of $1" sh -c "! ctr -n k8s.io tasks list | grep -q '^$1 .*RUNNING'"
  ctr -n k8s.io tasks delete "$1" >/dev/null 2>&1 || true
  ctr -n k8s.io containers delete "$1"
}
is_huge() { [ "$(huge "$pid")" -ge 6144 ]; }
said() { grep -q "$2" "$dir/log/$1"; }

mkfifo "$dir/input"
exec 9<>"$dir/input"
ctr -n k8s.io run --seccomp docker.io/library/large:1 large /large serve <"$dir/input" >"$dir/log/large" 2>&1 &
await 30 "the large program" said large ready
pid=$(ctr -n k8s.io tasks list | awk '$1 == "large" { print $2 }')
grep -q 'Seccomp:.*2' "/proc/$pid/status" || fail "the large program has no filter"
rights=$(capabilities)

service filtered "$rights" --seccomp
await 60 "the refusal" said filtered "it is under a seccomp filter"
[ "$(huge "$pid")" = 0 ] || fail "it is lifted all the same"
end filtered SIGKILL
echo "ok: a service with a filter lifts no program that has one, and says so"

service lifting "$rights"
began=$SECONDS
await 60 "the large program is not huge" is_huge
echo "ok: with $rights, and no filter, the code of user $(awk '/^Uid/ { print $2 }' "/proc/$pid/status") is huge after $((SECONDS - began)) s: $(huge "$pid") kB"
for right in SYS_PTRACE SYS_ADMIN DAC_OVERRIDE; do [[ " $rights " == *" $right "* ]] || fail "the chart lacks $right"; done

end lifting SIGTERM
[ "$(ctr -n k8s.io tasks list | awk '$1 == "large" { print $2 }')" = "$pid" ] || fail "the program has ended"
is_huge || fail "the program is no longer huge"
echo "ok: the service has ended, and the program runs on, as huge as before"
exec 9>&-
end large SIGKILL
! grep -q ' /run/containerd/.*/rootfs ' /proc/self/mountinfo || fail "layers are held"
echo "ok: the containers are removed, and no layer is held"
