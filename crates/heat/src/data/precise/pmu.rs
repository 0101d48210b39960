// SPDX-License-Identifier: Apache-2.0
//! Finds the event with which a PMU of this machine samples addresses of data: PEBS of Intel, IBS of AMD, SPE of Arm. Its
//! number and the place of each term of its name are in sysfs (Documentation/ABI/testing/sysfs-bus-event_source-devices-format
//! and -events in Linux).

use crate::event::Event;
use hugelift_core::printable::Escape as _;
use perf_event_open_sys::bindings::perf_event_attr;
use std::path::Path;
use std::time::Duration;

/// A PMU that samples addresses of data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Pebs,
    Ibs,
    Spe,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Pebs => "PEBS",
            Kind::Ibs => "IBS",
            Kind::Spe => "SPE",
        }
    }
}

/// What is there where a PMU samples addresses of data: its folder in sysfs, and a file in it.
const PMUS: [(&str, &str, Kind); 4] = [
    ("cpu", "events/mem-loads", Kind::Pebs),
    ("cpu_core", "events/mem-loads", Kind::Pebs),
    ("ibs_op", "type", Kind::Ibs),
    ("arm_spe_0", "type", Kind::Spe),
];

/// The most samples in a second of CPU time.
const FREQUENCY: u64 = 1000;

/// What the interrupts of the samples may take of the CPU time of the process: one in so many.
const SHARE: u32 = 500;

/// SPE samples one of so many operations. A CPU makes some thousand million in a second. An odd multiple of 256, the unit of the
/// PMU, is in step with few loops.
const OPERATIONS: u64 = 4097 * 256;

/// Bytes of the buffer of SPE for each thread. A sample has about 64, and the buffer is read ten times a second.
const AUX: usize = 32 << 10;

/// How many samples can be taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Threads that can run at the same time.
    pub(super) threads: u64,
    /// What a sample costs its thread.
    pub(super) price: Duration,
    /// The kernel's own limit, in samples a second (kernel.perf_event_max_sample_rate). It falls when interrupts are slow.
    pub(super) limit: u64,
}

impl Pace {
    /// Returns the samples in a second of CPU time of a thread.
    fn frequency(self) -> u64 {
        let affordable = 1_000_000_000 / u128::from(SHARE) / self.price.as_nanos().max(1);
        let affordable = u64::try_from(affordable).unwrap_or(u64::MAX);
        (FREQUENCY.min(affordable) / self.threads.max(1)).clamp(1, self.limit.max(1))
    }
}

/// Finds the PMU, and the events to try, the most exact one first.
///
/// # Errors
/// There is none, or its files cannot be read; the text says which.
pub(super) fn find(sys: &Path, pace: Pace) -> Result<(Kind, Vec<Event>), String> {
    let devices = sys.join("bus/event_source/devices");
    let there = PMUS.iter().find(|(folder, file, _)| devices.join(folder).join(file).exists());
    let Some((folder, _, kind)) = there else {
        return Err("no PMU here samples them (PEBS, IBS, SPE), like in most guests".into());
    };
    let device = devices.join(folder);
    let events = match kind {
        Kind::Pebs => {
            let attr = event(&device, &text(&device, "events/mem-loads")?)?;
            // 3: the sample is of the instruction itself. 2: it should be. 1: it is of one at a constant distance.
            let exact = |precise| {
                let mut attr = attr;
                attr.set_precise_ip(precise);
                Event::addresses(attr, pace.frequency())
            };
            vec![exact(3), exact(2), exact(1)]
        }
        // cnt_ctl counts operations in place of cycles: an operation that waits is not met more often then. With swfilt the kernel
        // leaves out its own operations, which users must not see.
        Kind::Ibs => vec![Event::addresses(optional(&device, &["cnt_ctl", "swfilt"])?, pace.frequency())],
        Kind::Spe => {
            let attr = optional(&device, &["load_filter", "store_filter", "jitter"])?;
            vec![Event::packets(attr, OPERATIONS, AUX)]
        }
    };
    Ok((*kind, events))
}

