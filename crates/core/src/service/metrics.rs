// SPDX-License-Identifier: Apache-2.0
//! Where the service says what it has done: the table `[metrics]`.

use crate::policy::check_length;
use crate::service::written::WrittenMetrics;
use crate::toml_text::{Wrong, checked};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// The longest path of a socket (unix(7): `sun_path` has 108 bytes, of which one ends the path).
const LONGEST_SOCKET: usize = 107;

/// Where the service offers its metrics; nowhere, unless the configuration says so.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Metrics {
    /// The absolute path of a Unix socket.
    pub socket: Option<PathBuf>,
    /// A TCP port.
    pub port: Option<u16>,
    /// The address of the port; 127.0.0.1 if none is given.
    pub address: Option<IpAddr>,
    /// The absolute path of a file for the textfile collector of Prometheus's node_exporter.
    pub textfile: Option<PathBuf>,
}

impl Metrics {
    /// Checks what is written.
    ///
    /// # Errors
    /// Returns the value that is wrong, and why.
    pub fn check(written: &WrittenMetrics) -> Result<Metrics, Wrong> {
        let port = checked("port", written.port.as_ref(), |port| port_of(*port))?;
        Ok(Metrics {
            socket: checked("socket", written.socket.as_ref(), |path| socket(path))?,
            port,
            address: checked("address", written.address.as_ref(), |text| address(text, port))?,
            textfile: checked("textfile", written.textfile.as_ref(), |path| file(path))?,
        })
    }

    /// Returns where to listen for TCP connections; `None` without a port.
    pub fn tcp(&self) -> Option<SocketAddr> {
        let address = self.address.unwrap_or(Ipv4Addr::LOCALHOST.into());
        Some(SocketAddr::new(address, self.port?))
    }
}

fn socket(path: &str) -> Result<PathBuf, String> {
    match path.len() {
        ..=LONGEST_SOCKET => file(path),
        bytes => {
            Err(format!("the path has {bytes} bytes; the path of a socket has at most {LONGEST_SOCKET}"))
        }
    }
}

fn file(path: &str) -> Result<PathBuf, String> {
    check_length(path)?;
    if !Path::new(path).has_root() {
        return Err(format!("'{path}' is not an absolute path"));
    }
    match path.ends_with(['/', '\0']) || path.contains('\0') || Path::new(path).file_name().is_none() {
        true => Err(format!("'{path}' is not the path of a file")),
        false => Ok(path.into()),
    }
}

fn address(text: &str, port: Option<u16>) -> Result<IpAddr, String> {
    check_length(text)?;
    port.ok_or("there is no port")?;
    text.parse().map_err(|_| format!("'{text}' is not an IP address"))
}

fn port_of(number: i64) -> Result<u16, String> {
    let port = u16::try_from(number).ok().filter(|port| *port != 0);
    port.ok_or_else(|| format!("{number} is not a port, which is from 1 to 65535"))
}
