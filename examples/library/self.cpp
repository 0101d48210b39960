// SPDX-License-Identifier: Apache-2.0
// A program that is lifted for the time of a scope: c++ -std=c++17 self.cpp $(pkg-config --cflags --libs hugelift)
#include <hugelift.hpp>
#include <iostream>

int main()
{
    try {
        hugelift::options options;
        options.parts |= HUGELIFT_PART_BSS;
        hugelift::lifted lifted(options);
        std::cout << lifted.report().summary() << '\n';
        options.backing = 99;
        hugelift::lift_self(options);
    } catch (const hugelift::error &error) {
        std::cout << "code " << error.code() << ": " << error.what() << '\n';
    }
}
