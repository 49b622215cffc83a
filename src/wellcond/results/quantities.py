"""The names of everything that is measured. A row's quantity is one of these constants, and nothing parses it.

A prefix says which matrix a quantity belongs to: `input_` is Σx, the second moment of what a layer receives;
`gradient_` is Σ∇h, that of the gradient at its output; `kronecker_` is Σx ⊗ Σ∇h; `fisher_` and `hessian_` are the
Fisher matrix and the Hessian.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

# a matrix's spectrum

LAMBDA_MAX: Final = "lambda_max"
LAMBDA_MAX_ERROR: Final = "lambda_max_error"
LAMBDA_MIN: Final = "lambda_min"
LAMBDA_MIN_ERROR: Final = "lambda_min_error"
RANK: Final = "rank"
DIMENSION: Final = "dimension"
TRACE: Final = "trace"
TRACE_ERROR: Final = "trace_error"
KAPPA_BY_SHARE: Final = {0.2: "kappa_fifth", 0.5: "kappa_half", 0.8: "kappa_four_fifths", 1.0: "kappa_all"}
"""κ_p by its share p of the eigenvalues. Other shares are in the result, not in rows."""


@dataclass(frozen=True)
class MatrixQuantities:
    """The names of one matrix's numbers."""

    lambda_max: str
    lambda_max_error: str
    lambda_min: str
    lambda_min_error: str
    rank: str
    dimension: str
    trace: str
    trace_error: str
    kappa: dict[float, str]
    """By share p."""

    @classmethod
    def of(cls, matrix: str) -> MatrixQuantities:
        """The names with the prefix of a matrix."""
        spectrum = (LAMBDA_MAX, LAMBDA_MAX_ERROR, LAMBDA_MIN, LAMBDA_MIN_ERROR, RANK, DIMENSION, TRACE, TRACE_ERROR)
        names: dict[str, Any] = {quantity: f"{matrix}_{quantity}" for quantity in spectrum}
        kappa = {share: f"{matrix}_{quantity}" for share, quantity in KAPPA_BY_SHARE.items()}
        return cls(**names, kappa=kappa)


INPUT: Final = MatrixQuantities.of("input")
GRADIENT: Final = MatrixQuantities.of("gradient")
KRONECKER: Final = MatrixQuantities.of("kronecker")
FISHER: Final = MatrixQuantities.of("fisher")
HESSIAN: Final = MatrixQuantities.of("hessian")

# the network and its layers

LOSS: Final = "loss"
EXAMPLES: Final = "examples"
PARAMETERS: Final = "parameters"
CONVOLUTIONS: Final = "convolutions"
GRADIENT_NORM: Final = "gradient_norm"
WEIGHT_NORM: Final = "weight_norm"
UNITS: Final = "units"
DYING: Final = "dying"
FULL: Final = "full"
SIGNAL_RMS: Final = "signal_rms"
"""√(mean h²) of a layer's output."""
SENSITIVITY: Final = "sensitivity"
"""‖∂ℓ/∂h‖·‖h‖, what a relative change of a layer's output does to the loss."""
VARIATION: Final = "variation"
"""E‖h − E h‖² / E‖h‖² of a layer's output over examples."""
DEAD_SHARE: Final = "dead_share"
FULL_SHARE: Final = "full_share"
SATURATED_SHARE: Final = "saturated_share"
ACTIVATION_MEAN: Final = "activation_mean"
ACTIVATION_VARIANCE: Final = "activation_variance"
NOT_FINITE: Final = "not_finite"
MEAN_CHANGE: Final = "mean_change"
VARIANCE_CHANGE: Final = "variance_change"
RELATIVE_MEAN_CHANGE: Final = "relative_mean_change"
RELATIVE_VARIANCE_CHANGE: Final = "relative_variance_change"
SHIFT_DIFFERENCE: Final = "shift_difference"
SHIFT_COSINE: Final = "shift_cosine"
SHIFTED_GRADIENT_NORM: Final = "shifted_gradient_norm"

# the loss around the weights

LOSS_LEAST: Final = "loss_least"
LOSS_GREATEST: Final = "loss_greatest"
GRADIENT_CHANGE_LEAST: Final = "gradient_change_least"
GRADIENT_CHANGE_GREATEST: Final = "gradient_change_greatest"
BETA: Final = "beta"

# local Hessians and random matrices

BACK_MATCHING_LOSS: Final = "back_matching_loss"
TARGET_CHANGE: Final = "target_change"
INPUT_ENTRIES: Final = "input_entries"
SUPPORT_LOW: Final = "support_low"
SUPPORT_HIGH: Final = "support_high"
MASS_AT_ZERO: Final = "mass_at_zero"
MEAN: Final = "mean"