/// Reads an event with those of its terms that this PMU has.
fn optional(device: &Path, terms: &[&str]) -> Result<perf_event_attr, String> {
    let there: Vec<&str> =
        terms.iter().copied().filter(|term| device.join("format").join(term).exists()).collect();
    event(device, &there.join(","))
}

/// Reads an event: terms such as "event=0xcd,umask=0x1,ldlat=3". A term without a value is 1.
fn event(device: &Path, terms: &str) -> Result<perf_event_attr, String> {
    let number = text(device, "type")?;
    let type_ =
        number.parse().map_err(|_| format!("{}: '{number}' is no number", device.join("type").escaped()))?;
    let mut attr = perf_event_attr { type_, ..perf_event_attr::default() };
    let mut config = [0_u64; 3];
    for term in terms.split(',').map(str::trim).filter(|term| !term.is_empty()) {
        let (name, value) = term.split_once('=').unwrap_or((term, "1"));
        let wrong = || format!("{}: the term '{term}' is not understood", device.escaped());
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-') {
            return Err(wrong());
        }
        let value = number_of(value).ok_or_else(wrong)?;
        let format = text(device, &format!("format/{name}"))?;
        let (word, bits) = format.split_once(':').ok_or_else(wrong)?;
        let word =
            ["config", "config1", "config2"].iter().position(|known| *known == word).ok_or_else(wrong)?;
        config[word] |= placed(value, bits).ok_or_else(wrong)?;
    }
    attr.config = config[0];
    attr.__bindgen_anon_3.config1 = config[1];
    attr.__bindgen_anon_4.config2 = config[2];
    Ok(attr)
}

/// Reads a decimal or, after 0x, a hexadecimal number.
fn number_of(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Puts the bits of a value where a format wants them, as "0-7,32-35" or "18". `None` if they do not fit, or are no bits.
fn placed(value: u64, bits: &str) -> Option<u64> {
    let (mut rest, mut all) = (value, 0_u64);
    for part in bits.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        let width = last.checked_sub(first)?.checked_add(1)?;
        if last > 63 {
            return None;
        }
        let mask = u64::MAX >> (64 - width);
        all |= (rest & mask) << first;
        rest = rest.checked_shr(width).unwrap_or(0);
    }
    (rest == 0).then_some(all)
}

