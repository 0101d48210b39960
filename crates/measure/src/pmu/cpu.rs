// SPDX-License-Identifier: Apache-2.0
//! The model of the CPU, from /proc/cpuinfo.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The fields of a CPU by which its event table is found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Cpu {
    /// The fields of the CPUID instruction.
    X86 {
        /// `GenuineIntel`, `AuthenticAMD`…
        vendor: String,
        /// With the extended family added.
        family: u32,
        /// With the extended model in the upper four bits.
        model: u32,
        /// Revision of the model; two generations may differ by nothing else.
        stepping: u32,
    },
    /// The fields of the main ID register, MIDR_EL1.
    Arm {
        /// The maker: 0x41 is Arm.
        implementer: u32,
        /// The core.
        part: u32,
    },
}

impl fmt::Display for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cpu::X86 { vendor, family, model, stepping } => {
                // A hypervisor can set any vendor string.
                let vendor: String = vendor.chars().filter(|c| !c.is_control()).take(16).collect();
                write!(f, "{vendor} family {family:#x} model {model:#x} stepping {stepping:#x}")
            }
            Cpu::Arm { implementer, part } => write!(f, "Arm implementer {implementer:#x} part {part:#x}"),
        }
    }
}

/// Returns each kind of CPU that the text names once, in its order. A machine with two kinds of cores
/// has two; a text of another architecture, or a damaged one, gives none.
pub fn parse_cpuinfo(text: &[u8]) -> Vec<Cpu> {
    let mut kinds: Vec<Cpu> = Vec::new();
    let mut found = Fields::default();
    // The end of the text ends the last processor like an empty line.
    for line in text.split(|b| *b == b'\n').chain([&b""[..]]) {
        if line.trim_ascii().is_empty() {
            if let Some(cpu) = std::mem::take(&mut found).cpu()
                && !kinds.contains(&cpu)
            {
                kinds.push(cpu);
            }
            continue;
        }
        if let Some((key, value)) = std::str::from_utf8(line).ok().and_then(|l| l.split_once(':')) {
            found.take(key.trim(), value.trim());
        }
    }
    kinds
}

/// The fields of one processor that were read so far.
#[derive(Default)]
struct Fields {
    vendor: Option<String>,
    family: Option<u32>,
    model: Option<u32>,
    stepping: Option<u32>,
    implementer: Option<u32>,
    part: Option<u32>,
}

impl Fields {
    fn take(&mut self, key: &str, value: &str) {
        match key {
            "vendor_id" => self.vendor = Some(value.to_string()),
            "cpu family" => self.family = number(value),
            "model" => self.model = number(value),
            "stepping" => self.stepping = number(value),
            "CPU implementer" => self.implementer = number(value),
            "CPU part" => self.part = number(value),
            _ => {}
        }
    }

    fn cpu(self) -> Option<Cpu> {
        if let (Some(implementer), Some(part)) = (self.implementer, self.part) {
            return Some(Cpu::Arm { implementer, part });
        }
        Some(Cpu::X86 {
            vendor: self.vendor?,
            family: self.family?,
            model: self.model?,
            // The kernel writes "unknown" where it has no stepping.
            stepping: self.stepping.unwrap_or(0),
        })
    }
}

/// `85`, `0xd0c`
fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SKYLAKE: &str = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\n\
        model name\t: Intel(R) Xeon(R) Platinum 8175M CPU @ 2.50GHz\nstepping\t: 4\nmicrocode\t: 0x2007006\n\n";
    const N1: &str = "processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\n\
        CPU architecture: 8\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\nCPU revision\t: 1\n\n";

    fn skylake() -> Cpu {
        Cpu::X86 { vendor: "GenuineIntel".into(), family: 6, model: 85, stepping: 4 }
    }

    #[test]
    fn x86_and_arm() {
        assert_eq!(parse_cpuinfo(SKYLAKE.as_bytes()), [skylake()]);
        assert_eq!(parse_cpuinfo(SKYLAKE.repeat(64).as_bytes()), [skylake()]);
        assert_eq!(parse_cpuinfo(N1.as_bytes()), [Cpu::Arm { implementer: 0x41, part: 0xd0c }]);
    }

    #[test]
    fn two_kinds_of_cores() {
        let little = N1.replace("0xd0c", "0xd05");
        let kinds = parse_cpuinfo(format!("{little}{N1}{little}").as_bytes());
        let part = |part| Cpu::Arm { implementer: 0x41, part };
        assert_eq!(kinds, [part(0xd05), part(0xd0c)]);
    }

    #[test]
    fn the_last_processor_needs_no_empty_line() {
        assert_eq!(parse_cpuinfo(SKYLAKE.trim_end().as_bytes()), [skylake()]);
    }

    #[test]
    fn text_without_a_cpu_gives_none() {
        for text in [
            "",
            "\n\n",
            "processor : 0\n",
            "vendor_id : GenuineIntel\nmodel : 85\n",
            "hart : 0\nisa : rv64\n",
        ] {
            assert_eq!(parse_cpuinfo(text.as_bytes()), [], "{text:?}");
        }
        let unknown = SKYLAKE.replace("stepping\t: 4", "stepping\t: unknown");
        let expected = Cpu::X86 { vendor: "GenuineIntel".into(), family: 6, model: 85, stepping: 0 };
        assert_eq!(parse_cpuinfo(unknown.as_bytes()), [expected]);
        assert_eq!(parse_cpuinfo(SKYLAKE.replace(": 85", ": 99999999999").as_bytes()), []);
    }

    #[test]
    fn a_makers_name_cannot_write_to_the_terminal() {
        let hostile = SKYLAKE.replace("GenuineIntel", "Evil\x1b[2J");
        assert!(!parse_cpuinfo(hostile.as_bytes())[0].to_string().contains('\x1b'));
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            parse_cpuinfo(&bytes);
        }

        #[test]
        fn damaged_text(at in 0..SKYLAKE.len(), with in any::<u8>()) {
            let mut text = format!("{SKYLAKE}{N1}").into_bytes();
            text[at] = with;
            let kinds = parse_cpuinfo(&text);
            let n1 = Cpu::Arm { implementer: 0x41, part: 0xd0c };
            prop_assert!(kinds.contains(&n1), "{:?}", kinds);
            prop_assert!(kinds.len() <= 3);
        }

        #[test]
        fn what_is_written_is_read(family in any::<u32>(), model in any::<u32>(), stepping in any::<u32>()) {
            let text = format!("vendor_id : X\ncpu family : {family}\nmodel : {model}\nstepping : {stepping}\n");
            let expected = Cpu::X86 { vendor: "X".into(), family, model, stepping };
            prop_assert_eq!(parse_cpuinfo(text.as_bytes()), [expected]);
        }
    }
}
