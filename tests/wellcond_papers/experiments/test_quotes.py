"""What is written by hand in the book quotes its runs: openings of pages, causes, the page on five papers."""

from __future__ import annotations

import re
from statistics import fmean, median

import book
import pytest
import quotes
import together

from benchmarks import bnp_limit
from wellcond.results.quantities import (
    BETA,
    FINAL_LOSS,
    GRADIENT,
    GRADIENT_NORM,
    INPUT,
    LAMBDA_MAX,
    TEST_ACCURACY,
    TRAINING_LOSS,
    MatrixQuantities,
)
from wellcond_papers.experiments.scales import Scale
from wellcond_papers.experiments.table import Table
from wellcond_papers.papers.huang2020.deep_mlp import spread
from wellcond_papers.papers.huang2020.equal_loss import LEVELS, compared
from wellcond_papers.papers.wei2019.heat_maps import heat_maps
from wellcond_papers.papers.wei2019.judging import separated

TOGETHER = (book.BOOK / "together.md").read_text(encoding="utf-8")


def runs_of(*sources: str) -> dict[str, str]:
    pages = [(book.BOOK / f"{source}.md").read_text(encoding="utf-8") for source in sources]
    return {anchor: text for page in pages for anchor, text in quotes.runs_of(page).items()}


def test_every_number_of_the_page_on_five_papers_is_in_the_run_it_links_to() -> None:
    assert list(quotes.unsupported(TOGETHER, runs_of(*book.SOURCES))) == []
    assert len(quotes.LINK.findall(TOGETHER)) > 70


@pytest.mark.parametrize("source", book.SOURCES)
def test_every_number_of_a_review_is_in_the_run_it_links_to(source: str) -> None:
    review = book.review(source)
    assert list(quotes.unsupported(review, runs_of(source))) == []
    assert len(quotes.LINK.findall(review)) >= 10


def test_a_number_that_changed_since_it_was_quoted_is_noticed() -> None:
    """Each number with two digits or more, with another last digit, in the place of the quoted one."""
    runs, noticed = runs_of(*book.SOURCES), []
    for quoted, anchor in quotes.LINK.findall(TOGETHER):
        for number in re.findall(r"(?<![\w.])\d[\d.]*\d\b", quoted):
            other = quoted.replace(number, f"{number[:-1]}{(int(number[-1]) + 3) % 10}")
            noticed.append(any(quotes.unsupported(f"[{other}](x.md#{anchor})", runs)))
    assert len(noticed) > 60
    assert fmean(noticed) > 0.9  # some numbers stand in the same run by chance


def test_a_number_without_a_link_or_with_one_to_nowhere_is_noticed() -> None:
    assert list(quotes.unsupported("It is 3 times as large, by eq. 7.", {"a": "3"})) == ["3 in no link"]
    assert list(quotes.unsupported("It is [3](x.md#b) times as large.", {"a": "3"})) == ["3 in b"]


@pytest.mark.parametrize("source", book.SOURCES)
def test_the_page_of_a_paper_opens_with_its_review(source: str) -> None:
    page = (book.BOOK / f"{source}.md").read_text(encoding="utf-8")
    opening = book.review(source)
    assert page.startswith(f"# {source}: {book.SOURCES[source]}\n\n{opening}\n\n")
    assert opening.startswith("**In short.**")


def test_every_review_belongs_to_a_paper() -> None:
    assert {path.stem for path in book.REVIEWS.glob("*.md")} == set(book.SOURCES)


def table_of(name: str, scale: Scale) -> Table:
    return book.runs(name)[scale].table


def ends(name: str, scale: Scale, arm: str) -> list[float]:
    """Test accuracies in percent."""
    return [100 * end for end in table_of(name, scale).arm(arm).lasts(TEST_ACCURACY)]


def first(name: str, scale: Scale, arm: str, quantity: str) -> list[float]:
    """The values at the first look, of every seed that was looked at."""
    all_series = [record.series(quantity) for record in table_of(name, scale).arm(arm)]
    return [series[min(series)] for series in all_series if series]


def are_quoted(anchor: str, *numbers: str) -> bool:
    """Whether the numbers stand in the text of a run, most of them in the words of a cause, written by hand."""
    return set(numbers) <= quotes.numbers(runs_of(anchor.partition("-")[0])[anchor])


