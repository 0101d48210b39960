// SPDX-License-Identifier: Apache-2.0
//! As much of HTTP/1.1 (RFC 9112) as Prometheus and curl need: one request for each connection, of which only the first
//! line matters.
//!
//! Nothing of the request is in the answer.

use crate::metrics::series::CONTENT_TYPE;

/// Bytes of a request at most, its last empty line included.
pub const MAX_REQUEST: usize = 8 << 10;

/// How a request is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The metrics.
    Metrics,
    /// One line that names the path of the metrics.
    Index,
    /// The request is no HTTP.
    Malformed,
    /// There is nothing at this path.
    NotFound,
    /// The method is not GET. An answer to HEAD has no body.
    MethodNotAllowed {
        /// The method is HEAD.
        is_head: bool,
    },
    /// The request is longer than [`MAX_REQUEST`].
    TooLong,
    /// There are no metrics yet.
    NotReady,
    /// The version of HTTP is another.
    OtherVersion,
}

impl Reply {
    /// Returns the reply to the bytes that have arrived; `None` if the request goes on.
    pub fn to(bytes: &[u8]) -> Option<Reply> {
        let limited = &bytes[..bytes.len().min(MAX_REQUEST)];
        if !has_end(limited) {
            return (bytes.len() > MAX_REQUEST).then_some(Reply::TooLong);
        }
        let line = limited.split(|byte| *byte == b'\n').next().unwrap_or_default();
        Some(Reply::to_line(line.strip_suffix(b"\r").unwrap_or(line)))
    }

    /// Returns the reply to a request line, as "GET /metrics HTTP/1.1".
    fn to_line(line: &[u8]) -> Reply {
        let words: Vec<&[u8]> = line.splitn(4, |byte| *byte == b' ').collect();
        let &[method, target, version] = &words[..] else { return Reply::Malformed };
        match version.strip_prefix(b"HTTP/") {
            None => return Reply::Malformed,
            Some(number) if !number.starts_with(b"1.") => return Reply::OtherVersion,
            Some(_) => {}
        }
        if method.is_empty() || !method.iter().all(u8::is_ascii_alphabetic) || !target.starts_with(b"/") {
            return Reply::Malformed;
        }
        if method != b"GET" {
            return Reply::MethodNotAllowed { is_head: method == b"HEAD" };
        }
        match target.split(|byte| *byte == b'?').next() {
            Some(b"/metrics") => Reply::Metrics,
            Some(b"/") => Reply::Index,
            _ => Reply::NotFound,
        }
    }

    fn status(self) -> &'static str {
        match self {
            Reply::Metrics | Reply::Index => "200 OK",
            Reply::Malformed => "400 Bad Request",
            Reply::NotFound => "404 Not Found",
            Reply::MethodNotAllowed { .. } => "405 Method Not Allowed",
            Reply::TooLong => "431 Request Header Fields Too Large",
            Reply::NotReady => "503 Service Unavailable",
            Reply::OtherVersion => "505 HTTP Version Not Supported",
        }
    }

    /// Returns the line that is the body of every answer but that with the metrics.
    pub fn line(self) -> &'static str {
        match self {
            Reply::Metrics => "",
            Reply::Index => "This is the hugelift service. Its metrics are at /metrics\n",
            Reply::Malformed => "This is not an HTTP request.\n",
            Reply::NotFound => "There is nothing here. The metrics are at /metrics\n",
            Reply::MethodNotAllowed { is_head: true } => "",
            Reply::MethodNotAllowed { is_head: false } => "Only GET is possible here.\n",
            Reply::TooLong => "The request is too long.\n",
            Reply::NotReady => "The service has no figures yet. Try again.\n",
            Reply::OtherVersion => "Only HTTP/1.1 is possible here.\n",
        }
    }

    /// Returns the head of the answer whose body has so many bytes.
    pub fn head(self, body_bytes: usize) -> Vec<u8> {
        let status = self.status();
        let content_type = match self {
            Reply::Metrics => CONTENT_TYPE,
            _ => "text/plain; charset=utf-8",
        };
        let allow = match self {
            Reply::MethodNotAllowed { .. } => "Allow: GET\r\n",
            _ => "",
        };
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {body_bytes}\r\n{allow}\
             X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
        )
        .into_bytes()
    }
}

/// Returns whether an empty line ends the request. Lines may end without a carriage return (RFC 9112, section 2.2).
fn has_end(bytes: &[u8]) -> bool {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    // What follows the last line feed is no whole line.
    lines.next_back();
    lines.any(|line| line.is_empty() || line == b"\r")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(request: &str) -> Option<Reply> {
        Reply::to(request.as_bytes())
    }

    #[test]
    fn issue_33_paths_and_methods() {
        let line = |line: &str| to(&format!("{line}\r\nHost: localhost\r\n\r\n"));
        for (request, reply) in [
            ("GET /metrics HTTP/1.1", Reply::Metrics),
            ("GET /metrics?name[]=a HTTP/1.0", Reply::Metrics),
            ("GET / HTTP/1.1", Reply::Index),
            ("GET /metrics/ HTTP/1.1", Reply::NotFound),
            ("GET /../etc/passwd HTTP/1.1", Reply::NotFound),
            ("POST /metrics HTTP/1.1", Reply::MethodNotAllowed { is_head: false }),
            ("HEAD /metrics HTTP/1.1", Reply::MethodNotAllowed { is_head: true }),
            ("GET /metrics HTTP/2.0", Reply::OtherVersion),
            ("GET /metrics", Reply::Malformed),
            ("GET  /metrics HTTP/1.1", Reply::Malformed),
            ("GET metrics HTTP/1.1", Reply::Malformed),
            ("\u{16}\u{3}\u{1}", Reply::Malformed),
            ("", Reply::Malformed),
        ] {
            assert_eq!(line(request), Some(reply), "{request:?}");
        }
    }

    #[test]
    fn issue_33_a_request_ends_with_an_empty_line() {
        let whole = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        for end in 0..whole.len() {
            assert_eq!(to(&whole[..end]), None, "{end}");
        }
        assert_eq!(to(whole), Some(Reply::Index));
        assert_eq!(to("GET / HTTP/1.1\n\n"), Some(Reply::Index));
    }

    #[test]
    fn issue_33_a_request_may_have_8_kb() {
        let request = |bytes: usize| {
            let frame = "GET / HTTP/1.1\r\nA: \r\n\r\n";
            frame.replace("A: ", &format!("A: {}", "a".repeat(bytes - frame.len())))
        };
        assert_eq!(to(&request(MAX_REQUEST)), Some(Reply::Index));
        assert_eq!(to(&request(MAX_REQUEST)[..MAX_REQUEST - 1]), None);
        assert_eq!(to(&request(MAX_REQUEST + 1)), Some(Reply::TooLong));
        assert_eq!(to(&"a".repeat(MAX_REQUEST)), None);
        assert_eq!(to(&"a".repeat(MAX_REQUEST + 1)), Some(Reply::TooLong));
    }

    #[test]
    fn issue_33_the_head_tells_what_follows() {
        let head = String::from_utf8(Reply::Metrics.head(7)).unwrap();
        assert!(
            head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text; version=1.0.0;")
        );
        assert!(head.contains("\r\nContent-Length: 7\r\n"));
        assert!(head.ends_with("\r\nConnection: close\r\n\r\n"));
        let head = String::from_utf8(Reply::MethodNotAllowed { is_head: true }.head(0)).unwrap();
        assert!(head.contains("\r\nAllow: GET\r\n"));
    }
}
