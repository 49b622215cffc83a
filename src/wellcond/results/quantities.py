"""Everything that is measured, by name. A row's quantity is one of these names, and nothing parses it.

A prefix says which matrix a quantity belongs to: `input_` is Σx, the second moment of what a layer receives;
`gradient_` is Σ∇h, that of the gradient at its output; `kronecker_` is Σx ⊗ Σ∇h; `fisher_` and `hessian_` are the
Fisher matrix and the Hessian.

Example:
    >>> QUANTITIES[SIGNAL_RMS]
    Quantity(name='signal_rms', title='RMS of outputs', unit='')
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple


class Quantity(NamedTuple):
    """What a row's number is.

    Attributes:
        name: What a row calls it.
        title: How it is written for a person.
        unit: Unit of its numbers, or "".
    """

    name: str
    title: str
    unit: str


QUANTITIES: Final[dict[str, Quantity]] = {}
"""Every quantity, by name."""


def quantity(name: str, title: str = "", unit: str = "") -> str:
    """Add a quantity to `QUANTITIES`.

    Args:
        name: A word without numbers.
        title: How it is written for a person; by default the name with spaces.
        unit: Unit of its numbers.

    Returns:
        The name.
    """
    QUANTITIES[name] = Quantity(name, title or name.replace("_", " "), unit)
    return name


def title_of(name: str) -> str:
    """How a quantity is written for a person, also one that is not in `QUANTITIES`.

    Example:
        >>> title_of("gradient_norm"), title_of("share_of_zeros")
        ('‖∂L/∂θ‖', 'share of zeros')
    """
    return QUANTITIES[name].title if name in QUANTITIES else name.replace("_", " ")


# a matrix's spectrum

LAMBDA_MAX: Final = quantity("lambda_max", "λmax")
LAMBDA_MAX_ERROR: Final = quantity("lambda_max_error", "error of λmax")
LAMBDA_MIN: Final = quantity("lambda_min", "λmin")
LAMBDA_MIN_ERROR: Final = quantity("lambda_min_error", "error of λmin")
RANK: Final = quantity("rank")
DIMENSION: Final = quantity("dimension")
TRACE: Final = quantity("trace")
TRACE_ERROR: Final = quantity("trace_error", "error of the trace")
KAPPA_BY_SHARE: Final = {
    0.2: quantity("kappa_fifth", "κ20"),
    0.5: quantity("kappa_half", "κ50"),
    0.8: quantity("kappa_four_fifths", "κ80"),
    1.0: quantity("kappa_all", "κ100"),
}
"""κ_p by its share p of the eigenvalues. Other shares are in the result, not in rows."""
SPECTRUM: Final = (LAMBDA_MAX, LAMBDA_MAX_ERROR, LAMBDA_MIN, LAMBDA_MIN_ERROR, RANK, DIMENSION, TRACE, TRACE_ERROR)


@dataclass(frozen=True)
class MatrixQuantities:
    """The names of one matrix's numbers.

    Attributes:
        kappa: Name of κ_p, by its share p.
    """

    lambda_max: str
    lambda_max_error: str
    lambda_min: str
    lambda_min_error: str
    rank: str
    dimension: str
    trace: str
    trace_error: str
    kappa: dict[float, str]

    def __contains__(self, quantity: str) -> bool:
        return quantity in (*(getattr(self, name) for name in SPECTRUM), *self.kappa.values())

    @classmethod
    def of(cls, matrix: str, symbol: str = "") -> MatrixQuantities:
        """The quantities of a spectrum with the name of a matrix as prefix, and its symbol in their titles."""

        def of_matrix(name: str) -> str:
            return quantity(f"{matrix}_{name}", f"{QUANTITIES[name].title} of {symbol or matrix}")

        names: dict[str, Any] = {name: of_matrix(name) for name in SPECTRUM}
        return cls(**names, kappa={share: of_matrix(name) for share, name in KAPPA_BY_SHARE.items()})


INPUT: Final = MatrixQuantities.of("input", "Σx")
GRADIENT: Final = MatrixQuantities.of("gradient", "Σ∇h")
KRONECKER: Final = MatrixQuantities.of("kronecker", "Σx ⊗ Σ∇h")
FISHER: Final = MatrixQuantities.of("fisher", "the Fisher matrix")
HESSIAN: Final = MatrixQuantities.of("hessian", "the Hessian")

# the network and its layers

LOSS: Final = quantity("loss")
EXAMPLES: Final = quantity("examples", unit="examples")
PARAMETERS: Final = quantity("parameters", unit="parameters")
FLOPS: Final = quantity("flops", "FLOPs, forward", "operations")
CONVOLUTIONS: Final = quantity("convolutions", unit="layers")
GRADIENT_NORM: Final = quantity("gradient_norm", "‖∂L/∂θ‖")
WEIGHT_NORM: Final = quantity("weight_norm", "‖θ‖")
UNITS: Final = quantity("units", unit="units")
DYING: Final = quantity("dying", "dead units", "units")
FULL: Final = quantity("full", "always-on units", "units")
SIGNAL_RMS: Final = quantity("signal_rms", "RMS of outputs")
"""√(mean h²) of a layer's output."""
SENSITIVITY: Final = quantity("sensitivity", "‖∂ℓ/∂h‖·‖h‖")
"""‖∂ℓ/∂h‖·‖h‖, what a relative change of a layer's output does to the loss."""
VARIATION: Final = quantity("variation", "variation over examples")
"""E‖h − E h‖² / E‖h‖² of a layer's output over examples."""
DEAD_SHARE: Final = quantity("dead_share", "share of dead units")
FULL_SHARE: Final = quantity("full_share", "share of always-on units")
SATURATED_SHARE: Final = quantity("saturated_share", "share of saturated values")
ACTIVATION_MEAN: Final = quantity("activation_mean", "mean of outputs")
ACTIVATION_VARIANCE: Final = quantity("activation_variance", "variance of outputs")
NOT_FINITE: Final = quantity("not_finite", "NaN or infinite values", "values")
MEAN_CHANGE: Final = quantity("mean_change", "change of the mean ‖Δμ‖")
VARIANCE_CHANGE: Final = quantity("variance_change", "change of the variance ‖Δσ²‖")
RELATIVE_MEAN_CHANGE: Final = quantity("relative_mean_change", "‖Δμ‖/‖μ‖")
RELATIVE_VARIANCE_CHANGE: Final = quantity("relative_variance_change", "‖Δσ²‖/‖σ²‖")
SHIFT_DIFFERENCE: Final = quantity("shift_difference", "‖G − G'‖")
SHIFT_COSINE: Final = quantity("shift_cosine", "cos(G, G')")
SHIFTED_GRADIENT_NORM: Final = quantity("shifted_gradient_norm", "‖G'‖")

