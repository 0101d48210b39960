<?php
// SPDX-License-Identifier: Apache-2.0
// Answers each request with a digest of a list that it makes, sorts, prints and parses.
$list = [];
for ($i = 0; $i < 2000; $i++) {
    $list[] = ['id' => $i * 7919 % 1009, 'name' => "name $i", 'tags' => [$i, $i * 2]];
}
usort($list, fn($a, $b) => $a['id'] <=> $b['id'] ?: $a['tags'] <=> $b['tags']);
$text = preg_replace('/name (\d+)/', 'n$1', json_encode(json_decode(json_encode($list), true)));
echo hash('sha256', serialize($text)), "\n";
