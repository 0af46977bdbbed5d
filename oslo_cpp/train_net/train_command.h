#pragma once

/// What `oslo train` calls of this library, which it loads itself. `request` is JSON:
///
///     {"config": "bert.json", "overrides": ["train.seed=7"], "model_library": "libnet.so" or null,
///      "resume": false, "eval_only": false, "check_for_ranks": 8}
///
/// With `check_for_ranks` above 0 nothing is trained, and only the config is looked at: whether it
/// is understood, and fits so many ranks. Otherwise this process is one rank, of a launcher, or
/// alone. Says on standard error what is wrong. Returns the exit code of the command: 0; 2 for what
/// the config asks; 1 for everything else.
extern "C" __attribute__((visibility("default"))) int oslo_train(const char* request);
