# SPDX-License-Identifier: Apache-2.0
"""Puts the code and the read-only data of this process on huge pages, by libhugelift.

    import hugelift
    report = hugelift.lift()
    print(report.summary)

The library is looked for as the dynamic loader does; HUGELIFT_LIBRARY names another file.
"""

import ctypes
import json
import os

_PARTS = {"text": 1, "rodata": 2, "data": 4, "bss": 8, "heap": 16}
_BACKINGS = {"auto": 0, "pagecache": 1, "shared": 2, "thp": 3, "hugetlb": 4}
_ONE_THREAD = 1
_LOG = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)


class _Options(ctypes.Structure):
    """struct hugelift_options"""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("parts", ctypes.c_uint32),
        ("backing", ctypes.c_uint32),
        ("page_size", ctypes.c_uint64),
        ("spare", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("log_level", ctypes.c_int),
        ("log", _LOG),
        ("log_context", ctypes.c_void_p),
        ("objects", ctypes.POINTER(ctypes.c_char_p)),
        ("excluded", ctypes.POINTER(ctypes.c_char_p)),
    ]


def _load():
    library = ctypes.CDLL(os.environ.get("HUGELIFT_LIBRARY", "libhugelift.so.0"))
    pointer = ctypes.c_void_p
    signatures = {
        "hugelift_version": (ctypes.c_char_p, []),
        "hugelift_strerror": (ctypes.c_char_p, [ctypes.c_int]),
        "hugelift_options_init": (ctypes.c_int, [pointer, ctypes.c_size_t]),
        "hugelift_lift_self": (ctypes.c_int, [pointer, pointer]),
        "hugelift_restore_self": (ctypes.c_int, [pointer, pointer]),
        "hugelift_report_huge_bytes": (ctypes.c_uint64, [pointer, ctypes.c_uint32]),
        "hugelift_report_liftable_bytes": (ctypes.c_uint64, [pointer, ctypes.c_uint32]),
        "hugelift_report_summary": (ctypes.c_char_p, [pointer]),
        "hugelift_report_json": (ctypes.c_char_p, [pointer]),
        "hugelift_report_free": (None, [pointer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


_library = _load()


class Error(Exception):
    """An error code of hugelift.h."""

    def __init__(self, code):
        super().__init__(_library.hugelift_strerror(code).decode())
        self.code = code


class Report:
    """What smaps shows after a call. As a context manager it restores the process at the end."""

    def __init__(self, handle):
        self._handle = handle

    def __del__(self):
        _library.hugelift_report_free(self._handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        restore()

    @property
    def summary(self):
        """One line of English."""
        return _library.hugelift_report_summary(self._handle).decode()

    @property
    def details(self):
        """All details, as `hugelift inspect --json` has them."""
        return json.loads(_library.hugelift_report_json(self._handle))

    def huge_bytes(self, *parts):
        """The bytes of these parts that huge pages map."""
        return _library.hugelift_report_huge_bytes(self._handle, _bits(parts))

    def liftable_bytes(self, *parts):
        """The bytes of these parts that huge pages could map."""
        return _library.hugelift_report_liftable_bytes(self._handle, _bits(parts))


def _bits(parts):
    return sum({_PARTS[part] for part in parts})


def _patterns(words):
    if not words:
        return None
    return (ctypes.c_char_p * (len(words) + 1))(*[word.encode() for word in words], None)


def _call(function, options):
    report = ctypes.c_void_p()
    code = function(ctypes.byref(options) if options else None, ctypes.byref(report))
    if code:
        raise Error(code)
    return Report(report)


def lift(parts=("text", "rodata"), backing="auto", objects=(), excluded=(), one_thread=False, log=None):
    """Lifts this process. `log(level, message)` receives lines. Raises Error."""
    options = _Options()
    _library.hugelift_options_init(ctypes.byref(options), ctypes.sizeof(options))
    options.parts, options.backing = _bits(parts), _BACKINGS[backing]
    options.flags = _ONE_THREAD if one_thread else 0
    options.objects, options.excluded = _patterns(objects), _patterns(excluded)
    if log:
        options.log = _LOG(lambda _context, level, message: log(level, message.decode()))
    return _call(_library.hugelift_lift_self, options)


def restore():
    """Gives this process the pages of its files back. Raises Error."""
    return _call(_library.hugelift_restore_self, None)


def version():
    """The version of the library."""
    return _library.hugelift_version().decode()
