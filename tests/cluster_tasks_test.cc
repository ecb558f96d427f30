// What the tasks of a job are given, and what is seen of what they print, byte for byte.
#include "tests/support/lifecycle_fixture.h"

namespace muster {
namespace {

using ::testing::StartsWith;

class ClusterTasks : public LifecycleTest {};

TEST_F(ClusterTasks, LogsOfOneTaskAreItsBytes) {
  // 20 MB: binary, then a line of 3 MB, then one without an end.
  const std::string script =
      "import os, sys\n"
      "out = sys.stdout.buffer\n"
      "out.write(bytes(range(256)) * 65536)\n"
      "out.write(b'x' * 3000000 + b'\\n')\n"
      "out.write(b'\\r\\n\\x00 no end')\n";
  cluster_.Write("print.py", script);
  const std::string job = cluster_.Write(
      "bytes.yaml",
      "name: bytes\nprogram: [python3, print.py]\nfiles: [print.py]\nreplicas: {worker: {count: 1}}\n");
  const CommandResult run = RunJob(job, {"-q"});
  ASSERT_EQ(run.exit_code, 0) << run.stderr_text;
  std::string expected;
  for (int i = 0; i < 65536; ++i)
    for (int byte = 0; byte < 256; ++byte) expected += static_cast<char>(byte);
  expected += std::string(3'000'000, 'x') + "\n" + std::string("\r\n\0 no end", 10);
  // Not EXPECT_EQ: it would print them.
  const CommandResult logs = Muster({"logs", "bytes", "worker:0"});
  EXPECT_EQ(logs.stdout_text.size(), expected.size());
  EXPECT_TRUE(logs.stdout_text == expected);
}

TEST_F(ClusterTasks, ArgumentsAndEnvironmentArriveAsTheyWereWritten) {
  const std::vector<std::string> words = {
      "two  words", "it's \"quoted\" \\ $HOME `x` *", "a\nb\n", "", "Größe → 数", "{task_dir", "--", "~"};
  std::string program = "sh, -c, 'for a in \"$0\" \"$@\" \"$WORD\"; do printf \"%s|\" \"$a\"; done'";
  for (const std::string& word : words) program += ", " + Json(word).dump();
  const std::string value = "=a b  'c' \"d\"\n\te → $PATH";
  const std::string job = cluster_.Write("words.yaml", "name: words\nprogram: [" + program +
                                                           "]\nenv: {WORD: " + Json(value).dump() +
                                                           "}\nreplicas: {worker: {count: 1}}\n");
  const CommandResult run = RunJob(job, {"-q"});
  ASSERT_EQ(run.exit_code, 0) << run.stderr_text;
  std::string expected;
  for (const std::string& word : words) expected += word + "|";
  EXPECT_EQ(Muster({"logs", "words", "worker:0"}).stdout_text, expected + value + "|");
}

// The values of NAME=VALUE lines that a task printed.
std::map<std::string, std::string> Variables(const std::string& text) {
  std::map<std::string, std::string> variables;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (const size_t equals = line.find('='); equals != std::string::npos)
      variables[line.substr(0, equals)] = line.substr(equals + 1);
  }
  return variables;
}

class ClusterOfTasks : public LifecycleTest, public testing::WithParamInterface<bool> {};

TEST_P(ClusterOfTasks, IsTheSameToAllOfThem) {
  const bool chief = GetParam();
  const std::string job =
      cluster_.Write("ranks.yaml",
                     "name: ranks\nprogram: [sh, -c, 'echo flags=\"$*\"; env', program]\nflags: tensorflow\n"
                     "replicas: {ps: {count: 2}, worker: {count: 4}" +
                         std::string(chief ? ", chief: {count: 1}}\n" : "}\n"));
  const CommandResult run = RunJob(job, {"-q"});
  ASSERT_EQ(run.exit_code, 0) << run.stderr_text;
  std::vector<std::string> ranked = {"worker:0", "worker:1", "worker:2", "worker:3"};
  if (chief) ranked.insert(ranked.begin(), "chief:0");
  std::map<std::string, std::map<std::string, std::string>> of_task = {{"ps:0", {}}, {"ps:1", {}}};
  for (const std::string& task : ranked) of_task[task];
  for (auto& [task, variables] : of_task) variables = Variables(Muster({"logs", "ranks", task}).stdout_text);

  const Json cluster = Json::parse(of_task["worker:0"]["TF_CONFIG"])["cluster"];
  std::map<std::string, std::string> hosts;  // of each role, as in the flags
  std::set<std::string> addresses, places;
  for (const auto& [role, members] : cluster.items()) {
    for (const std::string address : members) {
      EXPECT_TRUE(addresses.insert(address).second) << address;
      hosts[role] += (hosts[role].empty() ? "" : ",") + address;
    }
  }
  EXPECT_EQ(addresses.size(), of_task.size()) << cluster;

  for (auto& [task, variables] : of_task) {
    SCOPED_TRACE(task);
    const std::string role = task.substr(0, task.find(':')), index = task.substr(task.find(':') + 1);
    const Json config = Json::parse(variables["TF_CONFIG"]);
    EXPECT_EQ(config["cluster"], cluster);
    EXPECT_EQ(config["task"]["type"], role);
    EXPECT_EQ(config["task"]["index"], std::stoi(index));
    EXPECT_EQ(variables["MASTER_ADDR"] + ":" + variables["MASTER_PORT"],
              std::string(cluster[chief ? "chief" : "worker"][0]));
    EXPECT_EQ(variables["WORLD_SIZE"], std::to_string(ranked.size()));
    std::string flags = "--job_name=" + role + " --task_index=" + index;
    // The four flags have no name for a chief.
    if (!chief) flags += " --ps_hosts=" + hosts["ps"] + " --worker_hosts=" + hosts["worker"];
    EXPECT_THAT(variables["flags"], StartsWith(flags));
    EXPECT_EQ(variables["flags"].find("--cluster_spec=") != std::string::npos, chief);
  }
  for (size_t i = 0; i < ranked.size(); ++i) {
    auto& variables = of_task[ranked[i]];
    EXPECT_EQ(variables["RANK"], std::to_string(i));
    // A place on a host is one rank's.
    EXPECT_TRUE(places.insert(variables["HOME"] + " " + variables["LOCAL_RANK"]).second) << ranked[i];
  }
  EXPECT_FALSE(of_task["ps:0"].contains("RANK"));
}

INSTANTIATE_TEST_SUITE_P(Roles, ClusterOfTasks, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "WithAChief" : "WithoutAChief");
});

}  // namespace
}  // namespace muster
