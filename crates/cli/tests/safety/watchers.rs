// SPDX-License-Identifier: Apache-2.0
//! Unprivileged clients cannot stop hugelift keep from answering or ending.
