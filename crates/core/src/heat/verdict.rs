// SPDX-License-Identifier: Apache-2.0
//! Whether huge pages for code may pay, by the code in use and what the CPU's TLBs hold. It is no measurement: it says
//! for certain only where there is nothing to gain.
//!
//! A program whose code fits into the first level has nothing to gain. What only the second level holds costs some cycles each
//! time: we measured up to 2 % (`hugelift-bench advise`).

use super::Heat;
use crate::addr::human_bytes;
use crate::printable::thousands;
use serde::Serialize;

/// Fewer samples outside of the kernel say too little.
pub const ENOUGH: u64 = 1000;

/// What can be said.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The first level of the TLB holds all code in use.
    Nothing,
    /// A further level of the TLB holds all code in use, the first one does not.
    Little,
    /// More code is in use than the TLB holds.
    Probably,
    /// All that can be lifted is on huge pages.
    Lifted,
    /// The figures do not say.
    CannotTell,
}

/// What is known besides the code in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known<'a> {
    /// Which CPU it is about: "this CPU", or the name of another one.
    pub cpu: &'a str,
    /// Entries for small pages of code in the last TLB that is for code alone; `None` if the CPU does not say.
    pub entries: Option<u64>,
    /// The same of the first TLB.
    pub first_entries: Option<u64>,
    /// Bytes of code that can be on huge pages.
    pub liftable: u64,
    /// Bytes of code that are.
    pub huge: u64,
}

