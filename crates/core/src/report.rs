// SPDX-License-Identifier: Apache-2.0
//! What a lift brought, as data, as a table and as JSON.
