// What can be typed: the commands of muster and their flags.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "launcher/commands/context.h"

namespace muster {

/// Parsing writes into `flags` and `format`: an object stays where it was made.
struct CommandLine {
  /// `version` is muster's.
  explicit CommandLine(const std::string& version);
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  CLI::App app{"Runs training jobs on machines you have, over SSH.", "muster"};
  CommandFlags flags;
  std::string format = "text";
  CLI::App* check = app.add_subcommand("check", "Connect to every host of an inventory and say what it is");
  CLI::App* plan = app.add_subcommand("plan", "Say what `run` would do; contacts hosts only to ask for GPUs");
  CLI::App* run = app.add_subcommand("run", "Run a job, or bring a running one to what its file says now");
  CLI::App* up = app.add_subcommand("up", "Start servers that stand, and train one job after the other");
  CLI::App* scale = app.add_subcommand("scale", "Give a job that runs more workers, or fewer");
  CLI::App* restart = app.add_subcommand("restart", "Start tasks of a job that runs again, or all of them");
  CLI::App* show = app.add_subcommand("show", "The hosts and tasks of a job")->alias("status");
  CLI::App* logs = app.add_subcommand("logs", "What the tasks of a job printed");
  CLI::App* events = app.add_subcommand("events", "What happened to the hosts and tasks of a job, and when");
  CLI::App* stop = app.add_subcommand("stop", "Stop a job: nothing of it is left on any host");
  CLI::App* gc = app.add_subcommand("gc", "Remove from the hosts what jobs that have ended left there");
  CLI::App* exec = app.add_subcommand("exec", "Run a command on every host of an inventory");
  CLI::App* list = app.add_subcommand("list", "The jobs run from this account");
  CLI::App* data = app.add_subcommand("data", "Data sets: fetch the real ones, or make synthetic ones");
  CLI::App* data_fetch = data->add_subcommand("fetch", "Download a data set, once");
  CLI::App* data_make = data->add_subcommand("make", "Write the synthetic stand-in for a data set");
  CLI::App* export_job = app.add_subcommand("export", "Print a job as manifests for Kubernetes");
  CLI::App* bench = app.add_subcommand("bench", "Train by every strategy, side by side: which one to use?");
  CLI::App* compare = app.add_subcommand("compare", "The results of jobs, side by side");
  CLI::App* completion =
      app.add_subcommand("completion", "Print what has a shell complete commands of muster");
  CLI::App* wait = app.add_subcommand("wait", "Wait for the end of a job, and exit as it does");
  // What muster asks of itself on another machine: no command for people.
  CLI::App* controller = app.add_subcommand("controller", "")->group("");
  CLI::App* controller_check = controller->add_subcommand("check", "");
  CLI::App* controller_drive = controller->add_subcommand("drive", "");
  CLI::App* controller_resume = controller->add_subcommand("resume", "");
  CLI::App* controller_await = controller->add_subcommand("await", "");
  CLI::App* controller_export = controller->add_subcommand("export", "");
  CLI::App* controller_release = controller->add_subcommand("release", "");
  CLI::App* controller_forget = controller->add_subcommand("forget", "");
};

}  // namespace muster
