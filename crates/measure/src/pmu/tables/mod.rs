// SPDX-License-Identifier: Apache-2.0
//! The events of each CPU model, as data.

mod amd;
mod arm;
mod intel;
mod model;

pub use model::{Cpus, Event, Formulas, Model, Role};

use super::cpu::Cpu;

/// Returns all models that have a table.
pub fn models() -> impl Iterator<Item = &'static Model> {
    intel::MODELS.iter().chain(amd::MODELS).chain(arm::MODELS)
}

/// Returns the table of a CPU.
pub fn model_of(cpu: &Cpu) -> Option<&'static Model> {
    models().find(|m| m.cpus.has(cpu))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn intel(model: u32, stepping: u32) -> Option<&'static str> {
        let cpu = Cpu::X86 { vendor: "GenuineIntel".into(), family: 6, model, stepping };
        model_of(&cpu).map(|m| m.name)
    }

    fn amd(family: u32, model: u32) -> Option<&'static str> {
        model_of(&Cpu::X86 { vendor: "AuthenticAMD".into(), family, model, stepping: 0 }).map(|m| m.name)
    }

    fn arm(part: u32) -> Option<&'static str> {
        model_of(&Cpu::Arm { implementer: 0x41, part }).map(|m| m.name)
    }

    #[test]
    fn cpus_have_their_models() {
        assert_eq!(intel(0x3f, 2), Some("Intel Haswell"));
        assert_eq!(intel(0x4f, 1), Some("Intel Broadwell server"));
        assert_eq!(intel(0x55, 4), Some("Intel Skylake"));
        assert_eq!(intel(0x55, 7), Some("Intel Cascade Lake"));
        assert_eq!(intel(0x6a, 6), Some("Intel Ice Lake"));
        assert_eq!(intel(0x8f, 8), Some("Intel Sapphire Rapids"));
        assert_eq!(intel(0xad, 1), Some("Intel Granite Rapids"));
        assert_eq!(intel(0x97, 2), Some("Intel Alder Lake P-core"));
        assert_eq!(amd(0x17, 0x01), Some("AMD Zen 1"));
        assert_eq!(amd(0x17, 0x31), Some("AMD Zen 2"));
        assert_eq!(amd(0x19, 0x01), Some("AMD Zen 3"));
        assert_eq!(amd(0x19, 0x11), Some("AMD Zen 4"));
        assert_eq!(amd(0x1a, 0x02), Some("AMD Zen 5"));
        assert_eq!(arm(0xd0c), Some("Arm Neoverse N1"));
        assert_eq!(arm(0xd84), Some("Arm Neoverse V3"));
    }

    #[test]
    fn no_guess_for_what_is_not_listed() {
        assert_eq!(intel(0x2a, 7), None);
        assert_eq!(intel(0xff, 0), None);
        // An efficiency core alone.
        assert_eq!(intel(0xbe, 0), None);
        assert_eq!(amd(0x15, 0x02), None);
        assert_eq!(amd(0x1a, 0x50), None);
        assert_eq!(arm(0xd03), None);
        assert_eq!(model_of(&Cpu::Arm { implementer: 0x61, part: 0xd0c }), None);
    }

    #[test]
    fn tables_are_sound() {
        let mut names = BTreeSet::new();
        for model in models() {
            assert!(names.insert(model.name), "{} twice", model.name);
            assert!(!model.source.is_empty() && !model.pmus.is_empty());
            let mut events = std::collections::BTreeMap::new();
            for group in model.groups {
                assert_eq!(group[0].role, Role::Cycles, "{}", model.name);
                // Cycles and instructions have counters of their own on Intel; elsewhere at least five.
                let general = group.iter().filter(|e| !matches!(e.role, Role::Cycles | Role::Instructions));
                assert!(general.count() <= 4, "{}", model.name);
                let roles: Vec<Role> = group.iter().map(|e| e.role).collect();
                assert!(roles.iter().enumerate().all(|(i, r)| !roles[..i].contains(r)), "{}", model.name);
                for event in *group {
                    let before = events.insert(event.name, *event);
                    assert!(before.is_none_or(|b| b == *event), "{}: {}", model.name, event.name);
                }
            }
            let configs: BTreeSet<u64> = events.values().map(|e| e.config).collect();
            assert_eq!(configs.len(), events.len(), "{}: one code, two names", model.name);
        }
    }
}
