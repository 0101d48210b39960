-- SPDX-License-Identifier: Apache-2.0
-- Calls thousands of functions at random. Each has a loop, so that it gets a trace of its own.
local functions, calls = tonumber(arg[1]), tonumber(arg[2])

-- Without branches: each way through them would become a trace.
local STEP = "s = band(bxor(s * %d, rshift(s, %d)) + x, 0xffffff)"
local LOOP = "local band, bxor, rshift = ... \
return function(x) local s = %d; for i = 1, 4 do %s; x = x + i end; return s end"
local all = {}
for n = 1, functions do
  local steps = {}
  for k = 1, 48 do
    steps[k] = STEP:format(2 * n + k, k % 7 + 3)
  end
  all[n] = assert(loadstring(LOOP:format(n, table.concat(steps, "; "))))(bit.band, bit.bxor, bit.rshift)
end

local function work(count)
  local sum, random = 0, 1
  for _ = 1, count do
    random = (random * 48271) % 2147483647
    sum = (sum + all[random % functions + 1](random % 1024)) % 16777216
  end
  return sum
end
-- A trace of this loop would hold one of the functions, and leave it for all others one after another.
jit.off(work)

local sum = work(300 * functions)
print("ready")
io.stdout:flush()
io.read()
print(sum .. " " .. work(calls))
io.stdout:flush()
io.read()
