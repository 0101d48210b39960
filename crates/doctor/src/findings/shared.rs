// SPDX-License-Identifier: Apache-2.0
//! Shared memory that is not on huge pages, though one collapse would serve all that share it.

use super::finding::Finding;
use crate::facts::{Facts, SharedProgram};
use hugelift_core::addr::human_bytes;

/// The least shared memory that is worth a finding.
const MUCH: u64 = 64 << 20;

pub(super) fn findings(facts: &Facts, out: &mut Vec<Finding>) {
    let (Some(shared), Some(setting)) = (&facts.shared, &facts.thp.shmem_enabled) else { return };
    // No shared memory can be huge then.
    if setting.chosen() == "deny" {
        return;
    }
    let SharedProgram { pid, exe, liftable, huge, incongruent, mounted } = shared;
    let who = format!("{exe} (process {pid})");
    let attach = format!("hugelift attach --parts shm {pid}");
    let title =
        |bytes: u64| format!("{} of the shared memory of {who} can have no huge pages", human_bytes(bytes));
    let unnamed = incongruent.saturating_sub(*mounted);
    if unnamed >= MUCH {
        let why = "its address does not match its offset. The kernel aligns shared memory only if this setting is not \
                   'never'; 'advise' gives huge pages to nobody who does not ask for them";
        let finding = Finding::note("shmem-unaligned", title(unnamed), why).read(setting);
        out.push(match setting.chosen() {
            "never" => finding.set(setting, "advise").safe().advice(format!("then restart it; then: {attach}")),
            _ => finding.advice(format!(
                "if it was started before the setting was changed, restart it; then: {attach}. If it chooses the addresses \
                 itself, nothing helps"
            )),
        });
    }
    if *mounted >= MUCH {
        let why = "its address does not match its offset. The kernel aligns files of a tmpfs only if the tmpfs is mounted with \
                   another huge= than 'never'; 'advise' gives huge pages to nobody who does not ask for them";
        let advice =
            "mount -o remount,huge=advise /dev/shm (or where its files are), then restart it; then: ";
        out.push(
            Finding::note("tmpfs-unaligned", title(*mounted), why)
                .seen(format!("/proc/{pid}/smaps"), format!("{} of files in tmpfs", human_bytes(*mounted)))
                .advice(format!("{advice}{attach}")),
        );
    }
    let small = liftable.saturating_sub(*huge);
    if small >= MUCH {
        let title = format!("{} of the shared memory of {who} is on small pages", human_bytes(small));
        let why = "each process that shares it has page tables of its own for it, which huge pages make much smaller";
        let seen = format!("liftable {}, huge {}", human_bytes(*liftable), human_bytes(*huge));
        out.push(
            Finding::note("shmem-small", title, why)
                .seen(format!("/proc/{pid}/smaps"), seen)
                .advice(format!("collapse it for all of them: {attach}")),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Reading;

    fn found(setting: &str, shared: SharedProgram) -> Vec<Finding> {
        let mut facts = Facts { shared: Some(shared), ..Facts::default() };
        facts.thp.shmem_enabled = Some(Reading { source: "/sys/shmem".into(), value: setting.into() });
        let mut out = Vec::new();
        findings(&facts, &mut out);
        out
    }

    #[test]
    fn issue_32_2_the_setting_is_offered_where_it_helps() {
        let program = SharedProgram { pid: 7, exe: "/bin/db".into(), ..SharedProgram::default() };
        assert!(found("always [never] advise", program.clone()).is_empty());
        let skewed = SharedProgram { incongruent: 1 << 30, ..program.clone() };
        let [offer] = &found("always advise [never]", skewed.clone())[..] else { panic!() };
        assert_eq!(offer.key, "shmem-unaligned");
        assert_eq!(offer.title, "1 GB of the shared memory of /bin/db (process 7) can have no huge pages");
        assert!(offer.safe && offer.command.as_ref().is_some_and(|c| c.contains("advise")), "{offer:?}");
        let [restart] = &found("always [advise] never", skewed.clone())[..] else { panic!() };
        assert!(restart.command.is_none() && !restart.safe);
        let files = SharedProgram { mounted: 1 << 30, ..skewed.clone() };
        let [remount] = &found("always advise [never]", files)[..] else { panic!() };
        assert_eq!(remount.key, "tmpfs-unaligned");
        assert!(!remount.safe && remount.advice.as_ref().is_some_and(|a| a.contains("remount,huge=advise")));
        assert!(found("always never [deny]", skewed).is_empty());
        let small = SharedProgram { liftable: 200 << 20, huge: 100 << 20, ..program.clone() };
        let [offer] = &found("always advise [never]", small)[..] else { panic!() };
        assert_eq!(
            offer.advice.as_deref(),
            Some("collapse it for all of them: hugelift attach --parts shm 7")
        );
        let huge = SharedProgram { liftable: 200 << 20, huge: 190 << 20, ..program };
        assert!(found("always advise [never]", huge).is_empty());
    }
}
