// export: the same job for Kubernetes.
#include <cstdio>
#include <string>

#include "base/stdout.h"
#include "launcher/build_context.h"
#include "launcher/commands/context.h"
#include "launcher/job_contents.h"
#include "launcher/kubernetes.h"
#include "launcher/transport/shell_quote.h"

namespace muster {
namespace {

void Say(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

absl::Status ExportContext(const CommandContext& context, const Job& job) {
  const CommandFlags& flags = context.flags();
  const std::string& folder = *flags.context_folder;
  MUSTER_RETURN_IF_ERROR(CheckBuildContextFolder(folder));
  MUSTER_ASSIGN_OR_RETURN(const JobContents contents,
                          PackJob(job, context.installation(), context.data_folder(), context.data_cache()));
  MUSTER_RETURN_IF_ERROR(WriteBuildContext(folder, job, contents));
  if (!contents.data_origin.empty()) Say("data of the image: " + contents.data_origin);
  Say(absl::StrFormat("docker build -t %s %s && docker push %s", flags.image, QuoteWord(folder),
                      flags.image));
  return absl::OkStatus();
}

}  // namespace

absl::Status ExportCommand(const CommandContext& context) {
  const CommandFlags& flags = context.flags();
  MUSTER_ASSIGN_OR_RETURN(const Job job, context.ReadJobFlag());
  MUSTER_ASSIGN_OR_RETURN(
      const KubernetesManifests manifests,
      MakeKubernetesManifests(job, {.image = flags.image,
                                    .format = flags.export_format == "tfjob" ? KubernetesFormat::kTfJob
                                                                             : KubernetesFormat::kJobs}));
  if (flags.context_folder) MUSTER_RETURN_IF_ERROR(ExportContext(context, job));
  PrintToStdout(manifests.yaml);
  for (const std::string& note : manifests.notes) Say(note);
  return absl::OkStatus();
}

}  // namespace muster