# the learning rate

LR: Final = "lr"
MOMENTUM: Final = "momentum"
MAX_LR: Final = "max_lr"
MAX_LR_LOW: Final = "max_lr_low"
MAX_LR_HIGH: Final = "max_lr_high"
BATCH_MAX_LR_LEAST: Final = "batch_max_lr_least"
BATCH_MAX_LR_MEDIAN: Final = "batch_max_lr_median"
MAX_LR_LEAST: Final = "max_lr_least"
MAX_LR_GREATEST: Final = "max_lr_greatest"
LAMBDA_MAX_LEAST: Final = "lambda_max_least"
LAMBDA_MAX_GREATEST: Final = "lambda_max_greatest"
"""Of a grid of networks."""
PREDICTED_MAX_LR: Final = "predicted_max_lr"
SUGGESTED_LR: Final = "suggested_lr"
SUGGESTED_LR_LOW: Final = "suggested_lr_low"
SUGGESTED_LR_HIGH: Final = "suggested_lr_high"
TERM: Final = "term"
"""What a layer adds to the predicted λ_max."""

# training

TRAINING_LOSS: Final = "training_loss"
FINAL_LOSS: Final = "final_loss"
SCREENED_LOSS: Final = "screened_loss"
TEST_LOSS: Final = "test_loss"
TEST_ACCURACY: Final = "test_accuracy"
STEPS: Final = "steps"
DIVERGED_AT: Final = "diverged_at"
TRAINED_LR: Final = "trained_lr"
"""The learning rate of a training run, beside `lr`, which is the optimizer's."""
TRAINED_MAX_LR: Final = "trained_max_lr"

# what it took

MATVECS: Final = "matvecs"
CONVERGED: Final = "converged"
COST: Final = "cost"
INSPECTION_COST: Final = "inspection_cost"
TRIAL_COST: Final = "trial_cost"
GRADIENTS_COST: Final = "gradients_cost"
LAYERS_COST: Final = "layers_cost"
CONDITIONING_COST: Final = "conditioning_cost"
NEURONS_COST: Final = "neurons_cost"
HESSIAN_EIGENVALUES_COST: Final = "hessian_eigenvalues_cost"
MAX_LR_COST: Final = "max_lr_cost"
HESSIAN_TRACE_COST: Final = "hessian_trace_cost"
PART_COST: Final = {
    "inspection": INSPECTION_COST,
    "trial": TRIAL_COST,
    "gradients": GRADIENTS_COST,
    "layers": LAYERS_COST,
    "conditioning": CONDITIONING_COST,
    "neurons": NEURONS_COST,
    "Hessian eigenvalues": HESSIAN_EIGENVALUES_COST,
    "largest stable lr": MAX_LR_COST,
    "Hessian trace": HESSIAN_TRACE_COST,
}
"""What each part of a diagnosis took; `layers` are gradients, conditioning and neurons in one pass."""
INSPECTION_ESTIMATE: Final = "inspection_estimate"
TRIAL_ESTIMATE: Final = "trial_estimate"
GRADIENTS_ESTIMATE: Final = "gradients_estimate"
LAYERS_ESTIMATE: Final = "layers_estimate"
CONDITIONING_ESTIMATE: Final = "conditioning_estimate"
NEURONS_ESTIMATE: Final = "neurons_estimate"
HESSIAN_EIGENVALUES_ESTIMATE: Final = "hessian_eigenvalues_estimate"
MAX_LR_ESTIMATE: Final = "max_lr_estimate"
HESSIAN_TRACE_ESTIMATE: Final = "hessian_trace_estimate"
PART_ESTIMATE: Final = {
    "inspection": INSPECTION_ESTIMATE,
    "trial": TRIAL_ESTIMATE,
    "gradients": GRADIENTS_ESTIMATE,
    "layers": LAYERS_ESTIMATE,
    "conditioning": CONDITIONING_ESTIMATE,
    "neurons": NEURONS_ESTIMATE,
    "Hessian eigenvalues": HESSIAN_EIGENVALUES_ESTIMATE,
    "largest stable lr": MAX_LR_ESTIMATE,
    "Hessian trace": HESSIAN_TRACE_ESTIMATE,
}
"""What each was to take at most."""

# what an inspection and a trial measure

