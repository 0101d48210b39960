// SPDX-License-Identifier: Apache-2.0
//! What is known about the container of a process: its image, its labels, and its namespace in Kubernetes.
//!
//! All of this is what the container runtime says, and the file of pods of the administrator. The program has no part in it:
//! it chooses neither its control group nor these files.
//!
//! | module | holds |
//! |---|---|
//! | [`group`] | the container and the pod of a control group |
//! | [`oci`] | `config.json` of containerd, Podman and CRI-O |
//! | [`storage`] | the store of Podman and CRI-O |
//! | [`docker`] | `config.v2.json` of Docker |
//! | [`pods`] | a list of pods of Kubernetes |
//! | [`described`] | what all of these make known |

pub mod described;
pub mod docker;
pub mod group;
pub mod oci;
pub mod pods;
pub mod storage;
