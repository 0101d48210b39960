<?php
// SPDX-License-Identifier: Apache-2.0
// Calls thousands of functions of another file at random.

function work(int $functions, int $calls): int
{
    $sum = 0;
    $random = 1;
    for ($i = 0; $i < $calls; $i++) {
        $random = ($random * 1103515245 + 12345) & 0x7fffffff;
        $f = 'f' . (($random >> 8) % $functions);
        $sum = ($sum + $f($random & 1023)) & 0xffffff;
    }
    return $sum;
}

[, $path, $functions, $calls] = $argv;
require $path;
// Each function is called about 100 times, and its loop runs more often: then it is compiled.
$sum = work((int) $functions, 100 * (int) $functions);
echo "ready\n";
fgets(STDIN);
echo $sum, ' ', work((int) $functions, (int) $calls), "\n";
fgets(STDIN);