/// Returns the verdict, and a sentence for a person who knows nothing of TLBs.
pub fn verdict(heat: &Heat, known: Known) -> (Verdict, String) {
    let Known { cpu, entries, first_entries, liftable, huge } = known;
    if liftable > 0 && u128::from(huge) * 100 >= u128::from(liftable) * 95 {
        let huge = human_bytes(huge);
        return (Verdict::Lifted, format!("Its code is on huge pages already: {huge}"));
    }
    let cannot = |why: String| (Verdict::CannotTell, format!("Cannot tell: {why}"));
    let seconds = heat.milliseconds as f64 / 1000.0;
    if heat.user_samples() < ENOUGH {
        let samples = thousands(heat.user_samples());
        return cannot(format!(
            "it has used too little CPU time in {seconds:.1} s ({samples} samples, of {ENOUGH} at least): \
             ask again while it has work to do"
        ));
    }
    let page = human_bytes(heat.page_size);
    let pages = |n: u64| format!("{} pages of {page} ({})", thousands(n), human_bytes(n * heat.page_size));
    let Some(entries) = entries else {
        return cannot(format!(
            "its code uses {}, and {cpu} does not say how many its TLBs hold",
            pages(heat.pages.estimate)
        ));
    };
    let held = thousands(entries);
    if heat.pages.low > entries {
        let in_objects: u64 = heat.objects.iter().map(|object| object.samples).sum();
        if in_objects < heat.user_samples() / 2 {
            return cannot(
                "most of its time is spent in code that is in no file, which is not lifted".into(),
            );
        }
        if liftable == 0 {
            return cannot(format!(
                "its code uses {}, more than the {held} that the TLB holds, but none of it can be lifted as it is",
                pages(heat.pages.estimate)
            ));
        }
        let in_use = pages(heat.pages.estimate);
        return (
            Verdict::Probably,
            format!("Probably: its code uses {in_use}, and the TLB of {cpu} holds {held}: measure it"),
        );
    }
    if heat.pages.high > entries {
        let [low, high] = [heat.pages.low, heat.pages.high].map(thousands);
        return cannot(format!(
            "its code uses {low} to {high} pages of {page}, and the TLB of {cpu} holds {held}: measure it"
        ));
    }
    if heat.sampled_threads < heat.threads || heat.lost_samples > 0 {
        return cannot(format!(
            "what was sampled of it uses {}, but not all of it was sampled",
            pages(heat.pages.estimate)
        ));
    }
    let in_use = pages(heat.pages.estimate);
    let first = first_entries.unwrap_or(0);
    if heat.pages.high > first {
        let little = format!(
            "Little to gain from huge code: it uses {in_use}. The TLB of {cpu} holds {held}, its first level {}: \
             measure it if a small gain counts",
            thousands(first)
        );
        return (Verdict::Little, little);
    }
    let nothing = format!(
        "Nothing to gain from huge code: it uses {in_use}, and the first TLB of {cpu} holds {}",
        thousands(first)
    );
    (Verdict::Nothing, nothing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heat::{ObjectHeat, PagesInUse};
    use proptest::prelude::*;

    const ZEN: Known =
        Known { cpu: "this CPU", entries: Some(512), first_entries: Some(64), liftable: 64 << 20, huge: 0 };

    fn heat(samples: u64, [seen, low, estimate, high]: [u64; 4]) -> Heat {
        let pages = PagesInUse { seen, estimate, low, high };
        let path = "/bin/o".to_string().into();
        Heat {
            milliseconds: 10_000,
            ended: false,
            threads: 3,
            sampled_threads: 3,
            samples,
            lost_samples: 0,
            period_ns: 1_000_000,
            sample_cost_ns: 2000,
            kernel_samples: None,
            jit_samples: 0,
            other_samples: 0,
            page_size: 4096,
            huge_page_size: 2 << 20,
            pages,
            objects: vec![ObjectHeat {
                path,
                samples,
                pages,
                huge_pages: 9,
                hot_huge_pages: 4,
                spans: vec![],
            }],
        }
    }

    #[test]
    fn issue_31_the_verdict_comes_first() {
        let php = heat(9000, [49, 49, 49, 54]);
        let (found, says) = verdict(&php, ZEN);
        assert_eq!(found, Verdict::Nothing);
        let want = "Nothing to gain from huge code: it uses 49 pages of 4 kB (196 kB), and the first TLB of this CPU holds 64";
        assert_eq!(says, want);
        let (found, says) = verdict(&heat(9000, [2284, 2900, 3165, 3480]), ZEN);
        assert_eq!(found, Verdict::Probably);
        assert!(says.starts_with("Probably: its code uses 3 165 pages of 4 kB (12.4 MB), "), "{says}");
    }

    /// Generated code that jumps at random through 397 pages gained 2 %: the second level costs cycles too.
    #[test]
    fn issue_31_5_what_the_first_level_does_not_hold_is_not_nothing() {
        for pages in [[150, 170, 189, 234], [60, 62, 63, 65], [380, 385, 392, 406]] {
            let (found, says) = verdict(&heat(9000, pages), ZEN);
            assert_eq!(found, Verdict::Little, "{says}");
        }
        let says = verdict(&heat(9000, [150, 170, 189, 234]), ZEN).1;
        let want = "Little to gain from huge code: it uses 189 pages of 4 kB (756 kB). The TLB of this CPU holds 512, its \
                    first level 64: measure it if a small gain counts";
        assert_eq!(says, want);
        let one_level = Known { entries: Some(128), first_entries: Some(128), ..ZEN };
        assert_eq!(verdict(&heat(9000, [99, 99, 100, 128]), one_level).0, Verdict::Nothing);
    }

    #[test]
    fn issue_34_1_it_names_the_cpu_that_it_is_about() {
        let other = Known { cpu: "Intel Skylake-SP", ..ZEN };
        for pages in [[2284, 2900, 3165, 3480], [49, 49, 49, 54], [389, 391, 398, 420], [389, 391, 398, 513]]
        {
            let says = verdict(&heat(9000, pages), other).1;
            assert!(says.contains(" of Intel Skylake-SP holds ") && !says.contains("this CPU"), "{says}");
        }
        assert!(
            verdict(&heat(9000, [49; 4]), Known { entries: None, ..other })
                .1
                .contains("Intel Skylake-SP does not say")
        );
    }

    #[test]
    fn issue_31_what_is_not_certain_is_not_said() {
        let cannot = |heat: &Heat, known: Known, why: &str| {
            let (found, says) = verdict(heat, known);
            assert_eq!(found, Verdict::CannotTell, "{says}");
            assert!(says.starts_with("Cannot tell: ") && says.contains(why), "{says}");
        };
        let small = heat(9000, [49, 49, 49, 54]);
        cannot(&small, Known { entries: None, ..ZEN }, "does not say");
        cannot(&heat(999, [49, 49, 49, 54]), ZEN, "too little CPU time");
        cannot(&heat(9000, [389, 391, 398, 513]), ZEN, "391 to 513 pages");
        cannot(&Heat { sampled_threads: 2, ..small.clone() }, ZEN, "not all of it was sampled");
        cannot(&Heat { lost_samples: 1, ..small.clone() }, ZEN, "not all of it was sampled");
        // Samples in the kernel say nothing of the process's own code.
        cannot(&Heat { kernel_samples: Some(8500), ..small.clone() }, ZEN, "500 samples");
        let large = heat(9000, [2284, 2900, 3165, 3480]);
        cannot(&large, Known { liftable: 0, ..ZEN }, "none of it can be lifted");
        cannot(&Heat { jit_samples: 9000, objects: vec![], ..large.clone() }, ZEN, "in no file");
        for (liftable, huge, lifted) in
            [(64 << 20, 64 << 20, true), (64, 61, true), (64, 60, false), (64, 0, false)]
        {
            let found = verdict(&large, Known { liftable, huge, ..ZEN }).0;
            assert_eq!(found == Verdict::Lifted, lifted, "{huge} of {liftable}");
        }
    }

    proptest! {
        /// "Nothing" needs every page in the interval to fit, and enough samples of all threads.
        #[test]
        fn issue_31_nothing_is_said_only_where_it_is_certain(
            samples in 0u64..5000, mut pages in prop::array::uniform4(0u64..1000), entries in prop::option::of(0u64..1000),
            first in 0u64..1000,
            liftable in 0u64..9, huge in 0u64..9, sampled in 1u64..4,
        ) {
            pages.sort_unstable();
            let heat = Heat { sampled_threads: sampled, ..heat(samples, pages) };
            let first_entries = entries.map(|entries| entries.min(first));
            let (found, says) = verdict(&heat, Known { cpu: "this CPU", entries, first_entries, liftable, huge });
            prop_assert!(!says.contains('\n') && !says.contains('%'));
            if found == Verdict::Nothing {
                prop_assert!(samples >= ENOUGH && sampled == 3 && first_entries.is_some_and(|first| pages[3] <= first));
            }
            if found == Verdict::Probably {
                prop_assert!(samples >= ENOUGH && liftable > 0 && entries.is_some_and(|entries| pages[1] > entries));
            }
        }
    }
}
