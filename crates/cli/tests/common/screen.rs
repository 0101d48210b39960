// SPDX-License-Identifier: Apache-2.0
//! A full-screen program on its own terminal, and what the terminal shows.

use super::run::{End, PATIENCE, wait};
use nix::pty::{OpenptyResult, Winsize, openpty};
use nix::sys::termios::{Termios, tcgetattr};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// A program with a terminal that it controls. Killed when dropped.
pub struct Screen {
    child: Child,
    keys: File,
    slave: File,
    before: Termios,
    seen: Arc<Mutex<vt100::Parser>>,
}

impl Screen {
    /// Starts the command in a session of its own, on a terminal with this number of rows and
    /// columns.
    pub fn start(command: &[&str], rows: u16, columns: u16) -> Screen {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let OpenptyResult { master, slave } = openpty(&size, None).expect("a pseudo-terminal");
        let slave = File::from(slave);
        let before = tcgetattr(slave.as_fd()).expect("the terminal's settings");
        let stream = || Stdio::from(slave.try_clone().expect("a file"));
        let child = Command::new("setsid")
            .arg("--ctty")
            .args(command)
            .env("TERM", "xterm-256color")
            .stdin(stream())
            .stdout(stream())
            .stderr(stream())
            .spawn()
            .expect("setsid runs");
        let keys = File::from(master);
        let mut output = keys.try_clone().expect("a file");
        let seen = Arc::new(Mutex::new(vt100::Parser::new(rows, columns, 0)));
        let parser = Arc::clone(&seen);
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            // The read ends with EIO when no process has the other side open any more.
            while let Ok(n) = output.read(&mut chunk) {
                parser.lock().expect("no panic").process(&chunk[..n]);
            }
        });
        Screen { child, keys, slave, before, seen }
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Types these keys.
    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    /// Sets a new size of the terminal. The kernel notifies the program of it.
    pub fn resize(&mut self, rows: u16, columns: u16) {
        let status = Command::new("stty")
            .args(["rows", &rows.to_string(), "cols", &columns.to_string()])
            .stdin(Stdio::from(self.slave.try_clone().expect("a file")))
            .status();
        assert!(status.expect("stty runs").success());
        self.seen.lock().expect("no panic").screen_mut().set_size(rows, columns);
    }

    /// Returns what is on the screen now.
    pub fn text(&self) -> String {
        self.seen.lock().expect("no panic").screen().contents()
    }

    /// Waits until the screen is as wanted, and returns its text.
    pub fn until(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = self.text();
            if wanted(&text) {
                return text;
            }
            assert!(Instant::now() < deadline, "not seen on the screen: {what}\n{text}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// Returns whether anything on the screen has a colour.
    pub fn is_coloured(&self) -> bool {
        let seen = self.seen.lock().expect("no panic");
        let (screen, (rows, columns)) = (seen.screen(), seen.screen().size());
        let cells = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        cells
            .filter_map(|(row, column)| screen.cell(row, column))
            .any(|c| c.fgcolor() != vt100::Color::Default)
    }

    /// Returns whether the program uses the alternate screen.
    pub fn is_full(&self) -> bool {
        self.seen.lock().expect("no panic").screen().alternate_screen()
    }

    /// Waits for the end of the program, and checks that the terminal is as it was before:
    /// settings, screen, cursor.
    pub fn end(mut self) -> (End, String) {
        let end = wait(&mut self.child, Instant::now() + PATIENCE)
            .unwrap_or_else(|| panic!("the program does not end\n{}", self.text()));
        // Its last output may not have arrived yet.
        let cursor = || !self.seen.lock().expect("no panic").screen().hide_cursor();
        self.until("the first screen, with a cursor", |_| !self.is_full() && cursor());
        let after = tcgetattr(self.slave.as_fd()).expect("the terminal's settings");
        assert_eq!(after, self.before);
        (end, self.text())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
