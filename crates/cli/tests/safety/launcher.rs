// SPDX-License-Identifier: Apache-2.0
//! A program starts wherever it starts without hugelift: system calls denied, endless waits.
