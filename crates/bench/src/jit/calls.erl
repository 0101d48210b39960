%% SPDX-License-Identifier: Apache-2.0
%% Calls thousands of functions of another module at random.
-module(calls).
-export([main/1]).

main([Functions, Calls]) ->
    F = list_to_integer(Functions),
    Sum = work(list_to_integer(Calls) div 10, F, 1, 0),
    io:put_chars("ready\n"),
    io:get_line(""),
    io:format("~b ~b~n", [Sum, work(list_to_integer(Calls), F, 1, 0)]),
    io:get_line(""),
    halt(0).

work(0, _, _, Sum) -> Sum;
work(N, F, Random, Sum) ->
    Next = Random * 48271 rem 2147483647,
    work(N - 1, F, Next, (Sum + many:call(Next rem F, Next bsr 7)) band 16#ffffff).
