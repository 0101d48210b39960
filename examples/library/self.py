# SPDX-License-Identifier: Apache-2.0
"""A program that lifts the interpreter that runs it: PYTHONPATH=.../python python3 self.py"""
import hugelift

with hugelift.lift(parts=["text", "rodata"], backing="thp") as report:
    print(report.summary)
    print(report.huge_bytes("text"), "bytes of text on huge pages")
    assert report.details["version"] == 1
try:
    hugelift.lift(parts=["text", "data"])
except hugelift.Error as error:
    print("refused:", error)
