#pragma once

#include <string>
#include <vector>

namespace oslo::config_test {

/// An option or a key of the config, and the test that shows its effect or its refusal.
struct OptionTest {
  std::string option;
  std::string file;       ///< below tests/
  std::string test;       ///< "Suite.Name"
  std::string seen = {};  ///< what the file says of it; empty: its name
};

using OptionTests = std::vector<OptionTest>;

inline OptionTests option_tests() {
  const std::string resume = "resume_test/", pretrained = "pretrained_test/";
  const std::string steps = "pipeline_step_test/", here = "config_test/options.cpp";
  const std::string scaler = "grad_scaler_test/one_rank.cpp", rates = "training_test/rates.cpp";
  const std::string trainer = "training_test/trainer.cpp", hooks = "training_test/hooks.cpp";
  const std::string patches = "grid_layers_test/modules.cpp",
                    printed = "GridLayers.PrintWhatTheyHold";
  const std::string made = "PatchEmbeddingOptions(16, 4, 3, 8)";
  return {
      {"MpuOptions::tensor_parallel_size", "mpu_test/mpu.cpp",
       "Mpu.AllReduceOfRankIdsOverTensorGroups"},
      {"MpuOptions::pipeline_parallel_size", "mpu_test/mpu.cpp",
       "Mpu.AllReduceOfRankIdsOverTensorGroups"},
      {"MpuOptions::data_parallel_size", "mpu_test/mpu.cpp",
       "MpuOptions.SizesThatDoNotFitNameFactorsProductAndTheNearest"},
      {"MpuOptions::data_shard_size", "zero_test/hybrid.cpp", "HybridShards.MovesWhatItSays",
       "data_shards"},
      {"MpuOptions::rank_order", "mpu_test/mpu.cpp", "Mpu.GroupsReachTheirMembersInBothOrders"},
      {"MpuOptions::axes", "mpu_test/axes.cpp", "NamedAxes.EveryGroupAndGetterReachesItsRanks"},
      {"MpuOptions::backend", here, "Options.ABackendIsThatOfTheGroups"},
      {"MpuOptions::seed", resume + "random.cpp",
       "RandomResume.EachRanksStreamsAreItsOwnInTheSameGrid"},
      {"MpuOptions::random_mode", "placed_tensor_test/in_place.cpp",
       "Random.PerRankLeavesTheDefaultGeneratorAlone"},

      {"ScheduleOptions::kind", "pipeline_schedule_test/tables.cpp",
       "PipelineScheduleTables.ActionForAction"},
      {"ScheduleOptions::ranks", "pipeline_schedule_test/tables.cpp",
       "PipelineScheduleTables.ActionForAction"},
      {"ScheduleOptions::micro_batches", "pipeline_schedule_test/numbers.cpp",
       "PipelineScheduleNumbers.WhatCannotBeIsRefused"},
      {"ScheduleOptions::chunks", "pipeline_schedule_test/numbers.cpp",
       "PipelineScheduleNumbers.WhatCannotBeIsRefused"},

      {"LinearOptions::bias", "tensor_layers_test/modules.cpp", "ParallelLayers.PrintWhatTheyHold"},
      {"LinearOptions::parallel", "tensor_layers_test/modules.cpp",
       "ParallelLayers.LinearCutsAsToldAndRefusesOtherWords"},
      {"LinearOptions::axis", "axes_test.cpp", "Axes.LayersByHandTakeAnAxis"},
      {"LinearOptions::gather_output", "tensor_layers_test/numbers.cpp",
       "ColumnParallelLinear.IdentityTimesOnesOnEightRanks"},
      {"LinearOptions::input_is_parallel", "tensor_layers_test/numbers.cpp",
       "RowParallelLinear.ReducesOnceForwardAndAddsTheBiasOnce"},
      {"LinearOptions::layer_idx", "pipeline_stages_test/layer_idx.cpp",
       "LayerIdx.OfAParallelLayerLeavesItToInitialize"},
      {"LinearOptions::keep_gathered", "grid_layers_test/bytes.cpp", "Bytes.WhatIsKeptForBackward"},
      {"PatchEmbeddingOptions::image_size", patches, printed, made},
      {"PatchEmbeddingOptions::patch_size", patches, printed, made},
      {"PatchEmbeddingOptions::channels", patches, printed, made},
      {"PatchEmbeddingOptions::features", patches, printed, made},

      {"DDPOptions::bucket_cap_mb", "data_parallel_test/training.cpp",
       "DataParallelBuckets.AreAsLargeAsAllowed"},
      {"DDPOptions::find_unused_parameters", "data_parallel_test/training.cpp",
       "DataParallelUnused.ParametersOfOtherRanksGetTheirGradient"},
      {"DDPOptions::broadcast_buffers", "data_parallel_test/buffers.cpp",
       "DataParallelBuffers.StayWhenToldSo"},
      {"DDPOptions::gradient_as_bucket_view", "data_parallel_test/training.cpp",
       "DataParallel.NoSyncAddsUpAndExchangesOnce"},
      {"DDPOptions::static_graph", "data_parallel_test/training.cpp",
       "DataParallel.NoSyncAddsUpAndExchangesOnce"},

      {"GradScalerOptions::init_scale", scaler, "GradScaler.DoesWhatAProgramDoesByHand"},
      {"GradScalerOptions::growth_factor", scaler, "GradScaler.ResumesFromItsState"},
      {"GradScalerOptions::backoff_factor", scaler, "GradScaler.ResumesFromItsState"},
      {"GradScalerOptions::growth_interval", scaler, "GradScaler.DoesWhatAProgramDoesByHand"},
      {"GradScalerOptions::enabled", scaler, "GradScaler.DisabledItDoesNothing"},

      {"WarmupOptions::start_factor", rates, "Rates.CosineIsPyTorchs"},
      {"WarmupOptions::end_factor", rates, "Rates.CosineIsPyTorchs"},
      {"PlateauOptions::mode", rates, "Plateau.OfAMetricThatGrows"},
      {"PlateauOptions::factor", rates, "Plateau.IsPyTorchs"},
      {"PlateauOptions::patience", rates, "Plateau.IsPyTorchs"},
      {"PlateauOptions::threshold", rates, "Plateau.IsPyTorchs"},
      {"PlateauOptions::threshold_mode", rates, "Plateau.OfAMetricThatGrows"},
      {"PlateauOptions::cooldown", rates, "Plateau.IsPyTorchs"},
      {"PlateauOptions::min_lr", rates, "Plateau.IsPyTorchs"},
      {"PlateauOptions::eps", rates, "Plateau.LeavesRatesThatWouldHardlyChange"},

      {"FitOptions::epochs", trainer, "Trainer.CallsItsHooksInOrder"},
      {"FitOptions::test_interval", trainer, "Trainer.CallsItsHooksInOrder"},
      {"FitOptions::max_steps", trainer, "Trainer.EndsAfterItsLastStep"},
      {"EarlyStoppingOptions::metric", hooks, "Hooks.TrainingEndsWhereNothingGetsBetter"},
      {"EarlyStoppingOptions::mode", hooks, "Hooks.TrainingEndsWhereNothingGetsBetter"},
      {"EarlyStoppingOptions::patience", hooks, "Hooks.TrainingEndsWhereNothingGetsBetter"},
      {"EarlyStoppingOptions::min_delta", hooks, "Hooks.TrainingEndsWhereNothingGetsBetter"},

      {"OffloadOptions::at_least", "lazy_device_test/offload.cpp",
       "Offload.ParametersSmallTensorsAndSmallPartsStay"},
      {"OffloadOptions::ahead", "lazy_device_test/offload.cpp",
       "Offload.NeverHoldsMoreThanWithoutIt"},
      {"CheckpointOptions::keep", "recomputation_test/by_hand.cpp",
       "CheckpointByHand.TransformerBlockWithDropout"},
      {"CheckpointOptions::keep_at_most", "recomputation_test/selective.cpp",
       "Selective.HalfOfTheBytesForATwentiethOfTheProducts"},
      {"CheckpointOptions::keep_if", "recomputation_test/three_products.cpp",
       "ThreeProducts.WhatNobodyNeedsDoesNotRunAgain"},
      {"CheckpointOptions::whole", "recomputation_test/three_products.cpp",
       "ThreeProducts.WholeSegmentsRunAgainAsTorchtitanCounts"},

      {"SaveOptions::merge_checkpoints", "parallel_checkpoint_test/round_trip.cpp",
       "ParallelCheckpoint.MergedIsTheOriginalModel"},
      {"SaveOptions::format", "parallel_checkpoint_test/round_trip.cpp",
       "ParallelCheckpoint.PartsComeBackBitByBitIntoTheSameTensors"},
      {"SaveOptions::config", "parallel_checkpoint_test/round_trip.cpp",
       "ParallelCheckpoint.MergedIsTheOriginalModel"},
      {"SaveOptions::parallel_config", here, "Options.AParallelConfigOfAMergedSaveIsRefused"},
      {"SaveOptions::extra", "parallel_checkpoint_test/round_trip.cpp",
       "TwoByTwo.WhatElseAProgramResumesFromIsOfTheSameSave"},
      {"SaveOptions::optimizer", here, "Options.LoadStateReadsWhatARunGoesOnFrom"},
      {"SaveOptions::scheduler", here, "Options.LoadStateReadsWhatARunGoesOnFrom"},
      {"SaveOptions::random_states", resume + "random.cpp", "RandomResume.WithoutThemIsRefused"},
      {"SaveOptions::step", "parallel_checkpoint_test/series.cpp",
       "Series.TheLatestIsLoadedAndTheNewestStay"},
      {"SaveOptions::keep_last", "parallel_checkpoint_test/series.cpp",
       "Series.TheLatestIsLoadedAndTheNewestStay"},

      {"LoadOptions::extra", here, "Options.LoadStateReadsWhatARunGoesOnFrom"},
      {"LoadOptions::convert", "resharding_test/pairs.cpp",
       "Resharding.TypesAreConvertedWhereThatIsAskedFor"},
      {"LoadOptions::optimizer", here, "Options.LoadStateReadsWhatARunGoesOnFrom"},
      {"LoadOptions::scheduler", here, "Options.LoadStateReadsWhatARunGoesOnFrom"},
      {"LoadOptions::random_states", here, "Options.LoadStateReadsWhatARunGoesOnFrom"},

      {"PretrainedOptions::family", here, "Options.ATableOfOnesOwnIsTheFamily"},
      {"PretrainedOptions::ignore", here, "Options.OfTheOtherDirectionAreRefused"},
      {"PretrainedOptions::convert", here, "Options.OfTheOtherDirectionAreRefused"},
      {"PretrainedOptions::config", here, "Options.OfTheOtherDirectionAreRefused"},
      {"PretrainedOptions::max_shard_bytes", here, "Options.OfTheOtherDirectionAreRefused"},

      {"ReshardOptions::optimizer", "resharding_test/in_memory_states.cpp",
       "Reshard.TakesTheStatesOfSeveralOptimizers"},

      {"InitializeOptions::world", "initialize_test.cpp",
       "Initialize.RanksThatDifferAreNamedOnEveryRank"},
      {"InitializeOptions::example_inputs", "initialize_test.cpp",
       "Initialize.RanksThatDifferAreNamedOnEveryRank"},
      {"InitializeOptions::cut_own_parameters", "tensor_parallel_test/little_cut.cpp",
       "LittleCut.WhatHelpsHelps"},
      {"InitializeOptions::rates", here, "Options.AMemoryLimitIsKeptOrRefused"},
      {"InitializeOptions::memory_limit", here, "Options.AMemoryLimitIsKeptOrRefused"},
      {"InitializeOptions::strict", "explain_test/strict.cpp", "Strict.IsAnOptionToo"},
      {"InitializeOptions::policies", "plan_test/plan.cpp",
       "ExplicitPlan.SpecificPatternsThenPoliciesThenStructure"},
      {"InitializeOptions::stages", "pipeline_stages_test/plan.cpp",
       "StagePlan.AModelWithoutListsIsDividedIntoItsModules"},
      {"InitializeOptions::class_stages", "pipeline_stages_test/layer_idx.cpp",
       "ClassStages.AreFoundWithoutACall", "set_pipeline_stage_id"},
      {"InitializeOptions::axes", "axes_test.cpp", "Axes.TheUsualAxesAreTheUsualSizes"},
      {"InitializeOptions::random_mode", "plan_test/plan.cpp", "Example.LeavesNoTrace"},
      {"InitializeOptions::seed", here, "Options.ASeedIsThatOfTheStreams"},

      {"PipelineOptions::num_microbatches", steps + "steps.cpp",
       "PipelineSchedule.NormsCountACopyOnce"},
      {"PipelineOptions::kind", steps + "refusals.cpp",
       "PipelineSchedule.AKindWithOtherStagesThanInitializesIsRefused"},
      {"PipelineOptions::num_model_chunks", steps + "refusals.cpp",
       "PipelineSchedule.AKindWithOtherStagesThanInitializesIsRefused"},
      {"StepOptions::forward_only", steps + "evaluations.cpp",
       "Evaluations.LeaveGradientsAloneAndShowOutputs"},
      {"StepOptions::return_outputs", steps + "evaluations.cpp",
       "Evaluations.LeaveGradientsAloneAndShowOutputs"},
      {"StepOptions::record", steps + "recorded.cpp", "RecordedSteps.AreTheListsActionForAction"},

      {"VerifyOptions::tolerance", "pipeline_habits_test/number_types.cpp",
       "PipelineNumberTypes.WeightsInBfloat16"},
      {"VerifyOptions::gradients", "verify_test.cpp", "Verify.GradientsTooAreCompared"},
  };
}

inline OptionTests config_key_tests() {
  const std::string meaning = "config_test/meaning.cpp", later = "config_test/not_there_yet.cpp";
  const std::string wrong = "config_test/wrong_values.cpp";
  const std::string saved = "pipeline_stages_test/saved_config.cpp";
  const std::string accumulation = "pipeline_step_test/accumulation.cpp";
  const std::string precision = "config_test/precision.cpp";
  const std::string in_its_place = "ConfigPrecision.EachDialectSaysItInItsPlace";
  const std::string accumulates =
      "Accumulation.NumAccumulationStepsOfEveryDialectIsOneStepOfTheWholeBatch";
  const std::string recomputes = "Config.RecomputationInEveryDialect";
  const std::string engine = "engine_test/", by_hand = "Engine.AccumulatesAndClipsAsALoopByHand";
  const std::string scales = "EngineScaling.IsThatOfALoopByHand";
  return {
      {"model_parallelism.enable", meaning, "Config.DisabledLeavesEverythingToData"},
      {"model_parallelism.tensor_parallel_size", meaning, "Config.DialectsAgree"},
      {"model_parallelism.pipeline_parallel_size", meaning, "Config.DialectsAgree"},
      {"model_parallelism.num_model_chunks", meaning, "Config.HowAPipelineIsDivided"},
      {"model_parallelism.pipeline_schedule", meaning, "Config.HowAPipelineIsDivided"},

      {"train.dist.data_parallel_size", meaning, "Config.DialectsAgree"},
      {"train.dist.tensor_parallel_size", meaning, "Config.DialectsAgree"},
      {"train.dist.pipeline_parallel_size", meaning, "Config.DialectsAgree"},
      {"train.dist.num_model_chunks", meaning, "Config.HowAPipelineIsDivided"},
      {"train.dist.pipeline_schedule", meaning, "Config.HowAPipelineIsDivided"},
      {"train.dist.pipeline_num_layers", later, "Config.APipelineOfLiBaisNeedsTheNumberOfLayers"},
      {"train.dist.custom_pipeline_stage_id", later, "Config.StageIdsMustFit"},
      {"train.dist.auto_pipeline_stage_id", saved, "SavedConfig.OfAnotherPipelineIsRefused"},
      {"train.dist.actual_pipeline_stage_id", saved, "SavedConfig.GivesAModelTheSameStagesAgain"},
      {"train.num_accumulation_steps", accumulation, accumulates},
      {"train.activation_checkpoint.enabled", meaning, recomputes},
      {"train.activation_checkpoint.every", meaning, recomputes},
      {"train.activation_checkpoint.modules", meaning, recomputes},
      {"train.activation_checkpoint.keep", meaning, recomputes},
      {"train.activation_checkpoint.keep_at_most", meaning, recomputes},
      {"train.activation_checkpoint.memory", meaning, "Config.ABudgetOfMemory"},
      {"train.activation_checkpoint.offload", meaning, "Config.OffloadInEveryDialect"},
      {"train.activation_checkpoint.offload_ahead", meaning, "Config.OffloadInEveryDialect"},
      {"train.zero_optimization.enabled", later, "Config.ZeroInEveryDialect"},
      {"train.zero_optimization.stage", later, "Config.ZeroInEveryDialect"},
      {"train.zero_optimization.shard_size", later, "Config.ZeroInEveryDialect"},
      {"train.zero_optimization.reshard", later, "Config.ZeroInEveryDialect"},
      {"train.zero_optimization.copies_per_host", later, "Config.ZeroInEveryDialect"},
      {"zero_optimization.enabled", later, "Config.ZeroInEveryDialect"},
      {"zero_optimization.stage", later, "Config.ZeroInEveryDialect"},
      {"zero_optimization.shard_size", later, "Config.ZeroInEveryDialect"},
      {"zero_optimization.reshard", later, "Config.ZeroInEveryDialect"},
      {"zero_optimization.copies_per_host", later, "Config.ZeroInEveryDialect"},
      {"train.amp.enabled", precision, in_its_place},
      {"train.amp.dtype", precision, "ConfigPrecision.WhatMeansNothingIsRefused"},
      {"amp.enabled", precision, in_its_place},
      {"amp.dtype", precision, in_its_place},
      {"fp16.enabled", precision, in_its_place},
      {"fp16.mode", precision, in_its_place},
      {"fp16.init_scale", engine + "scaling.cpp", scales},
      {"fp16.growth_factor", precision, "ConfigPrecision.ColossalAIsScaling"},
      {"fp16.backoff_factor", precision, "ConfigPrecision.ColossalAIsScaling"},
      {"fp16.growth_interval", engine + "scaling.cpp", scales},
      {"master_weights", precision, in_its_place},
      {"reduce_dtype", precision, in_its_place},

      {"parallel.data.size", meaning, "Config.DialectsAgree", "\"data\""},
      {"parallel.pipeline.size", meaning, "Config.DialectsAgree"},
      {"parallel.pipeline.num_model_chunks", meaning, "Config.HowAPipelineIsDivided"},
      {"parallel.pipeline.schedule", meaning, "Config.HowAPipelineIsDivided"},
      {"parallel.tensor.size", meaning, "Config.DialectsAgree"},
      {"parallel.tensor.mode", later, "ConfigRefused.NotThereYet"},
      {"parallel.tensor.depth", wrong, "Config.ColossalDepthBelongsTo2p5d"},
      {"parallel.tensor.keep_gathered", "grid_parallel_test/modes.cpp",
       "GridModesAlone.WhatIsGatheredIsKeptWhereToldSo"},
      {"parallel.tensor.kwargs.depth", wrong, "Config.ColossalDepthBelongsTo2p5d"},

      {"gradient_accumulation", engine + "loop.cpp", by_hand, "kThreeBatches"},
      {"clip_grad_norm", engine + "loop.cpp", by_hand, "kThreeBatches"},
      {"gradient_handler.type", engine + "loop.cpp", "Engine.GradientHandlersAverageInItsStep",
       "DataParallelGradientHandler"},
      {"NUM_MICRO_BATCHES", engine + "schedules.cpp",
       "EngineSchedule.TakesItsMicroBatchesFromTheConfigAndSeveralInputs"},
      {"rank_order", meaning, "Config.RankOrderBesideEveryDialect"},
      {"backend", "transport_test.cpp", "Transport.IsAnEntryOfTheConfig"},
      {"timeout", "transport_test.cpp", "Transport.HowLongRanksWaitIsAnEntryOfTheConfig"},
      {"kernel_fusion", "config_test/meaning.cpp", "Config.KernelFusionBesideEveryDialect"},
      {"strict", "config_test/meaning.cpp", "Config.StrictBesideEveryDialect"},
      {"context_parallel_size", "config_test/meaning.cpp", "Config.ModesAreAxes"},
      {"context_attention", "context_parallel_test/attention.cpp",
       "ContextAttention.HeadsThatCannotBeCutAreRefusedByName"},
      {"context_order", "context_parallel_test/grids.cpp", "ContextGrid.RefusedByName"},
      {"sequence_parallel", "sequence_parallel_test/counts.cpp",
       "SequenceParallelCounts.APreNormBlock"},
      {"plan", "plan_test/plan.cpp", "ExplicitPlan.SpecificPatternsThenPoliciesThenStructure"},
      {"stages", later, "Config.StagesByPatterns"},
      {"balance_stages", later, "Config.StagesMayBeBalanced"},
      {"num_accumulation_steps", accumulation, accumulates},
      {"activation_checkpoint.enabled", meaning, recomputes},
      {"activation_checkpoint.every", meaning, recomputes},
      {"activation_checkpoint.modules", meaning, recomputes},
      {"activation_checkpoint.keep", meaning, recomputes},
      {"activation_checkpoint.keep_at_most", meaning, recomputes},
      {"activation_checkpoint.memory", meaning, "Config.ABudgetOfMemory"},
      {"activation_checkpoint.offload", meaning, "Config.OffloadInEveryDialect"},
      {"activation_checkpoint.offload_ahead", meaning, "Config.OffloadInEveryDialect"},
      {"auto_pipeline_stage_id", saved, "SavedConfig.OfAnotherPipelineIsRefused"},
      {"actual_pipeline_stage_id", saved, "SavedConfig.GivesAModelTheSameStagesAgain"},
  };
}

}  // namespace oslo::config_test