def test_one_seed_of_bnp_in_the_cnn_ends_far_below_the_others() -> None:
    accuracies = sorted(ends("lange2022-fig5", "paper", "batch 128: BNP"))
    assert [f"{end:.1f}" for end in accuracies] == ["43.5", "70.1", "70.4", "70.4", "70.8"]
    highest = max(max(record.series(TRAINING_LOSS).values()) for record in table_of("lange2022-fig5", "paper"))
    assert 950 < highest < 1050
    assert are_quoted("lange2022-fig5-paper", "43.5%", "70.1", "70.8%", "1000")


def test_the_standard_network_has_hardly_a_gradient_at_the_first_step() -> None:
    changes = [
        first("santurkar2018-fig11", "paper", f"VGG, {arm}", "gradient_change_greatest")[0]
        for arm in ("standard", "BatchNorm")
    ]
    assert [f"{change:.2g}" for change in changes] == ["0.17", "51"]
    assert 2 / table_of("santurkar2018-fig11", "paper")[0].settings["lr"] == 20
    betas = [first("santurkar2018-fig11", "paper", f"VGG, {arm}", BETA) for arm in ("standard", "BatchNorm")]
    assert [f"{beta:.1f}" for pair in betas for beta in pair] == ["4.4", "5.2", "25.6", "23.5"]
    norms = [first("santurkar2018-fig10", "paper", f"VGG, {arm}", GRADIENT_NORM) for arm in ("standard", "BatchNorm")]
    assert [f"{bn / plain:.2g}" for plain, bn in zip(*norms, strict=True)] == ["1.4e+02", "1.7e+02"]
    assert are_quoted("santurkar2018-fig11-paper", "0.17", "51", "20", "4.4", "5.2", "25.6", "23.5", "140", "170")


VGG_FIGURES = [f"santurkar2018-fig{number}" for number in (6, 7, 10, 11, 13, 14)]


def test_thirteen_runs_of_the_vgg_are_counted_together() -> None:
    losses, accuracies = (
        {
            arm: [end for name in VGG_FIGURES for end in table_of(name, "paper").arm(f"VGG, {arm}").lasts(quantity)]
            for arm in ("standard", "BatchNorm")
        }
        for quantity in (FINAL_LOSS, TEST_ACCURACY)
    )
    assert [len(ends) for each in (losses, accuracies) for ends in each.values()] == [13] * 4
    lucky, *others = sorted(losses["standard"])
    bn = losses["BatchNorm"]
    assert lucky == table_of("santurkar2018-fig7", "paper").arm("VGG, standard").where(seed=0).lasts(FINAL_LOSS)[0]
    assert lucky < min(bn) < max(bn) < min(others)
    numbers = [f"{loss:.2g}" for loss in (lucky, min(others), max(others), min(bn), max(bn))]
    assert numbers == ["1.5e-05", "0.0069", "0.013", "3.7e-05", "0.00089"]
    shares = [f"{100 * of(ends):.1f}" for ends in accuracies.values() for of in (fmean, min, max)]
    assert shares == ["78.5", "77.4", "79.4", "83.5", "82.9", "84.0"]
    for name in VGG_FIGURES:
        assert are_quoted(f"{name}-paper", *numbers, "78.5%", "77.4", "79.4", "83.5%", "82.9", "84.0")


def test_beta_of_the_deep_linear_network_is_larger_with_batchnorm_at_the_first_step() -> None:
    standard, bn = (first("santurkar2018-fig9", "paper", f"DLN, {arm}", BETA) for arm in ("standard", "BatchNorm"))
    ratios = [other / own for own, other in zip(standard, bn, strict=True)]
    assert (f"{min(ratios):.2g}", f"{max(ratios):.2g}") == ("6.6", "34")
    assert are_quoted("santurkar2018-fig9-paper", "6.6", "34")


def test_noisy_batchnorm_ends_below_the_standard_network() -> None:
    accuracies = [fmean(ends("santurkar2018-fig7", "paper", f"VGG, {arm}")) for arm in ("noisy BatchNorm", "standard")]
    assert accuracies == pytest.approx([71.4, 78.7], abs=0.0501)  # the first is 71.35
    assert are_quoted("santurkar2018-fig7-paper", "71.4%", "78.7%")
    by_seed = [
        *ends("santurkar2018-fig7", "paper", "VGG, noisy BatchNorm"),
        *ends("santurkar2018-fig7", "paper", "VGG, standard"),
    ]
    assert are_quoted("santurkar2018-fig7-paper", *(f"{end:.1f}" for end in by_seed))
    noisy, standard = (
        table_of("santurkar2018-fig7", "paper").arm(f"VGG, {arm}").lasts(FINAL_LOSS)
        for arm in ("noisy BatchNorm", "standard")
    )
    assert [f"{loss:.3g}" for loss in (*noisy, *standard)] == ["0.0151", "0.0141", "1.54e-05", "0.0132"]
    assert are_quoted("santurkar2018-fig7-paper", "0.0151", "0.0141", "1.5e-05", "0.0132")


