// SPDX-License-Identifier: Apache-2.0
//! `/proc/loadavg` (proc_loadavg(5)): how many threads want a CPU now, and the id that was given last.

use crate::io::read::read_whole;
use std::path::Path;

/// The last two words of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoadAvg {
    /// Threads that run or wait for a CPU, the calling one included.
    pub running: u32,
    /// The newest process or thread.
    pub newest: u32,
}

impl LoadAvg {
    /// Reads the file; `None` if it cannot be read.
    pub fn read() -> Option<LoadAvg> {
        parse(std::str::from_utf8(&read_whole(Path::new("/proc/loadavg")).ok()?).ok()?)
    }
}

/// Parses a line such as `0.20 0.18 0.12 1/80 11206`.
fn parse(text: &str) -> Option<LoadAvg> {
    let mut words = text.split_whitespace().skip(3);
    let (running, _) = words.next()?.split_once('/')?;
    Some(LoadAvg { running: running.parse().ok()?, newest: words.next()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_parsed() {
        assert_eq!(parse("0.20 0.18 0.12 3/80 11206\n"), Some(LoadAvg { running: 3, newest: 11206 }));
        for text in ["", "0.20 0.18 0.12", "0.20 0.18 0.12 3 11206", "0.20 0.18 0.12 x/80 11206", "1 2 3 1/2"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn this_thread_runs() {
        let now = LoadAvg::read().unwrap();
        assert!(now.running >= 1 && now.newest > 0, "{now:?}");
    }
}