# the loss around the weights

LOSS_LEAST: Final = quantity("loss_least", "lowest loss")
LOSS_GREATEST: Final = quantity("loss_greatest", "highest loss")
GRADIENT_CHANGE_LEAST: Final = quantity("gradient_change_least", "smallest change of the gradient")
GRADIENT_CHANGE_GREATEST: Final = quantity("gradient_change_greatest", "largest change of the gradient")
BETA: Final = quantity("beta", "effective β-smoothness")

# local Hessians and random matrices

BACK_MATCHING_LOSS: Final = quantity("back_matching_loss", "back-matching loss", "loss")
TARGET_CHANGE: Final = quantity("target_change", "change of the target ‖z½ − z‖/‖z‖")
INPUT_ENTRIES: Final = quantity("input_entries", "entries of the input", "entries")
SUPPORT_LOW: Final = quantity("support_low", "lower end of the support")
SUPPORT_HIGH: Final = quantity("support_high", "upper end of the support")
MASS_AT_ZERO: Final = quantity("mass_at_zero", "share at zero")
MEAN: Final = quantity("mean")

# the learning rate

LR: Final = quantity("lr", unit="lr")
MOMENTUM: Final = quantity("momentum")
MAX_LR: Final = quantity("max_lr", "largest stable lr", "lr")
MAX_LR_LOW: Final = quantity("max_lr_low", "lower bound of the largest stable lr", "lr")
MAX_LR_HIGH: Final = quantity("max_lr_high", "upper bound of the largest stable lr", "lr")
BATCH_MAX_LR_LEAST: Final = quantity("batch_max_lr_least", "largest stable lr of the sharpest batch", "lr")
BATCH_MAX_LR_MEDIAN: Final = quantity("batch_max_lr_median", "largest stable lr of the median batch", "lr")
MAX_LR_LEAST: Final = quantity("max_lr_least", "smallest of the largest stable lrs", "lr")
MAX_LR_GREATEST: Final = quantity("max_lr_greatest", "greatest of the largest stable lrs", "lr")
LAMBDA_MAX_LEAST: Final = quantity("lambda_max_least", "smallest λmax")
LAMBDA_MAX_GREATEST: Final = quantity("lambda_max_greatest", "greatest λmax")
"""Ends of the range over a grid of networks."""
PREDICTED_MAX_LR: Final = quantity("predicted_max_lr", "predicted largest stable lr", "lr")
SUGGESTED_LR: Final = quantity("suggested_lr", "suggested lr", "lr")
SUGGESTED_LR_LOW: Final = quantity("suggested_lr_low", "lowest lr that is equally good", "lr")
SUGGESTED_LR_HIGH: Final = quantity("suggested_lr_high", "highest lr that is equally good", "lr")
GRADIENT_NOISE_SCALE: Final = quantity("gradient_noise_scale", unit="examples")
"""Batch size at which the gradients of mini-batches have as much noise as signal."""
TERM: Final = quantity("term", "part of λmax")
"""What a layer adds to the predicted λ_max."""

