// SPDX-License-Identifier: Apache-2.0
//! A thread that repeats a step until it is told to end.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

/// The thread, which hands out a result at its end. Dropping it ends the thread.
#[derive(Debug)]
pub(super) struct Background<T> {
    /// Dropping it ends the thread.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<T>>,
}

impl<T: Send + 'static> Background<T> {
    /// Makes a step after each `interval`, and a last one when the end is asked for: so a short time has one, too. It ends
    /// before if a step returns `false`.
    ///
    /// # Errors
    /// There is no further thread.
    pub(super) fn start(
        name: &str,
        interval: Duration,
        mut result: T,
        mut step: impl FnMut(&mut T, bool) -> bool + Send + 'static,
    ) -> io::Result<Background<T>> {
        let (end, ended) = mpsc::channel::<()>();
        let work = move || {
            loop {
                let is_last = ended.recv_timeout(interval) == Err(RecvTimeoutError::Disconnected);
                if !step(&mut result, is_last) || is_last {
                    return result;
                }
            }
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(work)?;
        Ok(Background { end: Some(end), thread: Some(thread) })
    }

    /// Ends it, and returns its result; `None` if the thread has died.
    pub(super) fn finish(mut self) -> Option<T> {
        self.join()
    }
}

impl<T> Background<T> {
    fn join(&mut self) -> Option<T> {
        self.end = None;
        self.thread.take()?.join().ok()
    }
}

impl<T> Drop for Background<T> {
    fn drop(&mut self) {
        let _ = self.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issue_31_2_there_is_always_a_last_step() {
        let long = Duration::from_secs(3600);
        let count = |steps: &mut Vec<bool>, is_last| {
            steps.push(is_last);
            true
        };
        let background = Background::start("test", long, Vec::new(), count).expect("a thread");
        assert_eq!(background.finish(), Some(vec![true]));
        let three = |steps: &mut u32, _| {
            *steps += 1;
            *steps < 3
        };
        let background = Background::start("test", Duration::ZERO, 0, three).expect("a thread");
        std::thread::sleep(Duration::from_millis(50));
        assert!(background.finish().is_some_and(|steps| (1..=3).contains(&steps)));
        let background =
            Background::start("test", long, 0, |_, _| panic!("a step that dies")).expect("a thread");
        assert_eq!(background.finish(), None::<u32>);
    }
}
