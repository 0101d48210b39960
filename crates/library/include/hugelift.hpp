// SPDX-License-Identifier: Apache-2.0
// hugelift for C++17 and later: see hugelift.h for what each call does, and for thread and signal safety.
#ifndef HUGELIFT_HPP
#define HUGELIFT_HPP

#include <hugelift.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace hugelift {

/// An error code of hugelift.h. Only the functions of this header throw it, never the library.
class error : public std::runtime_error {
public:
    explicit error(int code) : std::runtime_error(hugelift_strerror(code)), code_(code) {}
    int code() const noexcept { return code_; }

private:
    int code_;
};

/// A report, which is freed with this object.
class report {
public:
    explicit report(hugelift_report *owned) noexcept : report_(owned) {}
    std::uint64_t huge_bytes(std::uint32_t parts) const noexcept
    {
        return hugelift_report_huge_bytes(report_.get(), parts);
    }
    std::uint64_t liftable_bytes(std::uint32_t parts) const noexcept
    {
        return hugelift_report_liftable_bytes(report_.get(), parts);
    }
    /// Valid as long as this object.
    std::string_view summary() const noexcept { return hugelift_report_summary(report_.get()); }
    /// Valid as long as this object.
    std::string_view json() const noexcept { return hugelift_report_json(report_.get()); }

private:
    struct free {
        void operator()(hugelift_report *owned) const noexcept { hugelift_report_free(owned); }
    };
    std::unique_ptr<hugelift_report, free> report_;
};

/// The options, with their defaults. Members are changed directly: options.backing = HUGELIFT_BACKING_THP.
struct options : hugelift_options {
    options() noexcept { hugelift_options_init(this, sizeof(hugelift_options)); }
};

/// Lifts the calling process. Throws error.
inline report lift_self(const options &asked = {})
{
    hugelift_report *owned = nullptr;
    if (int code = hugelift_lift_self(&asked, &owned); code != HUGELIFT_OK)
        throw error(code);
    return report(owned);
}

/// Gives the calling process the pages of its files back. Throws error.
inline report restore_self(const options &asked = {})
{
    hugelift_report *owned = nullptr;
    if (int code = hugelift_restore_self(&asked, &owned); code != HUGELIFT_OK)
        throw error(code);
    return report(owned);
}

/// Lifts the calling process, and restores it at the end of a scope. Its destructor never throws.
class lifted {
public:
    explicit lifted(const options &asked = {}) : report_(lift_self(asked)) {}
    lifted(const lifted &) = delete;
    lifted &operator=(const lifted &) = delete;
    ~lifted() { hugelift_restore_self(nullptr, nullptr); }
    const hugelift::report &report() const noexcept { return report_; }

private:
    hugelift::report report_;
};

/// Returns the lifted range that holds an address. Async-signal-safe; it does not throw.
inline std::optional<hugelift_range> find(const void *address) noexcept
{
    hugelift_range range;
    return hugelift_find(address, &range, sizeof range) == 1 ? std::optional(range) : std::nullopt;
}

} // namespace hugelift
#endif