# training

TRAINING_LOSS: Final = quantity("training_loss", "loss")
FINAL_LOSS: Final = quantity("final_loss")
HELD_OUT_LOSS: Final = quantity("held_out_loss", "held-out loss")
SCREENED_LOSS: Final = quantity("screened_loss", "loss after the screening")
TEST_LOSS: Final = quantity("test_loss")
TEST_ACCURACY: Final = quantity("test_accuracy")
STEPS: Final = quantity("steps", unit="steps")
DIVERGED_AT: Final = quantity("diverged_at", unit="steps")
TRAINED_LR: Final = quantity("trained_lr", "lr of the run", "lr")
STEP_TIME: Final = quantity("step_time", "time of a step", "s")
STEP_MEMORY: Final = quantity("step_memory", "memory of a step", "bytes")
"""The learning rate of a training run; `lr` is the optimizer's."""
TRAINED_MAX_LR: Final = quantity("trained_max_lr", "largest stable lr after training", "lr")

# a recorded run

VALIDATION_LOSS: Final = quantity("validation_loss")
UNCLIPPED_GRADIENT_NORM: Final = quantity("unclipped_gradient_norm", "‖∂L/∂θ‖ before clipping")
UPDATE_RATIO: Final = quantity("update_ratio", "‖Δθ‖/‖θ‖ of a step")
UNCLEARED_GRADIENT: Final = quantity("uncleared_gradient", "‖old gradient‖/‖new gradient‖")
"""Norm of the gradient of earlier steps that a step's first backward pass is added to, over that of the new one."""
ACCUMULATED: Final = quantity("accumulated", "backward passes of a step", "passes")
LOSS_SCALE: Final = quantity("loss_scale")
UNHELD_SHARE: Final = quantity("unheld_share")
"""Share of a layer's weights with a gradient that no optimizer holds, where there are some."""
TRAINED_SHARE: Final = quantity("trained_share")
"""Share of a layer's weights that ask for a gradient, where they have not always all done so."""
ROUNDED_WEIGHTS: Final = quantity("rounded_weights")
"""Share of some float32 weights of a layer that bfloat16 holds exactly, whenever it has changed."""
SKIPPED_STEPS: Final = quantity("skipped_steps", unit="steps")
"""Steps in a row that the optimizer has not taken, as a GradScaler does where gradients are not finite."""
STATISTICS_GAP: Final = quantity("statistics_gap", "distance of running from batch statistics")
"""RMS over channels of the distance of a BatchNorm's running mean from the batch's, in running standard deviations,
and of the logarithm of the ratio of the variances."""
STATISTICS_MOMENTUM: Final = quantity("statistics_momentum", "momentum of running statistics")
"""The weight of a new batch in the running statistics of a BatchNorm, whenever it has changed."""
WEIGHT_DECAY: Final = quantity("weight_decay")
"""The largest of the optimizer's groups, whenever it has changed."""
REPEATED_BATCHES: Final = quantity("repeated_batches", unit="batches")
"""Recent steps in a row whose batch was one that had just been seen."""
INPUT_SIZE: Final = quantity("input_size", "size of the inputs")
"""RMS of a few entries of a batch's inputs, if they are numbers."""
OUTPUT_SPREAD: Final = quantity("output_spread", "spread of outputs over examples")
"""RMS over entries of the last layer's output of their standard deviation over examples."""
COMMONEST_LABEL: Final = quantity("commonest_label", "commonest label of a batch")
PROBED_EXAMPLES: Final = quantity("probed_examples", "examples of the last probe", "examples")
RECORDING_SHARE: Final = quantity("recording_share", "share of time spent on recording")

# what it took

