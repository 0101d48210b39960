// SPDX-License-Identifier: Apache-2.0
//! A file of the service's configuration as it is written. Its text is checked elsewhere.
//!
//! ```toml
//! [limits]
//! memory = "2%"        # of the machine's, or a size: for the copies of all processes together
//! cpu = "0.2%"         # of one CPU: for what the service does by itself
//!
//! [metrics]            # each is optional
//! socket = "/run/hugelift/metrics.sock"
//! port = 9773          # on loopback alone
//! textfile = "/var/lib/prometheus/node-exporter/hugelift.prom"
//!
//! [verify]             # how rules with `verify = true` are verified
//! for = "1m"           # the length of an experiment
//! pause = "1h"         # between two experiments, of which there is one at a time
//! again = "30d"        # for so long a result holds
//!
//! [keep]               # files that are kept whether a program uses them or not
//! programs = ["clang++-19"]
//!
//! [[rule]]             # the first whose conditions hold takes a process
//! name = "databases"
//! unit = "mariadb.service"
//! cgroup = "/system.slice/*"      # * matches / too
//! user = ["mysql", "998"]         # by name or by number
//! program = "/usr/sbin/mariadbd"
//! image = "docker.io/library/mariadb:*"  # of its container, as the runtime names it
//! label = "app=mariadb*"          # of its container or pod: key=value
//! namespace = "shop"              # of its pod in Kubernetes
//! larger_than = "20M"             # bytes of mapped code
//! older_than = "10s"              # since the start of the process
//! do = ["pagecache", "code"]      # [] leaves it alone
//! budget = "64M"                  # of copies, for each process
//! verify = true                   # lifted only where an experiment has shown a gain
//! any_user = false                # without user: true takes the processes of ordinary users too
//! ```

use crate::keep;
use crate::service::acts::Act;
use serde::Deserialize;
use toml::Spanned;

pub use crate::service::patterns::Patterns;

/// A configuration file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Written {
    /// `[limits]`
    pub limits: Option<Spanned<WrittenLimits>>,
    /// `[metrics]`
    pub metrics: Option<Spanned<WrittenMetrics>>,
    /// `[verify]`
    pub verify: Option<Spanned<WrittenVerify>>,
    /// `[keep]`
    pub keep: Option<Spanned<keep::Written>>,
    /// `[[rule]]`
    #[serde(default, rename = "rule")]
    pub rules: Vec<Spanned<WrittenRule>>,
}

/// `[limits]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenLimits {
    /// A share of the machine's memory, or a size.
    pub memory: Option<Spanned<String>>,
    /// A share of one CPU.
    pub cpu: Option<Spanned<String>>,
}

/// `[metrics]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenMetrics {
    /// The path of a socket.
    pub socket: Option<Spanned<String>>,
    /// A TCP port.
    pub port: Option<Spanned<i64>>,
    /// The address of the port.
    pub address: Option<Spanned<String>>,
    /// The path of a file.
    pub textfile: Option<Spanned<String>>,
}

/// `[verify]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenVerify {
    /// A time.
    #[serde(rename = "for")]
    pub length: Option<Spanned<String>>,
    /// A time.
    pub pause: Option<Spanned<String>>,
    /// A time.
    pub again: Option<Spanned<String>>,
}

/// `[[rule]]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenRule {
    /// The name, which no other rule has.
    pub name: Option<Spanned<String>>,
    /// Units of the system's manager.
    pub unit: Option<Spanned<Patterns>>,
    /// Paths of control groups.
    pub cgroup: Option<Spanned<Patterns>>,
    /// Names or numbers of users.
    pub user: Option<Spanned<Patterns>>,
    /// Paths of executables.
    pub program: Option<Spanned<Patterns>>,
    /// Names of images.
    pub image: Option<Spanned<Patterns>>,
    /// Labels, each as `key=value`.
    pub label: Option<Spanned<Patterns>>,
    /// Namespaces of Kubernetes.
    pub namespace: Option<Spanned<Patterns>>,
    /// A size.
    pub larger_than: Option<Spanned<String>>,
    /// A time.
    pub older_than: Option<Spanned<String>>,
    /// What may be done.
    #[serde(rename = "do")]
    pub acts: Option<Vec<Act>>,
    /// A size.
    pub budget: Option<Spanned<String>>,
    /// Whether an experiment must have shown a gain.
    pub verify: Option<Spanned<bool>>,
    /// Whether each NUMA node has its own copies of code.
    pub per_node: Option<Spanned<bool>>,
    /// Whether processes of ordinary users are taken too.
    pub any_user: Option<Spanned<bool>>,
}

impl WrittenRule {
    /// Returns the bytes of all patterns.
    pub fn pattern_bytes(&self) -> usize {
        let of_process = [&self.unit, &self.cgroup, &self.user, &self.program];
        let of_container = [&self.image, &self.label, &self.namespace];
        of_process.into_iter().chain(of_container).flatten().map(|patterns| patterns.get_ref().bytes()).sum()
    }
}
