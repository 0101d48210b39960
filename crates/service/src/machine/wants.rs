// SPDX-License-Identifier: Apache-2.0
//! What a lifter is to do, as the words of its command line. Processes of which the same is wanted share a lifter.

use hugelift_core::service::acts::{Act, Acts};

/// CPU time for collapsing memory in the life of a lifter, in seconds: thirty years. What each process has used bounds it, and a
/// service may live for months.
const CPU: &str = "1000000000";

/// A process may have this part of all memory for copies, unless its rule says otherwise: an eighth.
const SHARE: u64 = 8;

/// All processes of an ordinary user whom no rule names may have this part together: a quarter.
pub(super) const SHARE_OF_USER: u64 = 4;

/// What is wanted of processes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Wants {
    code: bool,
    memory: bool,
    shm: bool,
    /// Whether each NUMA node has its own copies of code.
    per_node: bool,
    /// Bytes of copies that one process may have.
    budget: u64,
    /// Bytes that all may have.
    all: u64,
    /// The ordinary user whose processes alone they are.
    user: Option<u32>,
}

impl Wants {
    /// Returns what these acts want of a process while it runs; `None` if they want nothing. `all` bounds the memory that is
    /// added in all processes.
    pub fn new(acts: Acts, budget: Option<u64>, all: u64) -> Option<Wants> {
        let [code, memory, shm] = [Act::Code, Act::Memory, Act::Shm].map(|act| acts.allow(act));
        let budget = budget.unwrap_or(all / SHARE).min(all);
        (code || memory || shm).then_some(Wants {
            code,
            memory,
            shm,
            per_node: false,
            budget,
            all,
            user: None,
        })
    }

    /// Returns the same with the copies of code on the node that is nearest to each process, where there are several.
    #[must_use]
    pub fn per_node(self, wanted: bool) -> Wants {
        Wants { per_node: wanted && self.code, ..self }
    }

    /// Returns the same for the processes of one ordinary user, who may not have all of the memory.
    #[must_use]
    pub fn of_user(self, user: Option<u32>) -> Wants {
        let all = if user.is_some() { self.all / SHARE_OF_USER } else { self.all };
        Wants { budget: self.budget.min(all), all, user, ..self }
    }

    /// Returns whether they are of the processes of one ordinary user.
    pub fn is_of_user(&self) -> bool {
        self.user.is_some()
    }

    /// Returns the words of the command line after `hugelift`.
    pub fn words(&self) -> Vec<String> {
        let parts = [(self.code, "text,rodata"), (self.memory, "bss,heap,anon"), (self.shm, "shm")];
        let parts: Vec<&str> =
            parts.into_iter().filter(|(wanted, _)| *wanted).map(|(_, part)| part).collect();
        let words =
            ["attach", "--watch", "--stdin", "--json", "--parts", &parts.join(","), "--cpu-budget", CPU];
        let mut words: Vec<String> = words.into_iter().map(String::from).collect();
        words.extend(["--add".into(), self.all.to_string()]);
        if self.per_node {
            words.extend(["--numa", "each"].map(String::from));
        }
        if self.code {
            words.extend([
                "--budget".into(),
                self.budget.to_string(),
                "--total".into(),
                self.all.to_string(),
            ]);
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_33_2_a_lifter_does_what_the_policy_says_and_no_more() {
        let of = |acts: &[Act], budget| Wants::new(acts.iter().copied().collect(), budget, 1 << 30);
        assert_eq!(of(&[], None), None);
        assert_eq!(of(&[Act::Pagecache], None), None);
        let words = of(&[Act::Pagecache, Act::Code], Some(64 << 20)).expect("code").words().join(" ");
        let common = "attach --watch --stdin --json --parts";
        assert_eq!(
            words,
            format!(
                "{common} text,rodata --cpu-budget {CPU} --add 1073741824 --budget 67108864 --total 1073741824"
            )
        );
        let words = of(&[Act::Memory, Act::Shm], Some(1)).expect("memory").words().join(" ");
        assert_eq!(words, format!("{common} bss,heap,anon,shm --cpu-budget {CPU} --add 1073741824"));
        // More than all may have is not allowed to one.
        let words = of(&[Act::Code], Some(2 << 30)).expect("code").words().join(" ");
        assert!(words.ends_with("--budget 1073741824 --total 1073741824"), "{words}");
        let words = of(&[Act::Code], None).expect("code").per_node(true).words().join(" ");
        assert!(words.contains(" --numa each "), "{words}");
        let words = of(&[Act::Memory], None).expect("memory").per_node(true).words().join(" ");
        assert!(!words.contains("--numa"), "{words}");
        let words = of(&[Act::Code], None).expect("code").words().join(" ");
        assert!(words.ends_with("--budget 134217728 --total 1073741824"), "{words}");
    }
    #[test]
    fn issue_33_one_user_does_not_have_all_of_the_memory() {
        let all =
            Wants::new([Act::Code, Act::Memory].into_iter().collect(), Some(1 << 30), 1 << 30).expect("code");
        assert_eq!(all.of_user(None), all);
        let [one, two] = [1000, 1001].map(|user| all.of_user(Some(user)));
        assert!(one != two && one.is_of_user() && !all.is_of_user());
        let words = one.words().join(" ");
        assert!(words.contains(" --add 268435456 "), "{words}");
        assert!(words.ends_with(" --budget 268435456 --total 268435456"), "{words}");
    }
}