@pytest.mark.parametrize(("matrix", "plain", "words"), [
    (GRADIENT, "plain", "32 of 80"), (GRADIENT, "plain, lr 0.1", "70 of 80"),
    (INPUT, "plain", "70 of 80"), (INPUT, "plain, lr 0.1", "68 of 80"),
])  # fmt: skip
def test_the_rate_decides_how_layers_of_a_resnet_compare(matrix: MatrixQuantities, plain: str, words: str) -> None:
    table = table_of("huang2020-fig10", "stand-in")
    pairs = [pair for level in LEVELS for pair in compared(table, plain, "BN", [matrix.kappa[0.5]], level)]
    assert f"{sum(bn < without for without, bn in pairs)} of {len(pairs)}" == words
    assert are_quoted("huang2020-fig10-stand-in", words)


def test_at_one_rate_bn_keeps_the_magnitudes_of_a_resnet_closer_together() -> None:
    table, cases, late = table_of("huang2020-fig10", "stand-in"), [], []
    for quantity in (INPUT.lambda_max, GRADIENT.lambda_max):
        for step in table.steps(quantity):
            by_arm = [table.arm(arm).mean_by_layer(quantity, step) for arm in ("BN", "plain, lr 0.1")]
            bn, plain = (spread(dict(list(layers.items())[1:-1])) for layers in by_arm)
            cases.append(bn < plain)
            late += [plain] if step and quantity == GRADIENT.lambda_max else []
    assert f"{sum(cases)} of {len(cases)}" == "7 of 8"
    assert (f"{min(late):.2g}", f"{max(late):.2g}") == ("2.7e+02", "8.8e+02")
    assert are_quoted("huang2020-fig10-stand-in", "7 of 8", "270", "880")


@pytest.mark.parametrize(("init", "smaller", "count"), [("LeCun", 114, 114), ("He", 1092, 1102)])
def test_comparisons_at_equal_loss_are_counted_by_initialization(init: str, smaller: int, count: int) -> None:
    table, kappas = table_of("huang2020-fig6", "paper"), [GRADIENT.kappa[0.5], GRADIENT.kappa[0.8]]
    pairs = [pair for level in LEVELS for pair in compared(table, f"plain, {init}", f"BN, {init}", kappas, level)]
    assert (sum(bn < without for without, bn in pairs), len(pairs)) == (smaller, count)
    assert are_quoted("huang2020-fig6-paper", str(count))


@pytest.mark.parametrize(
    "arm",
    ["CIFAR-10: BN", "CIFAR-10: BNP", "CIFAR-10: vanilla", "CIFAR-10 standardized: BN", "CIFAR-10 standardized: BNP"],
)
def test_the_ranges_of_single_seeds_are_quoted(arm: str) -> None:
    accuracies = ends("lange2022-fig3", "paper", arm)
    text = runs_of("lange2022")["lange2022-fig3-paper"]
    assert f"{min(accuracies):.1f} to {max(accuracies):.1f}" in text


@pytest.mark.parametrize(("kind", "words"), [("FC", "7 of 10"), ("conv", "2 of 10")])
def test_the_printed_limit_is_right_in_some_rows_of_the_maps(kind: str, words: str) -> None:
    maps = heat_maps(table_of("wei2019-fig2", "gpu"))
    own = {arm: each for arm, each in maps.items() if arm.startswith(kind) and arm.endswith("squared error")}
    right = separated({arm: each for arm, each in own.items() if "full batch" not in arm}, "as printed")
    assert f"{sum(right)} of {len(right)}" == words
    assert are_quoted("wei2019-fig2-gpu", words)


def test_sgd_loses_its_first_epoch() -> None:
    losses = first("zhang2018-fig1", "gpu", "CIFAR-10, SGD", TRAINING_LOSS)
    assert [f"{loss:.1f}" for loss in losses] == ["3.0", "3.1"]
    assert are_quoted("zhang2018-fig1-gpu", "3.0", "3.1")


