// SPDX-License-Identifier: Apache-2.0
//! Advice is true of the object that it names, and following it changes something.
