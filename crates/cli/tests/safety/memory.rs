// SPDX-License-Identifier: Apache-2.0
//! A memory limit under which a program runs bare does not end the lifted program.