MATVECS: Final = quantity("matvecs", "products", "products")
CONVERGED: Final = quantity("converged")
COST: Final = quantity("cost", unit="u")
PARTS: Final = {
    "inspection": "inspection",
    "behavior": "behavior",
    "trial": "trial",
    "gradients": "gradients",
    "layers": "layers",
    "conditioning": "conditioning",
    "neurons": "neurons",
    "Hessian eigenvalues": "hessian_eigenvalues",
    "largest stable lr": "max_lr",
    "Hessian trace": "hessian_trace",
}
"""Parts of a diagnosis, and how the names of their costs begin; `layers` are gradients, conditioning and neurons in
one pass."""
PART_COST: Final = {part: quantity(f"{name}_cost", f"cost of {part}", "u") for part, name in PARTS.items()}
"""What each part of a diagnosis took."""
PART_ESTIMATE: Final = {
    part: quantity(f"{name}_estimate", f"estimated cost of {part}", "u") for part, name in PARTS.items()
}
"""What each was estimated to take at most."""

# what an inspection and a trial measure

SIGNAL_GRADIENT: Final = quantity("signal_gradient")
"""RMS over examples of ‖∂ℓ/∂h‖ at a layer's output."""
NOT_FINITE_SHARE: Final = quantity("not_finite_share")
NOT_FINITE_VALUES: Final = quantity("not_finite_values")
NOT_FINITE_GRADIENTS: Final = quantity("not_finite_gradients")
PARAMETER_RMS: Final = quantity("parameter_rms")
PARAMETER_GAIN: Final = quantity("parameter_gain")
"""RMS of a weight times √(fan-in)."""
PARAMETER_GRADIENT_RMS: Final = quantity("parameter_gradient_rms")
PARAMETER_OUTLIER: Final = quantity("parameter_outlier")
"""Largest singular value of a weight over the largest that independent entries give."""
DISTINCT_UNITS: Final = quantity("distinct_units")
PARAMETER_LR: Final = quantity("parameter_lr")
PARAMETER_WEIGHT_DECAY: Final = quantity("parameter_weight_decay")
ATTENTION_ENTROPY: Final = quantity("attention_entropy")
ATTENTION_LARGEST: Final = quantity("attention_largest")
ATTENTION_SATURATED_SHARE: Final = quantity("attention_saturated_share")
ATTENTION_LOGIT_STD: Final = quantity("attention_logit_std")
EARLY_GRADIENT_SHARE: Final = quantity("early_gradient_share")
"""‖∂ℓ/∂x_t‖ of a sequence's first step over that of the step with the largest."""
DATA_RMS: Final = quantity("data_rms")
DATA_MEAN: Final = quantity("data_mean")
DATA_STD: Final = quantity("data_std")
DATA_LOW: Final = quantity("data_low")
DATA_HIGH: Final = quantity("data_high")
LARGEST_FEATURE_RMS: Final = quantity("largest_feature_rms")
MEDIAN_FEATURE_RMS: Final = quantity("median_feature_rms")
CONSTANT_FEATURES: Final = quantity("constant_features")
BATCH_PURITY: Final = quantity("batch_purity")
"""Mean share of the commonest label in a batch."""
BATCH_GROUPING: Final = quantity("batch_grouping")
"""χ² of labels by batches, in its standard deviations from what a shuffle gives."""
BATCH_SIZE: Final = quantity("batch_size")
INSPECTED_EXAMPLES: Final = quantity("inspected_examples")
INSPECTED_LOSS: Final = quantity("inspected_loss")
CONSTANT_LOSS: Final = quantity("constant_loss")
"""Loss of the best constant prediction for the first batch."""
UNINFORMED_LOSS: Final = quantity("uninformed_loss")
"""Loss of the class frequencies or the mean target as the answer for every example."""
UNIFORM_LOSS: Final = quantity("uniform_loss")
"""Loss of a classifier that gives every class the same probability."""
LOSS_AT_TARGETS: Final = quantity("loss_at_targets")
"""Loss of outputs that equal the targets."""
PERFECT_LOSS: Final = quantity("perfect_loss")
OUTPUT_VARIATION: Final = quantity("output_variation")
OUTPUT_SATURATED_SHARE: Final = quantity("output_saturated_share")
OUTPUT_ACCURACY: Final = quantity("output_accuracy")
CLAMPED_SHARE: Final = quantity("clamped_share")
TARGETS_OUTSIDE_SHARE: Final = quantity("targets_outside_share")
MIXING: Final = quantity("mixing")
"""Relative change of an example's output if the other examples of its batch are left out."""
TARGET_SHIFT: Final = quantity("target_shift", unit="steps")
"""The output at step t is asked for the input at step t + shift."""
FUTURE_CHANGE: Final = quantity("future_change")
"""Relative change of the outputs just before a step if the inputs from there on are other ones."""
GRADIENT_REACH: Final = quantity("gradient_reach", unit="steps")
"""Last steps of a sequence that a gradient comes back to."""
PADDING_SHARE: Final = quantity("padding_share")
PADDING_IN_LOSS: Final = quantity("padding_in_loss")
"""Share of padding in the steps that count in the loss."""
PADDING_INFLUENCE: Final = quantity("padding_influence")
"""Influence of a padded step on what is read from real ones, over that of a real step."""
ORDER_CHANGE: Final = quantity("order_change")
"""Relative change of the outputs if the steps of a sequence change places."""
MIXED_SIMILARITIES: Final = quantity("mixed_similarities")
"""Relative change of a contrastive loss's similarities of two examples if others are exchanged."""
CURVATURE_BEFORE: Final = quantity("curvature_before")
"""Distance of a layer's input from a midpoint, over that of the ends, where all layers before it give midpoints."""
DROPPED_SHARE: Final = quantity("dropped_share")
"""Largest share of values that the model's own code sets to zero at random in training."""
EVALUATION_CHANGE: Final = quantity("evaluation_change")
"""Relative change of the outputs in evaluation mode with other random numbers, where values are dropped there."""
LEAST_LOSS: Final = quantity("least_loss")
"""Lowest loss that any outputs have."""
ZERO_OUTPUT_LOSS: Final = quantity("zero_output_loss")
"""Loss of outputs that are all zero."""
LEAST_REACHABLE_LOSS: Final = quantity("least_reachable_loss")
"""Lowest loss of outputs that the model can give, if these have a bound."""
STANDARDIZED_LOSS: Final = quantity("standardized_loss")
STANDARDIZED_GRADIENT_NORM: Final = quantity("standardized_gradient_norm")
UNSTANDARDIZED_GRADIENT_NORM: Final = quantity("unstandardized_gradient_norm")
ROUNDING_ERROR: Final = quantity("rounding_error")
"""Distance of a layer's output from that in float32, over what differs between the examples."""
GRADIENT_ROUNDING_ERROR: Final = quantity("gradient_rounding_error")
"""Distance of the gradient in the precision of training from that in float32, relative to it."""
GRADIENT_UNDERFLOW: Final = quantity("gradient_underflow")
"""Share of the entries of the gradient that are zero in the precision of training, of those that are not in float32."""
LOST_UPDATES: Final = quantity("lost_updates")
"""Share of the weights with a gradient that the trial's first steps leave as they were."""
TRIAL_LOSS: Final = quantity("trial_loss")
TRIAL_CONSTANT_LOSS: Final = quantity("trial_constant_loss")
TRIAL_TRAINS: Final = quantity("trial_trains")
TRIAL_LR: Final = quantity("trial_lr", unit="lr")
TRIAL_STEPS: Final = quantity("trial_steps", unit="steps")
TRIAL_FINAL_LOSS: Final = quantity("trial_final_loss")
TRIAL_FALL: Final = quantity("trial_fall")
TRIAL_FALL_ERROR: Final = quantity("trial_fall_error")
TRIAL_SPIKE: Final = quantity("trial_spike")
TRIAL_OTHER_LR: Final = quantity("trial_other_lr", unit="lr")
"""Rate of the best of the runs at other rates."""
TRIAL_OTHER_FINAL_LOSS: Final = quantity("trial_other_final_loss")
TRIAL_OTHER_FALL: Final = quantity("trial_other_fall")
TRIAL_UNDECAYED_LOSS: Final = quantity("trial_undecayed_loss")
TRIAL_UNDROPPED_LOSS: Final = quantity("trial_undropped_loss")
TRIAL_RUNNING_STATISTICS_LOSS: Final = quantity("trial_running_statistics_loss")
HANDFUL_EXAMPLES: Final = quantity("handful_examples", unit="examples")
HANDFUL_LOSS: Final = quantity("handful_loss")
HANDFUL_FINAL_LOSS: Final = quantity("handful_final_loss")
HANDFUL_CONSTANT_LOSS: Final = quantity("handful_constant_loss")
BATCH_STATISTICS_LOSS: Final = quantity("batch_statistics_loss")
RUNNING_STATISTICS_LOSS: Final = quantity("running_statistics_loss")
NEIGHBOR_RELATION: Final = quantity("neighbor_relation", unit="standard deviations")
"""Standard deviations of shuffled targets by which the nearest neighbor's target is the better prediction."""
LINEAR_RELATION: Final = quantity("linear_relation", unit="standard deviations")
SMOOTH_RELATION: Final = quantity("smooth_relation", unit="standard deviations")
INPUT_STRUCTURE: Final = quantity("input_structure")
SLOW_SHARE: Final = quantity("slow_share")
"""Share of the targets' variance that only directions with a small eigenvalue predict."""
SLOW_CONDITION: Final = quantity("slow_condition")
