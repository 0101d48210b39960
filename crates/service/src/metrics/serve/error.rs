// SPDX-License-Identifier: Apache-2.0
//! Why the metrics are not served.

use thiserror::Error;

/// Why the server does not listen.
#[derive(Error, Debug)]
pub enum ServeError {
    /// Another file or process is there: the administrator must choose another place.
    #[error("{0}")]
    Taken(String),
    /// The socket cannot be made. The daemon can work without it.
    #[error("{0}")]
    Failed(String),
}
