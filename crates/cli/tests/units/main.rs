// SPDX-License-Identifier: Apache-2.0
//! Tests of `hugelift wrap`, and of hugelift's own units: with the files of an image, and under a systemd that is the first
//! process of its own namespaces. And of `hugelift run` under the default seccomp profiles of containers, and with real
//! containers.

#[path = "../common/mod.rs"]
mod common;

mod boot;
mod containers;
mod files;
mod profiles;
mod servers;
mod service;
mod table;
