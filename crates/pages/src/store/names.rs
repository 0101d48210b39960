// SPDX-License-Identifier: Apache-2.0
//! The names of stores, and of the files in a store beside its entries and their records.

/// The variable that names another directory for the store of the calling user.
pub const VARIABLE: &str = "HUGELIFT_STORE";

/// The directory in which root keeps what all users may share; the mount point is its parent.
pub const MACHINE_WIDE: &str = "/run/hugelift/store";

/// Is locked while entries are made or removed.
pub(super) const LOCK: &str = "lock";

/// Holds the secret by which private entries are named.
pub(super) const KEY: &str = "key";

/// The suffix of a file that is being written.
pub(super) const NEW: &str = ".new";

/// The suffix of files in which earlier versions noted a start.
pub(super) const SEEN: &str = ".seen";