SIGNAL_GRADIENT: Final = "signal_gradient"
"""RMS over examples of ‖∂ℓ/∂h‖ at a layer's output."""
NOT_FINITE_SHARE: Final = "not_finite_share"
NOT_FINITE_VALUES: Final = "not_finite_values"
NOT_FINITE_GRADIENTS: Final = "not_finite_gradients"
PARAMETER_RMS: Final = "parameter_rms"
PARAMETER_GAIN: Final = "parameter_gain"
"""RMS of a weight times √(fan-in)."""
PARAMETER_GRADIENT_RMS: Final = "parameter_gradient_rms"
DISTINCT_UNITS: Final = "distinct_units"
PARAMETER_LR: Final = "parameter_lr"
PARAMETER_WEIGHT_DECAY: Final = "parameter_weight_decay"
ATTENTION_ENTROPY: Final = "attention_entropy"
ATTENTION_LARGEST: Final = "attention_largest"
ATTENTION_SATURATED_SHARE: Final = "attention_saturated_share"
ATTENTION_LOGIT_STD: Final = "attention_logit_std"
EARLY_GRADIENT_SHARE: Final = "early_gradient_share"
"""‖∂ℓ/∂x_t‖ of a sequence's first step over that of the step with the largest."""
DATA_RMS: Final = "data_rms"
DATA_MEAN: Final = "data_mean"
DATA_STD: Final = "data_std"
DATA_LOW: Final = "data_low"
DATA_HIGH: Final = "data_high"
LARGEST_FEATURE_RMS: Final = "largest_feature_rms"
MEDIAN_FEATURE_RMS: Final = "median_feature_rms"
CONSTANT_FEATURES: Final = "constant_features"
BATCH_SIZE: Final = "batch_size"
INSPECTED_EXAMPLES: Final = "inspected_examples"
INSPECTED_LOSS: Final = "inspected_loss"
CONSTANT_LOSS: Final = "constant_loss"
"""Loss of the best constant prediction for the first batch."""
UNINFORMED_LOSS: Final = "uninformed_loss"
"""Loss of the class frequencies or the mean target as the answer for every example."""
PERFECT_LOSS: Final = "perfect_loss"
OUTPUT_VARIATION: Final = "output_variation"
OUTPUT_SATURATED_SHARE: Final = "output_saturated_share"
OUTPUT_ACCURACY: Final = "output_accuracy"
CLAMPED_SHARE: Final = "clamped_share"
TARGETS_OUTSIDE_SHARE: Final = "targets_outside_share"
MIXING: Final = "mixing"
"""Relative change of an example's output if the other examples of its batch are left out."""
STANDARDIZED_LOSS: Final = "standardized_loss"
STANDARDIZED_GRADIENT_NORM: Final = "standardized_gradient_norm"
UNSTANDARDIZED_GRADIENT_NORM: Final = "unstandardized_gradient_norm"
TRIAL_LOSS: Final = "trial_loss"
TRIAL_CONSTANT_LOSS: Final = "trial_constant_loss"
TRIAL_TRAINS: Final = "trial_trains"
TRIAL_LR: Final = "trial_lr"
TRIAL_STEPS: Final = "trial_steps"
TRIAL_FINAL_LOSS: Final = "trial_final_loss"
TRIAL_FALL: Final = "trial_fall"
TRIAL_FALL_ERROR: Final = "trial_fall_error"
TRIAL_SPIKE: Final = "trial_spike"
TRIAL_OTHER_LR: Final = "trial_other_lr"
"""Rate of the best of the runs at other rates."""
TRIAL_OTHER_FINAL_LOSS: Final = "trial_other_final_loss"
TRIAL_OTHER_FALL: Final = "trial_other_fall"
TRIAL_UNDECAYED_LOSS: Final = "trial_undecayed_loss"
TRIAL_UNDROPPED_LOSS: Final = "trial_undropped_loss"
TRIAL_RUNNING_STATISTICS_LOSS: Final = "trial_running_statistics_loss"
HANDFUL_EXAMPLES: Final = "handful_examples"
HANDFUL_LOSS: Final = "handful_loss"
HANDFUL_FINAL_LOSS: Final = "handful_final_loss"
HANDFUL_CONSTANT_LOSS: Final = "handful_constant_loss"
BATCH_STATISTICS_LOSS: Final = "batch_statistics_loss"
RUNNING_STATISTICS_LOSS: Final = "running_statistics_loss"
NEIGHBOR_RELATION: Final = "neighbor_relation"
"""Standard deviations of shuffled targets by which the nearest neighbor's target is the better prediction."""
LINEAR_RELATION: Final = "linear_relation"
SMOOTH_RELATION: Final = "smooth_relation"
INPUT_STRUCTURE: Final = "input_structure"
SLOW_SHARE: Final = "slow_share"
"""Share of the targets' variance that only directions with a small eigenvalue predict."""
SLOW_CONDITION: Final = "slow_condition"
