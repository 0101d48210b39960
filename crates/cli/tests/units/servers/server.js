// SPDX-License-Identifier: Apache-2.0
// Answers each request with a digest of a list that it makes, sorts, prints and parses.
const http = require('http');
const crypto = require('crypto');

function work() {
  const list = [];
  for (let i = 0; i < 400; i++) list.push({ id: (i * 7919) % 1009, name: 'name ' + i, tags: [i, i * 2] });
  list.sort((a, b) => a.id - b.id);
  const text = JSON.stringify(JSON.parse(JSON.stringify(list))).replace(/name (\d+)/g, 'n$1');
  return crypto.createHash('sha256').update(text).digest('hex') + '\n';
}

http.createServer((request, response) => response.end(work())).listen(8001, '127.0.0.1');
