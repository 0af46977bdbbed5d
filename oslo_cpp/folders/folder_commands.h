#pragma once

namespace oslo {

/// What users say for a folder of Hugging Face's, beside the names of `Format`.
inline constexpr char kPretrainedFolder[] = "huggingface";

}  // namespace oslo

/// What the command `oslo` calls for a checkpoint's folder, or one of Hugging Face's; it loads this
/// library by need. They print on the standard streams and give the command's exit code: 1 where a
/// folder cannot be read or written, 2 where they were asked for what cannot be.
extern "C" {

/// `oslo inspect DIR`
__attribute__((visibility("default"))) int oslo_inspect_folder(const char* path);

/// `oslo verify DIR`
__attribute__((visibility("default"))) int oslo_verify_folder(const char* path);

/// `oslo merge DIR OUT [--format F]`; an empty format: a file of each.
__attribute__((visibility("default"))) int oslo_merge_folder(const char* from, const char* to,
                                                             const char* format);

/// `oslo convert DIR OUT --format F`: a format's name, or `kPretrainedFolder`.
__attribute__((visibility("default"))) int oslo_convert_folder(const char* from, const char* to,
                                                               const char* format);

/// `oslo reshard DIR OUT --set NAME=VALUE ... [--format F]`: settings of the configuration, of
/// which those without a section are of "model_parallelism".
__attribute__((visibility("default"))) int oslo_reshard_folder(const char* from, const char* to,
                                                               const char* format,
                                                               int setting_count,
                                                               const char* const* settings);
}
