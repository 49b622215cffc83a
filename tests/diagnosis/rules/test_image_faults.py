"""Rules about what outputs see of an image: its order, the pixel that is asked for, the dimension of the classes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from rule_cases import findings
from torch import Tensor, nn

CE = nn.CrossEntropyLoss()
Function = Callable[[Tensor], Tensor]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def where_it_is() -> tuple[Tensor, Tensor]:
    """A bright quadrant, by its place."""
    place = torch.arange(256) % 4
    x = 0.3 * drawn(256, 1, 8, 8)
    for image, k in zip(x, place.tolist(), strict=True):
        image[0, 4 * (k // 2) : 4 * (k // 2) + 4, 4 * (k % 2) : 4 * (k % 2) + 4] += 1
    return x, place


def how_many() -> tuple[Tensor, Tensor]:
    """The mean brightness, which has no place."""
    count = torch.arange(256) % 3
    return 0.3 * drawn(256, 1, 8, 8) + count.view(-1, 1, 1, 1), count


class Patches(nn.Module):
    """Two by two patches, as a convolution or an unfolding has them, which see each other."""

    def __init__(self, cut: str, positions: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cut, self.conv, self.linear = cut, nn.Conv2d(1, 16, 2, stride=2), nn.Linear(4, 16)
        starts = {"none": None, "zeros": torch.zeros(16, 16), "drawn": 0.2 * torch.randn(16, 16)}[positions]
        self.positions = None if starts is None else nn.Parameter(starts)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.out = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        if self.cut == "conv":
            h = self.conv(x).flatten(2).mT
        elif self.cut == "unfold":
            h = self.linear(F.unfold(x, 2, stride=2).mT)
        else:
            h = self.linear(x.view(-1, 4, 2, 4, 2).permute(0, 1, 3, 2, 4).flatten(3).flatten(1, 2))
        h = self.block(h if self.positions is None else h + self.positions)
        return self.out(h.mean(1))


@pytest.mark.parametrize("cut", ["conv", "unfold", "view"])
def test_patches_whose_place_is_needed_and_not_seen(cut: str) -> None:
    assert findings(Patches(cut, "none"), CE, where_it_is())["order-lost"].severity == "warning"


def small_cnn(mode: str) -> nn.Module:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1, padding_mode=mode), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(8, 4))


@pytest.mark.parametrize(
    "model",
    [
        lambda: Patches("conv", "drawn"),
        lambda: Patches("unfold", "zeros"),
        lambda: small_cnn("zeros"),
        lambda: small_cnn("circular"),
    ],
)
def test_places_that_are_seen_or_will_be(model: Callable[[], nn.Module]) -> None:
    assert "order-lost" not in findings(model(), CE, where_it_is())


def test_what_has_no_place_needs_none() -> None:
    assert "order-lost" not in findings(Patches("conv", "none"), CE, how_many())


class Masked(nn.Module):
    """Convolutions that see pixels above and to the left; the center too, or not."""

    def __init__(self, first: str, *, outputs: int = 1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.out, self.center = nn.Conv2d(8, outputs, 1), {"A": 4, "B": 5}[first]

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for conv, upto in ((self.first, self.center), (self.second, 5)):
            mask = (torch.arange(9) < upto).view(3, 3)
            h = F.conv2d(h, conv.weight * mask, conv.bias, padding=1).relu()
        return self.out(h)


class Shifted(nn.Module):
    """Rows above by a convolution of the whole width, padded at the top; the image is shifted down, or not."""

    def __init__(self, *, shift: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.out, self.shift = nn.Conv2d(1, 8, (3, 1)), nn.Conv2d(8, 1, 1), shift

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, (0, 0, 1, 0))[:, :, :-1] if self.shift else x
        return self.out(self.conv(F.pad(x, (0, 0, 2, 0))).relu())


def levels(outputs: Tensor, image: Tensor) -> Tensor:
    return F.cross_entropy(outputs, image)


def test_pixels_that_see_themselves() -> None:
    x = (drawn(32, 1, 8, 8) > 0).float()
    bce = nn.BCEWithLogitsLoss()
    gray = (x[:, 0] * 3).long()
    # called by their weights, the convolutions of `Masked` are no modules that run
    assert findings(Masked("B"), bce, (x, x))["future-seen"].severity == "severe"
    assert findings(Masked("B", outputs=4), levels, (x, gray))["future-seen"].severity == "severe"
    finding = findings(Shifted(shift=False), nn.MSELoss(), (drawn(32, 1, 8, 8), drawn(32, 1, 8, 8, seed=1)))
    assert "future-seen" not in finding  # these targets are not the pixels
    image = drawn(32, 1, 8, 8)
    assert findings(Shifted(shift=False), nn.MSELoss(), (image, image))["future-seen"].layer == "conv"


def test_pixels_that_do_not_see_themselves_or_are_no_drawings() -> None:
    x = drawn(32, 1, 8, 8)
    torch.manual_seed(0)
    autoencoder = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
    by_pixel = nn.Sequential(nn.Conv2d(1, 8, 1), nn.ReLU(), nn.Conv2d(8, 1, 1))
    for model in (Masked("A"), Shifted(shift=True), autoencoder, by_pixel):
        assert "future-seen" not in findings(model, nn.MSELoss(), (x, x))


class Segmenter(nn.Module):
    """Three classes for each pixel."""

    def __init__(self, last: Function) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1))
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(x))


def overlap(p: Tensor, classes: Tensor) -> Tensor:
    codes = F.one_hot(classes, 3).permute(0, 3, 1, 2) if classes.dim() == 3 else classes
    return 1 - (2 * (p * codes).sum() + 1) / ((p + codes).sum() + 1)


def regions() -> tuple[Tensor, Tensor]:
    x = drawn(16, 3, 8, 6)
    return x, x.argmax(1)


@pytest.mark.parametrize(
    "last", [lambda h: h.softmax(-1), lambda h: F.softmax(h, 2), lambda h: h.exp() / h.exp().sum(3, keepdim=True)]
)
def test_a_softmax_over_rows_or_columns(last: Function) -> None:
    x, classes = regions()
    assert findings(Segmenter(last), overlap, (x, classes))["wrong-softmax-dimension"].severity == "severe"
    codes = F.one_hot(classes, 3).permute(0, 3, 1, 2).float()
    assert "wrong-softmax-dimension" in findings(Segmenter(last), overlap, (x, codes))


def likelihood(p: Tensor, classes: Tensor) -> Tensor:
    return F.nll_loss((p + 1e-8).log(), classes)


@pytest.mark.parametrize(("last", "loss"), [
    (lambda h: h.softmax(-1), likelihood),
    (lambda h: F.log_softmax(h, 2), F.nll_loss),
    (lambda h: h.exp() / h.exp().sum(3, keepdim=True), likelihood),
])  # fmt: skip
def test_a_likelihood_of_shares_of_rows_or_columns(last: Function, loss: Function) -> None:
    assert findings(Segmenter(last), loss, regions())["wrong-softmax-dimension"].severity == "severe"


def test_a_likelihood_of_classes_in_front_or_behind() -> None:
    assert "wrong-softmax-dimension" not in findings(Segmenter(lambda h: h.softmax(1)), likelihood, regions())
    assert "wrong-softmax-dimension" not in findings(Segmenter(lambda h: h.log_softmax(1)), F.nll_loss, regions())
    steps = drawn(16, 3, 6)  # three steps and three classes, which come last
    tagger = nn.Sequential(nn.Linear(6, 3), nn.LogSoftmax(-1))
    verdict = findings(tagger, lambda p, y: F.nll_loss(p.transpose(1, 2), y), (steps, steps[..., :3].argmax(2)))
    assert "wrong-softmax-dimension" not in verdict


@pytest.mark.slow
def test_softmaxes_over_the_classes_and_over_places() -> None:
    x, classes = regions()
    for last in (lambda h: h.softmax(1), torch.sigmoid, lambda h: h.log_softmax(1).exp()):
        assert "wrong-softmax-dimension" not in findings(Segmenter(last), overlap, (x, classes))
    heat = drawn(16, 3, 48, seed=1).softmax(2).view(16, 3, 8, 6)  # where each of three points is
    assert "wrong-softmax-dimension" not in findings(
        Segmenter(lambda h: h.flatten(2).softmax(2).view_as(h)), nn.MSELoss(), (x, heat)
    )


def codes(classes: Tensor) -> Tensor:
    """One-hot codes, classes last."""
    return F.one_hot(classes, 3).float()


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.BCEWithLogitsLoss(), lambda f, y: overlap(f.softmax(1), y)])
def test_codes_that_are_reshaped(loss: Function) -> None:
    x, classes = regions()
    scrambled = codes(classes).reshape(16, 3, 8, 6)
    finding = findings(Segmenter(nn.Identity()), loss, (x, scrambled))["output-loss-mismatch"]
    assert finding.severity == "severe"
    assert "reshape" in finding.summary


def test_codes_of_steps_that_are_viewed_the_other_way_round() -> None:
    steps = drawn(16, 7, 6)
    classes_first = codes(steps[..., :3].argmax(2)).transpose(1, 2).contiguous()
    viewed = classes_first.view(16, 7, 3)
    assert (
        "reshape" in findings(nn.Linear(6, 3), nn.BCEWithLogitsLoss(), (steps, viewed))["output-loss-mismatch"].summary
    )


def test_codes_in_their_order_and_labels_that_do_not_exclude_each_other() -> None:
    x, classes = regions()
    right = codes(classes).permute(0, 3, 1, 2).contiguous()
    several = (drawn(16, 3, 8, 6, seed=1) > 0).float()
    soft = drawn(16, 3, 8, 6, seed=1).softmax(1)
    masked = right * (drawn(16, 1, 8, 6, seed=2) > 0)
    one = nn.functional.one_hot(torch.arange(16) % 3, 3).float()
    for targets in (right, several, soft, masked):
        assert "output-loss-mismatch" not in findings(Segmenter(nn.Identity()), nn.BCEWithLogitsLoss(), (x, targets))
    assert "output-loss-mismatch" not in findings(nn.Linear(6, 3), nn.BCEWithLogitsLoss(), (drawn(16, 6), one))


def overlap_of(dim: int) -> Callable[[Tensor, Tensor], Tensor]:
    """One minus the overlap of two regions, with the softmax inside the loss over a dimension of the outputs."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        share = outputs.softmax(dim)
        regions_of_targets = F.one_hot(targets, outputs.shape[1]).movedim(-1, 1).to(share)
        return 1 - 2 * (share * regions_of_targets).sum() / (share + regions_of_targets).sum()

    return loss


@pytest.mark.parametrize(("dim", "is_wrong"), [(0, True), (1, False)])
def test_a_softmax_over_the_images_inside_a_loss_of_regions(dim: int, is_wrong: bool) -> None:
    x = drawn(24, 1, 6, 6)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1))
    every = findings(model, overlap_of(dim), (x, (x[:, 0] > 0).long() + (x[:, 0] > 1).long()))
    assert ("output-loss-mismatch" in every) is is_wrong
