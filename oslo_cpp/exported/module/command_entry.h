#pragma once

/// What the command `oslo` calls for a file of `torch.export.save`; it loads this library by need,
/// so that it starts at once otherwise. Both print on the standard streams and give the command's
/// exit code: 1 where the file cannot be read, or does not fit.
extern "C" {

/// `oslo plan -n 8 model.pt2 [config.json] [path=value ...]`: prints the plan and ends the process.
__attribute__((visibility("default"))) int oslo_plan_exported(const char* path, int word_count,
                                                              const char* const* words);

/// `oslo inspect model.pt2`
__attribute__((visibility("default"))) int oslo_inspect_exported(const char* path);
}
