#include "apps/hang_watch.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "core/base/stopwatch.h"
#include "io/durable_file.h"

namespace tessera {
namespace {

using std::chrono::duration;

std::string place_of(const HangWatch::Report& report) {
    return fmt::format("step {}, {} exchange {} ({})", report.step, report.exchanging ? "in" : "computing after",
                       report.exchange, report.what);
}

}  // namespace

HangWatch::HangWatch(const Communicator& communicator, std::string directory, double seconds, const Progress& progress)
    : communicator_(communicator), directory_(std::move(directory) + "/.hang"), seconds_(seconds), progress_(progress) {
    communicator.agree([&] {
        if (communicator.rank() == 0) {
            std::filesystem::remove_all(directory_);  // of an earlier run
        }
    });
    names_ =
        communicator.all_gather(fmt::format("rank {} on {}, process {}", communicator.rank(), host_name(), getpid()));
    thread_ = std::thread([this] { run(); });
}

HangWatch::~HangWatch() {
    {
        const std::lock_guard lock(mutex_);
        stopped_ = true;
    }
    stopped_changed_.notify_one();
    thread_.join();
}

void HangWatch::run() {
    std::unique_lock lock(mutex_);
    using Clock = std::chrono::steady_clock;
    const auto pause = duration<double>(std::clamp(seconds_ / 20, 0.05, 5.0));
    Clock::time_point looked = Clock::now();
    Clock::time_point awake = looked;
    while (!stopped_changed_.wait_for(lock, pause, [&] { return stopped_; })) {
        const Clock::time_point now = Clock::now();
        if (now - looked > pause + duration<double>(seconds_ / 2)) {
            awake = now;  // this process itself was stopped: the others may be about to end it, and say why
        }
        looked = now;
        if (progress_.seconds_since_mark() > seconds_ && now - awake > duration<double>(seconds_)) {
            report_and_end();
        }
    }
}

std::string HangWatch::file_of(std::int64_t rank) const {
    return fmt::format("{}/rank-{}.json", directory_, rank);
}

std::vector<std::optional<HangWatch::Report>> HangWatch::read_reports() const {
    std::vector<std::optional<Report>> reports(names_.size());
    for (std::size_t rank = 0; rank < names_.size(); ++rank) {
        try {
            const auto json = nlohmann::json::parse(read_text_file(file_of(static_cast<std::int64_t>(rank)), 1 << 16));
            reports[rank] = {json.at("step"), json.at("exchange"), json.at("exchanging"), json.at("what")};
        } catch (const std::exception&) {
            reports[rank].reset();  // not there, or not yet whole
        }
    }
    return reports;
}

void HangWatch::report_and_end() {
    std::vector<std::optional<Report>> reports(names_.size());
    try {
        const Report own{
            progress_.step(), progress_.exchanges_begun(), progress_.exchanging(),
            fmt::format("{}{}, {} bytes", progress_.what(),
                        progress_.unit() < 0 ? "" : fmt::format(" of unit {}", progress_.unit()), progress_.bytes())};
        reports[static_cast<std::size_t>(communicator_.rank())] = own;
        make_directories(directory_);
        write_file_atomically(
            file_of(communicator_.rank()),
            nlohmann::json(
                {{"step", own.step}, {"exchange", own.exchange}, {"exchanging", own.exchanging}, {"what", own.what}})
                .dump());
        // The others stopped at about the same time; a file system over a network takes a while to show their files.
        const double patience = std::clamp(seconds_ / 4, 1.0, 15.0);
        const Stopwatch waited;
        do {
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
            reports = read_reports();
        } while (waited.seconds() < patience);
    } catch (const std::exception&) {
        // What is known without files must do.
    }
    const auto speaker = std::ranges::find_if(reports, [](const auto& report) { return report.has_value(); });
    if (speaker - reports.begin() == communicator_.rank()) {
        fmt::print(stderr, "train: error: {}\n", explain(seconds_, reports, names_));
        std::fflush(stderr);
    } else {
        std::this_thread::sleep_for(std::chrono::seconds(2));  // the one who speaks ends us all
    }
    communicator_.abort(ExitCode::hang);
}

std::string HangWatch::explain(double seconds, const std::vector<std::optional<Report>>& reports,
                               const std::vector<std::string>& names) {
    std::map<std::string, std::vector<std::size_t>> places;
    std::vector<std::string> silent;
    for (std::size_t rank = 0; rank < reports.size(); ++rank) {
        if (reports[rank]) {
            places[place_of(*reports[rank])].push_back(rank);
        } else {
            silent.push_back(names[rank]);
        }
    }
    std::string text = fmt::format("no progress for {:g} s (limits.hang_seconds)", seconds);
    if (!silent.empty()) {
        text += fmt::format("; no sign of life from {}", fmt::join(silent, " and "));
    }
    const auto most = std::ranges::max_element(places, {}, [](const auto& place) { return place.second.size(); });
    for (const auto& place : places) {
        std::vector<std::string> named;
        std::ranges::transform(place.second, std::back_inserter(named), [&](std::size_t rank) { return names[rank]; });
        const bool rest = &place == &*most && (places.size() > 1 || !silent.empty());
        const std::string who =
            rest ? fmt::format("{} other ranks", place.second.size()) : fmt::format("{}", fmt::join(named, " and "));
        text += fmt::format("; {} at {}", who, place.first);
    }
    return text;
}

}  // namespace tessera