fn text(device: &Path, file: &str) -> Result<String, String> {
    let path = device.join(file);
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.escaped()))?;
    Ok(text.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::super::sys;
    use super::*;

    const PACE: Pace = Pace { threads: 1, price: Duration::from_micros(1), limit: 100_000 };

    fn found(files: &[(&str, &str)]) -> Result<(Kind, Vec<Event>), String> {
        find(sys(files).path(), PACE)
    }

    fn configs(event: &Event) -> [u64; 3] {
        let attr = &event.attr;
        // SAFETY: every bit pattern is an integer.
        unsafe { [attr.config, attr.__bindgen_anon_3.config1, attr.__bindgen_anon_4.config2] }
    }

    /// Returns whether it has a frequency, and that or its period.
    fn rate(event: &Event) -> (u64, u64) {
        // SAFETY: as above.
        (event.attr.freq(), unsafe { event.attr.__bindgen_anon_1.sample_freq })
    }

    const INTEL: [(&str, &str); 5] = [
        ("cpu/type", "4"),
        ("cpu/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3"),
        ("cpu/format/event", "config:0-7"),
        ("cpu/format/umask", "config:8-15"),
        ("cpu/format/ldlat", "config1:0-15"),
    ];

    #[test]
    fn issue_31_2_pebs_samples_loads_as_exactly_as_it_can() {
        let (kind, events) = found(&INTEL).expect("PEBS");
        assert_eq!((kind, events.len()), (Kind::Pebs, 3));
        for event in &events {
            assert_eq!(
                (event.attr.type_, configs(event), rate(event), event.aux),
                (4, [0x1cd, 3, 0], (1, 1000), 0)
            );
        }
        assert_eq!(events.iter().map(|event| event.attr.precise_ip()).collect::<Vec<_>>(), [3, 2, 1]);
    }

    #[test]
    fn issue_31_2_ibs_and_spe() {
        let ibs = [
            ("ibs_op/type", "11"),
            ("ibs_op/format/cnt_ctl", "config:19"),
            ("ibs_op/format/swfilt", "config2:0"),
        ];
        let (kind, events) = found(&ibs).expect("IBS");
        assert_eq!((kind, events[0].attr.type_, configs(&events[0])), (Kind::Ibs, 11, [1 << 19, 0, 1]));
        assert_eq!((rate(&events[0]), events[0].attr.disabled()), ((1, 1000), 0));
        // A kernel without swfilt.
        assert_eq!(configs(&found(&ibs[..2]).expect("IBS").1[0]), [1 << 19, 0, 0]);
        let spe = [
            ("arm_spe_0/type", "9"),
            ("arm_spe_0/format/load_filter", "config:33"),
            ("arm_spe_0/format/store_filter", "config:34"),
            ("arm_spe_0/format/jitter", "config:16"),
        ];
        let (kind, events) = found(&spe).expect("SPE");
        assert_eq!(
            (kind, configs(&events[0]), rate(&events[0])),
            (Kind::Spe, [3 << 33 | 1 << 16, 0, 0], (0, OPERATIONS))
        );
        assert_eq!((events[0].aux, events[0].attr.disabled()), (AUX, 1));
        assert!(found(&[]).is_err_and(|why| why.starts_with("no PMU here samples them")));
    }

    #[test]
    fn issue_31_2_samples_cost_little_and_no_more_than_the_kernel_allows() {
        let of = |threads, micros, limit| {
            Pace { threads, price: Duration::from_micros(micros), limit }.frequency()
        };
        assert_eq!((of(1, 2, 100_000), of(4, 2, 100_000)), (1000, 250));
        // 0.2 % of a second, at 10 us for a sample.
        assert_eq!((of(1, 10, 100_000), of(1, 10, 63)), (200, 63));
        assert_eq!((of(10_000, 10, 0), of(0, 0, u64::MAX)), (1, 1000));
    }

    #[test]
    fn issue_31_2_files_that_say_nonsense_are_named() {
        let with = |file: &str, text: &str| {
            let files: Vec<(&str, &str)> = INTEL
                .iter()
                .map(|(name, usual)| (*name, if *name == file { text } else { *usual }))
                .collect();
            found(&files).map(drop).expect_err(text)
        };
        assert!(with("cpu/type", "four").contains("cpu/type: 'four' is no number"));
        for terms in ["event=0xcd,umask=x", "event=-1", "../../type=1", "event=0x1cd"] {
            let why = with("cpu/events/mem-loads", terms);
            assert!(why.contains("is not understood") && !why.contains('\n'), "{why}");
        }
        assert!(with("cpu/events/mem-loads", "offset=1").contains("format/offset"));
        for format in ["config", "config9:0-7", "config:7-0", "config:0-64", "config:", "config:0-7,x"] {
            assert!(with("cpu/format/event", format).contains("is not understood"), "{format}");
        }
    }

    #[test]
    fn issue_31_2_bits_go_where_the_format_wants_them() {
        assert_eq!(placed(0x1cd, "0-7,32-35"), Some(0x1_0000_00cd));
        assert_eq!(placed(u64::MAX, "0-63"), Some(u64::MAX));
        assert_eq!((placed(1, "18"), placed(2, "18"), placed(0, "3-1")), (Some(1 << 18), None, None));
    }
}
