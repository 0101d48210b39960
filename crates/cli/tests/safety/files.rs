// SPDX-License-Identifier: Apache-2.0
//! hugelift executes, opens and renames nothing that another user can change.
