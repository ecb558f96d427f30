// For tests: tests/support/mirror.py, a mirror that fails in the ways mirrors do. Ends with the object.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/process.h"
#include "tests/support/checkout.h"

namespace muster {

class Mirror {
 public:
  /// Serves the files of `folder`.
  explicit Mirror(const std::string& folder) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const UniqueFd read_end(ends[0]);
    UniqueFd write_end(ends[1]);
    auto server = Process::Spawn(
        {.argv = {SourcePath("tests/support/mirror.py"), folder, log()}, .stdout_fd = write_end.get()});
    EXPECT_TRUE(server.ok()) << server.status();
    if (server.ok()) server_.emplace(*std::move(server));
    write_end.reset();  // so that a server that has died ends the line too
    std::string port;
    for (char c; ::read(read_end.get(), &c, 1) == 1 && c != '\n';) port += c;
    EXPECT_NE(port, "");
    url_ = "http://127.0.0.1:" + port + "/";
  }

  /// Ends in "/"; one of mirror.py's ways of serving comes behind it.
  const std::string& url() const { return url_; }

  /// "/way/name begin" of each request since the last call.
  std::vector<std::string> TakeRequests() {
    std::istringstream lines(ReadFile(log()).value_or(""));
    std::vector<std::string> requests;
    for (std::string line; std::getline(lines, line);) requests.push_back(line);
    (void)RemoveTree(log());
    return requests;
  }

 private:
  std::string log() const { return (folder_.path() / "requests").string(); }

  TemporaryDirectory folder_;
  std::optional<Process> server_;
  std::string url_;
};

}  // namespace muster
