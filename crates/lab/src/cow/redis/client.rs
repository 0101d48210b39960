// SPDX-License-Identifier: Apache-2.0
//! A redis client with what the experiment needs. The protocol is RESP
//! (<https://redis.io/docs/latest/develop/reference/protocol-spec/>), over a unix socket.

use crate::clock::since_ns;
use anyhow::{Context as _, Result, bail};
use hugelift_core::printable::{Escape, text_to_parse};
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// The longest time that an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Size of a value in bytes.
pub const VALUE: usize = 1000;

/// How many commands are sent before their answers are read, while the server is filled.
const AHEAD: u64 = 200;

/// The longest answer that is accepted, in bytes.
const LONGEST: usize = 1 << 20;

/// A connection to the server.
pub struct Client {
    stream: BufReader<UnixStream>,
    /// Random bytes that values are cut from. They cannot be compressed.
    noise: Vec<u8>,
}

impl Client {
    /// Connects to the server.
    ///
    /// # Errors
    /// Those of connect(2).
    pub fn connect(socket: &Path) -> Result<Client> {
        let stream =
            UnixStream::connect(socket).with_context(|| format!("cannot connect to {}", socket.escaped()))?;
        stream.set_read_timeout(Some(PATIENCE)).context("SO_RCVTIMEO")?;
        stream.set_write_timeout(Some(PATIENCE)).context("SO_SNDTIMEO")?;
        let mut random = fastrand::Rng::with_seed(1);
        let noise = std::iter::repeat_with(|| random.u8(..)).take(64 << 10).collect();
        Ok(Client { stream: BufReader::new(stream), noise })
    }

    /// Sends a command and reads its answer.
    ///
    /// # Errors
    /// There is no answer, it is not RESP, or it is an error.
    pub fn ask(&mut self, words: &[&str]) -> Result<String> {
        let words: Vec<&[u8]> = words.iter().map(|w| w.as_bytes()).collect();
        self.send(&encode(&words))?;
        answer(&mut self.stream)
    }

    /// Returns the value of `name:` in a section of INFO.
    ///
    /// # Errors
    /// Those of [`Client::ask`], or the field is missing.
    pub fn info(&mut self, section: &str, name: &str) -> Result<u64> {
        let text = self.ask(&["INFO", section])?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let value = value.with_context(|| format!("INFO {section} has no {name}"))?;
        value.trim().parse().with_context(|| format!("INFO {section}: {name} is '{}'", value.trim()))
    }

    /// Sets the keys from 0 to `keys` - 1.
    ///
    /// # Errors
    /// Those of [`Client::ask`].
    pub fn fill(&mut self, keys: u64) -> Result<()> {
        let mut from = 0;
        while from < keys {
            let to = keys.min(from + AHEAD);
            let commands: Vec<u8> = (from..to).flat_map(|key| self.set(key)).collect();
            self.send(&commands)?;
            for _ in from..to {
                answer(&mut self.stream)?;
            }
            from = to;
        }
        Ok(())
    }

    /// Overwrites keys drawn at random from the first `keys`, `rate` times per second, until `end` returns
    /// `true`. `end` is called every 20 ms. Returns the latencies in nanoseconds, measured from the moment
    /// at which a command was due, so that the delay behind a slow command is counted too. Time that this
    /// process sleeps too long is not counted.
    ///
    /// # Errors
    /// Those of [`Client::ask`].
    pub fn load(
        &mut self,
        keys: u64,
        rate: u32,
        mut end: impl FnMut(&mut Client) -> Result<bool>,
    ) -> Result<Vec<u32>> {
        const BETWEEN_CHECKS: Duration = Duration::from_millis(20);
        let (began, every) = (Instant::now(), Duration::from_secs(1) / rate);
        let mut checked = began;
        let mut times = Vec::new();
        let mut due = began;
        loop {
            if checked.elapsed() >= BETWEEN_CHECKS {
                if end(self)? {
                    return Ok(times);
                }
                checked = Instant::now();
            }
            let wait = due.saturating_duration_since(Instant::now());
            let from = if wait.is_zero() {
                due
            } else {
                std::thread::sleep(wait);
                Instant::now()
            };
            let command = self.set(fastrand::u64(..keys));
            self.send(&command)?;
            answer(&mut self.stream)?;
            times.push(since_ns(from));
            due += every;
        }
    }

    fn set(&self, key: u64) -> Vec<u8> {
        let from = fastrand::usize(..self.noise.len() - VALUE);
        encode(&[b"SET", format!("key:{key:012}").as_bytes(), &self.noise[from..from + VALUE]])
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.get_mut().write_all(bytes).context("the redis server does not accept a command")
    }
}

fn encode(words: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend(format!("${}\r\n", word.len()).bytes());
        out.extend_from_slice(word);
        out.extend(b"\r\n");
    }
    out
}

/// Reads an answer: a simple string, an error, a number or a bulk string.
fn answer(from: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    from.by_ref().take(LONGEST as u64).read_line(&mut line).context("the redis server does not answer")?;
    let Some(line) = line.strip_suffix("\r\n") else { bail!("the redis server has closed the connection") };
    match line.split_at_checked(1) {
        Some(("+" | ":", text)) => Ok(text.to_string()),
        Some(("-", error)) => bail!("the redis server reports an error: {error}"),
        Some(("$", len)) => {
            let len = len.parse::<usize>().ok().filter(|len| *len <= LONGEST);
            let len =
                len.with_context(|| format!("the answer '{line}' of the redis server is not a length"))?;
            let mut text = vec![0; len + 2];
            from.read_exact(&mut text).context("the answer of the redis server ends too early")?;
            text.truncate(len);
            Ok(text_to_parse(&text).into_owned())
        }
        _ => bail!("the answer '{line}' of the redis server is not RESP"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn commands_and_answers() {
        assert_eq!(encode(&[b"GET", b"key"]), b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n");
        let of = |text: &str| answer(&mut text.as_bytes()).map_err(|e| format!("{e:#}"));
        assert_eq!(of("+OK\r\n"), Ok("OK".into()));
        assert_eq!(of(":12\r\n"), Ok("12".into()));
        assert_eq!(of("$5\r\nab\r\nc\r\n"), Ok("ab\r\nc".into()));
        assert_eq!(of("-ERR no\r\n"), Err("the redis server reports an error: ERR no".into()));
        for bad in ["", "+OK", "?\r\n", "\r\n", "$-1\r\n", "$99999999999\r\n", "$5\r\nab\r\n"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_answer_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = answer(&mut &bytes[..]);
        }
    }
}
