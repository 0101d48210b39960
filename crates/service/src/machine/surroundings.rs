// SPDX-License-Identifier: Apache-2.0
//! What is known of the machine beside its processes: the names of users, and the containers.

use super::users::Users;
use crate::containers::known::Containers;
use std::path::PathBuf;

/// What is known of the machine beside its processes.
#[derive(Debug)]
pub struct Surroundings {
    /// The names of users.
    pub users: Users,
    /// The containers.
    pub containers: Containers,
}

impl Surroundings {
    /// Reads them. `pods` is the path of the file of pods. Containers are read when a process is in them.
    pub fn read(pods: Option<PathBuf>) -> Surroundings {
        Surroundings { users: Users::read(), containers: Containers::new(pods) }
    }
}
