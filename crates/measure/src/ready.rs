// SPDX-License-Identifier: Apache-2.0
//! When a server is ready: a port or socket that takes connections, or a line that it prints.

use hugelift_core::printable::Escape;
use regex::Regex;
use std::fmt;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The sign that a server is ready.
#[derive(Clone, Debug)]
pub enum Ready {
    /// `HOST:PORT` takes connections.
    Port(String),
    /// A unix socket takes connections.
    Socket(PathBuf),
    /// The server's output has a line that matches.
    Line(Regex),
}

/// A number is a port of this machine, `HOST:PORT` a port of another one; what begins with `/`, `./`
/// or `../` is a socket; everything else is a regular expression.
impl FromStr for Ready {
    type Err = String;

    fn from_str(text: &str) -> Result<Ready, String> {
        if text.is_empty() {
            return Err("needs a port, HOST:PORT, the path of a socket, or a regular expression".into());
        }
        if text.bytes().all(|b| b.is_ascii_digit()) {
            let port: u16 = text.parse().map_err(|_| format!("{text} is not a port (1 to 65535)"))?;
            return Ok(Ready::Port(format!("127.0.0.1:{port}")));
        }
        if let Some((host, port)) = text.rsplit_once(':')
            && !host.is_empty()
            && host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-[]:".contains(&b))
            && port.parse::<u16>().is_ok()
        {
            return Ok(Ready::Port(text.into()));
        }
        if ["/", "./", "../"].iter().any(|start| text.starts_with(start)) {
            return Ok(Ready::Socket(text.into()));
        }
        Regex::new(text).map(Ready::Line).map_err(|e| e.to_string())
    }
}

impl fmt::Display for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ready::Port(address) => write!(f, "a connection to {address}"),
            Ready::Socket(path) => write!(f, "a connection to {}", path.escaped()),
            Ready::Line(regex) => write!(f, "a line that matches '{regex}'"),
        }
    }
}

impl Ready {
    /// Whether something takes connections there now; always false for a line of output.
    pub fn answers(&self) -> bool {
        const PATIENCE: Duration = Duration::from_millis(200);
        match self {
            Ready::Port(address) => address
                .to_socket_addrs()
                .is_ok_and(|mut all| all.any(|a| TcpStream::connect_timeout(&a, PATIENCE).is_ok())),
            Ready::Socket(path) => UnixStream::connect(path).is_ok(),
            Ready::Line(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_word_means() {
        let parse = |text: &str| text.parse::<Ready>().unwrap();
        assert!(matches!(parse("6379"), Ready::Port(a) if a == "127.0.0.1:6379"));
        assert!(matches!(parse("[::1]:80"), Ready::Port(a) if a == "[::1]:80"));
        assert!(matches!(parse("db.example:3306"), Ready::Port(_)));
        assert!(matches!(parse("/run/x.sock"), Ready::Socket(_)));
        assert!(matches!(parse("./x.sock"), Ready::Socket(_)));
        assert!(matches!(parse("ready for connections"), Ready::Line(_)));
        assert!(matches!(parse("port: [0-9]+"), Ready::Line(_)));
        for bad in ["", "70000", "("] {
            assert!(bad.parse::<Ready>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_listening_socket_answers() {
        // A program that another test starts would have the socket open until its execve(2).
        let _alone = crate::child::alone();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let ready: Ready = listener.local_addr().unwrap().port().to_string().parse().unwrap();
        assert!(ready.answers());
        drop(listener);
        assert!(!ready.answers());
    }

    proptest::proptest! {
        #[test]
        fn no_word_makes_it_panic(text in ".{0,40}") {
            let _ = text.parse::<Ready>();
        }
    }
}
