// SPDX-License-Identifier: Apache-2.0
//! Acts at each fault point of a command that is built with them (`HUGELIFT_TEST_MOMENTS`).

use super::{Cmd, Outcome};
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Runs a command to its end, and calls `act` with the number of each fault point that it reaches. It goes on when `act`
/// has returned. Returns what the command did, and how many points it has reached.
pub fn at_moments(cmd: &Cmd, act: impl FnMut(u64) + Send) -> (Outcome, u64) {
    with_moments(act, |socket| cmd.clone().env("HUGELIFT_TEST_MOMENTS", socket).bare())
}

/// Calls `act` as [`at_moments`] does for each command that `run` gives the socket. Returns what `run` returns, and how
/// many points were reached.
pub fn with_moments<T>(act: impl FnMut(u64) + Send, run: impl FnOnce(&Path) -> T) -> (T, u64) {
    let dir = tempfile::TempDir::new().expect("a folder for the socket");
    let socket = dir.path().join("moments");
    let listener = UnixListener::bind(&socket).expect("a socket");
    let (act, is_over, reached) = (Mutex::new(act), AtomicBool::new(false), AtomicU64::new(0));
    let serve = |mut helper: UnixStream| {
        let mut number = [0; 8];
        while helper.read_exact(&mut number).is_ok() {
            reached.fetch_add(1, Ordering::Relaxed);
            (act.lock().expect("no act has failed"))(u64::from_ne_bytes(number));
            if helper.write_all(&[0]).is_err() {
                break;
            }
        }
    };
    let came = std::thread::scope(|scope| {
        scope.spawn(|| {
            // Each thread of the command has a connection of its own.
            for helper in listener.incoming() {
                let helper = helper.expect("a connection");
                if is_over.load(Ordering::Acquire) {
                    return;
                }
                scope.spawn(|| serve(helper));
            }
        });
        let _over = Over { is_over: &is_over, socket: &socket };
        run(&socket)
    });
    (came, reached.into_inner())
}

/// Ends the thread that waits for connections, also if the command's test has failed.
struct Over<'a> {
    is_over: &'a AtomicBool,
    socket: &'a Path,
}

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        // If it cannot be reached it has ended.
        let _ = UnixStream::connect(self.socket);
    }
}
