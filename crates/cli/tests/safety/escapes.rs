// SPDX-License-Identifier: Apache-2.0
//! Bytes from outside reach a terminal only in escaped form.
