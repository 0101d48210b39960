// SPDX-License-Identifier: Apache-2.0
//! A command that prints one number: what the user counts or measures of a running process.

use crate::child::Child;
use crate::interrupt;
use anyhow::{Context as _, Result, bail, ensure};
use hugelift_core::printable::Escape as _;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use serde::Serialize;
use std::io::Read;
use std::os::fd::AsFd;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// The longest time that a command may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// The most bytes that a number and the space around it may have. A pipe holds more without a reader.
const LONGEST: usize = 4096;
/// The most bytes of an output that a message shows.
const SHOWN: usize = 80;
/// The interval between two checks whether ctrl-C was pressed.
const POLL: Duration = Duration::from_millis(100);

/// A command line for a shell, with the option that gave it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Command {
    /// The option, for messages: `--metric`.
    pub option: &'static str,
    /// The command line.
    pub line: String,
}

impl Command {
    /// Runs the command by sh(1) and returns the number that it prints.
    ///
    /// # Errors
    /// It fails, takes longer than a minute, or prints something else than one number. Ctrl-C ends it.
    pub fn number(&self) -> Result<f64> {
        self.number_within(PATIENCE).with_context(|| format!("{} '{}'", self.option, self.line.escaped()))
    }

    fn number_within(&self, patience: Duration) -> Result<f64> {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &self.line]).stdin(Stdio::null());
        let mut child = Child::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()))?;
        let (stdout, stderr) = (child.streams().stdout.take(), child.streams().stderr.take());
        let deadline = Instant::now() + patience;
        while !child.wait_until(Instant::now() + POLL)? {
            interrupt::check()?;
            ensure!(
                Instant::now() < deadline,
                "did not end within {} s (or printed more than a pipe holds) and was killed",
                patience.as_secs()
            );
        }
        let (status, _) = child.finish()?;
        interrupt::check()?;
        let said = stderr.map_or(Ok(Vec::new()), available)?;
        if !status.success() {
            bail!("ended with {status}{}", first_line(&said));
        }
        parse(&stdout.map_or(Ok(Vec::new()), available)?)
    }
}

/// Returns what is in a pipe whose writer has ended, up to a little more than a number may have. What the
/// command has left in the background may hold the other end, so there may be no end of file.
fn available(mut pipe: impl Read + AsFd) -> Result<Vec<u8>> {
    let flags = fcntl(&pipe, FcntlArg::F_GETFL).context("fcntl")?;
    let flags = OFlag::from_bits_retain(flags) | OFlag::O_NONBLOCK;
    fcntl(&pipe, FcntlArg::F_SETFL(flags)).context("fcntl")?;
    let mut bytes = vec![0; LONGEST + 1];
    let mut length = 0;
    while length < bytes.len() {
        match pipe.read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(n) => length += n,
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => break,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e).context("read its output"),
        }
    }
    bytes.truncate(length);
    Ok(bytes)
}

/// Parses an output that has to be one finite number.
fn parse(output: &[u8]) -> Result<f64> {
    ensure!(output.len() <= LONGEST, "printed more than {LONGEST} bytes, not one number");
    let trimmed = output.trim_ascii();
    ensure!(!trimmed.is_empty(), "printed nothing, where one number is expected");
    let number = std::str::from_utf8(trimmed).ok().and_then(|text| text.parse::<f64>().ok());
    let number = number.filter(|number| number.is_finite());
    number.with_context(|| format!("printed '{}', which is not one number", shown(trimmed)))
}

/// Returns the first line of what a failed command wrote to stderr, with a colon in front.
fn first_line(said: &[u8]) -> String {
    match said.trim_ascii().split(|&byte| byte == b'\n').next() {
        None | Some([]) => String::new(),
        Some(line) => format!(": {}", shown(line)),
    }
}

/// Returns the first bytes of an output, for a message.
fn shown(bytes: &[u8]) -> String {
    match bytes.get(..SHOWN) {
        Some(start) if bytes.len() > SHOWN => format!("{}...", start.escaped()),
        _ => bytes.escaped().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(line: &str) -> Result<f64, String> {
        // Those that are not to end in time get less.
        let time = Duration::from_secs(match line {
            "sleep 30" => 2,
            "yes" => 5,
            _ => 60,
        });
        let command = Command { option: "--metric", line: line.into() };
        let number = command.number_within(time);
        number.map_err(|e| format!("{e:#}"))
    }

    #[test]
    fn one_number_is_read() {
        for (output, value) in [("7", 7.0), (" 1.5e3\n", 1500.0), ("-2\r\n", -2.0), ("+0.25\t", 0.25)] {
            assert_eq!(parse(output.as_bytes()).unwrap(), value, "{output:?}");
        }
    }

    #[test]
    fn anything_else_is_refused_in_one_line() {
        let huge = vec![b'9'; 4097];
        let long = [vec![b'x'; 4000], b"\n\x1b[2J".to_vec()].concat();
        let bad: [&[u8]; 11] = [
            b"",
            b" \n",
            b"1 2",
            b"1\n2",
            b"nan",
            b"inf",
            b"1e999",
            b"0x10",
            b"\xff\x00",
            b"1,000",
            b"\x1b[31m5",
        ];
        for output in bad.into_iter().chain([&huge[..], &long]) {
            let error = format!("{:#}", parse(output).unwrap_err());
            assert!(error.len() < 500 && !error.contains(['\n', '\x1b']), "{error:?}");
        }
    }

    #[test]
    fn commands_that_fail_say_why() {
        let _alone = crate::child::alone();
        assert_eq!(number("echo noise >&2; echo 5"), Ok(5.0));
        assert_eq!(number("sleep 30 & echo 6"), Ok(6.0), "what it leaves in the background is not awaited");
        let error = number("echo two words >&2; exit 3").unwrap_err();
        assert_eq!(error, "ended with exit status: 3: two words");
        let error = number("sleep 30").unwrap_err();
        assert!(error.contains("did not end within 2 s"), "{error}");
        let error = number("yes").unwrap_err();
        assert!(error.contains("more than a pipe holds"), "{error}");
        assert!(number("printf '%05000d' 1").unwrap_err().contains("more than 4096 bytes"));
    }
}
