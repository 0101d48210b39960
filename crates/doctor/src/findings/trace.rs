// SPDX-License-Identifier: Apache-2.0
//! Permissions to trace and to count: hugelift lifts by ptrace(2) and counts by
//! perf_event_open(2).

use super::finding::Finding;
use crate::facts::Facts;

const CAP_SYS_PTRACE: u64 = 1 << 19;
const CAP_SYS_ADMIN: u64 = 1 << 21;
const CAP_PERFMON: u64 = 1 << 38;

pub(super) fn findings(facts: &Facts, out: &mut Vec<Finding>) {
    yama(facts, out);
    denied(facts, out);
    paranoid(facts, out);
}

fn has(facts: &Facts, capabilities: u64) -> bool {
    facts.trace.capabilities & capabilities != 0
}

fn yama(facts: &Facts, out: &mut Vec<Finding>) {
    let Some(scope) = &facts.trace.yama else { return };
    match scope.number() {
        Some(2) => {
            let privileged = has(facts, CAP_SYS_PTRACE);
            let make = if privileged { Finding::warning } else { Finding::problem };
            let why = "only processes with CAP_SYS_PTRACE may trace: without it, hugelift run starts programs without a lift";
            out.push(make("yama", "only administrators may trace", why).read(scope).set(scope, 1));
        }
        Some(3..) => {
            let why = "no process may trace until the next boot: hugelift run starts programs without a lift";
            let finding = Finding::problem("yama", "tracing is switched off", why).read(scope);
            out.push(
                finding
                    .advice("the running kernel does not lower it: set kernel.yama.ptrace_scope=1 in /etc/sysctl.d and reboot"),
            );
        }
        _ => {}
    }
}

fn denied(facts: &Facts, out: &mut Vec<Finding>) {
    let Some(probes) = facts.probes.as_ref().filter(|p| p.ptrace.failed()) else { return };
    // The finding on Yama says it already.
    if facts.trace.yama.as_ref().and_then(|y| y.number()).is_some_and(|scope| scope >= 2) {
        return;
    }
    let why = "hugelift run cannot lift what it starts: programs start without a lift";
    let finding = Finding::problem("ptrace-denied", "a process may not trace its own child", why)
        .seen("tried: PTRACE_SEIZE", probes.ptrace.detail.clone().unwrap_or_default())
        .seen("/proc/self/status", format!("Seccomp: {}", facts.trace.seccomp));
    out.push(finding.advice(
        "a seccomp filter or security module forbids it: in a container --cap-add SYS_PTRACE, \
         or a seccomp profile that allows ptrace",
    ));
}

fn paranoid(facts: &Facts, out: &mut Vec<Finding>) {
    let Some(paranoid) = &facts.trace.paranoid else { return };
    // Kernels of some distributions have 3 and 4: unprivileged users may not count at all.
    let forbidden = paranoid.value.parse::<i64>().is_ok_and(|level| level > 2);
    if forbidden && facts.trace.pmu && !has(facts, CAP_PERFMON | CAP_SYS_ADMIN) {
        let why = "hugelift stat cannot count TLB misses, not even of your own programs";
        let finding = Finding::note("perf-paranoid", "only administrators may use hardware counters", why);
        out.push(finding.read(paranoid).set(paranoid, 2));
    }
}