def test_one_run_of_scale_amended_sgd_ends_lower_in_test_error_and_the_other_higher() -> None:
    ours, theirs = (ends("zhang2018-fig2", "gpu", f"CIFAR-100, {arm}") for arm in ("scale-amended", "SGD"))
    assert [f"{a - b:.1f}" for a, b in zip(ours, theirs, strict=True)] == ["4.4", "-4.0"]
    assert are_quoted("zhang2018-fig2-gpu", "4.4", "4.0")


@pytest.mark.slow
def test_the_picture_shows_the_committed_rows() -> None:
    at_start, mlp, vgg, training = together.draw().axes
    bn, plain = (line.get_ydata() for line in at_start.lines)
    measured = table_of("wei2019-fig1", "paper").arm("FC: BatchNorm, measured")[0]
    assert list(bn) == list(measured.by_layer(LAMBDA_MAX).values())
    assert len(set(plain)) == 1  # no γ without a norm
    assert [axes.get_xlim()[0] > axes.get_xlim()[1] for axes in (mlp, vgg)] == [
        True,
        True,
    ]  # the loss falls to the right
    record = table_of("huang2020-fig8", "paper").arm("BN")[0]
    looks = {step: loss for step, loss in record.series("loss").items() if step}
    before, after = max(step for step in looks if looks[step] > 0.5), min(step for step in looks if looks[step] <= 0.5)
    around = [median(list(record.by_layer(GRADIENT.kappa[0.5], step).values())[:-1]) for step in (before, after)]
    with_bn = dict(zip(*(vgg.lines[0].get_data()), strict=True))
    assert min(around) * 0.9 <= with_bn[0.5] <= max(around) * 1.1
    assert [axes.get_yscale() for axes in (mlp, vgg)] == ["log", "log"]
    *curves, edge = training.lines
    assert edge.get_ydata()[0] == 20
    assert [curve.get_xdata()[-1] for curve in curves] == [15_000] * 4  # two seeds of two networks


STEPS = (600, 1600)


def test_what_is_said_of_bnps_limit_is_in_its_runs() -> None:
    runs = bnp_limit.read(together.LIMIT_RUNS)
    steady = [run.looks for run in runs if run.collapse is None]
    lost = [(run.looks[: run.collapse], run.looks[run.collapse]) for run in runs if run.collapse is not None]
    crossed = [next(look.step for look in run.looks if look.lr_over_limit > 1) for run in runs]
    largest = [max(look.lr_over_limit for look in looks) for looks in steady]
    before = [max(look.lr_over_limit for look in looks) for looks, _ in lost]
    later = [look.lr_over_limit for looks in steady for look in looks if look.step >= 300]
    at = {step: median(look.lr_over_limit for looks in steady for look in looks if look.step == step) for step in STEPS}
    until = [[max(look.lr_over_limit for look in own[: len(looks)]) for own in steady] for looks, _ in lost]
    as_far = [sum(other >= own for other in others) for own, others in zip(before, until, strict=True)]
    facts = [
        f"Along {len(runs)} runs",
        f"{_ends([run.looks[0].lr_over_limit for run in runs], '.2f')} of the limit at the start",
        f"first seen above it at steps {_ends(crossed, 'd')}, in all {len(runs)}",
        f"the median is {median(later):.1f} in the {len(steady)} runs that go well "
        f"({', '.join(f'{value:.2g} at step {step}' for step, value in at.items())})",
        f"between {_ends(largest, '.1f', ' and ')}",
        f"{len(lost)} of {len(runs)}",
        f"between steps {min(looks[-1].step for looks, _ in lost)} and {max(after.step for _, after in lost)}",
        f"rises from between {_ends([looks[-1].loss for looks, _ in lost], '.1f', ' and ')} to between",
        f"their largest value is {_ends(before, '.1f')}, more than the median of the {len(steady)} others up to the "
        f"same step, {_ends([*map(median, until)], '.1f')}, but {_ends(as_far, 'd')} of them had gone as far",
        f"the last one {_ends([looks[-1].lr_over_limit for looks, _ in lost], '.2g')}",
    ]
    [note] = [text for text in book.experiment("lange2022-fig5").departures if "2/λ" in text]
    assert [fact for fact in facts if fact not in note] == []


def _ends(values: list[float], form: str, to: str = " to ") -> str:
    return f"{min(values):{form}}{to}{max(values):{form}}"
