// SPDX-License-Identifier: Apache-2.0
// Loads an addon, and prints what it offers: use.js FILE
const file = process.argv[2];
try {
  const loaded = require(file);
  console.log(typeof loaded, Object.keys(loaded).sort().map((key) => key + ':' + typeof loaded[key]));
} catch (error) {
  console.log(String(error.message).split('\n')[0]);
}
process.exit(0);
