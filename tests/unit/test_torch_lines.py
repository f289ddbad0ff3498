"""What trainings print that torchrun starts. The logs are of torchrun 2.13.0 with two ranks, shortened."""

from __future__ import annotations

import pytest

from pytest_aisbench.model.metric import Curve
from pytest_aisbench.traininglog.curve import Progress, extend_curve, read_curve
from pytest_aisbench.traininglog.readers import read_line

LAUNCHER = """W1117 03:50:04.646000 32117 torch/distributed/run.py:874]\x20
W1117 03:50:04.646000 32117 torch/distributed/run.py:874] *****************************************
W1117 03:50:04.646000 32117 torch/distributed/run.py:874] Setting OMP_NUM_THREADS environment variable for each process
"""
# Two ranks write to one log, and nothing tells them apart.
IMAGENET = LAUNCHER + (
    "Epoch: [0][ 1/11]\tTime  0.033 ( 0.033)\tData  0.000 ( 0.000)\tLoss 2.2982e+00 (2.2982e+00)\n"
    "Epoch: [0][ 1/11]\tTime  0.035 ( 0.035)\tData  0.000 ( 0.000)\tLoss 2.2982e+00 (2.2982e+00)\n"
    "Epoch: [0][ 6/11]\tTime  0.013 ( 0.020)\tData  0.000 ( 0.000)\tLoss 2.2951e+00 (2.3368e+00)\n"
    "Epoch: [0][ 6/11]\tTime  0.011 ( 0.020)\tData  0.000 ( 0.000)\tLoss 2.2951e+00 (2.3368e+00)\n"
    "Epoch: [0][11/11]\tTime  0.012 ( 0.017)\tData  0.000 ( 0.000)\tLoss 2.2522e+00 (2.3224e+00)\n"
    " * Acc@1 9.943 Acc@5 52.841\n"
    "Epoch: [0][11/11]\tTime  0.012 ( 0.017)\tData  0.000 ( 0.000)\tLoss 2.2522e+00 (2.3224e+00)\n"
    " * Acc@1 9.943 Acc@5 52.841\n"
    "Epoch: [1][ 1/11]\tTime  0.011 ( 0.011)\tData  0.000 ( 0.000)\tLoss 2.2667e+00 (2.2667e+00)\n"
    "Epoch: [1][ 1/11]\tTime  0.013 ( 0.013)\tData  0.000 ( 0.000)\tLoss 2.2667e+00 (2.2667e+00)\n"
    "Epoch: [1][ 6/11]\tTime  0.011 ( 0.013)\tData  0.000 ( 0.000)\tLoss 2.2481e+00 (2.2948e+00)\n"
    "Epoch: [1][ 6/11]\tTime  0.014 ( 0.013)\tData  0.000 ( 0.000)\tLoss 2.2481e+00 (2.2948e+00)\n"
    "Epoch: [1][11/11]\tTime  0.011 ( 0.013)\tData  0.000 ( 0.000)\tLoss 2.2142e+00 (2.2835e+00)\n"
    " * Acc@1 13.636 Acc@5 52.841\n"
    "Epoch: [1][11/11]\tTime  0.014 ( 0.013)\tData  0.000 ( 0.000)\tLoss 2.2142e+00 (2.2835e+00)\n"
    " * Acc@1 13.636 Acc@5 52.841\n"
)
# `torchrun --tee 3`: the second rank is a whole epoch ahead.
MNIST = LAUNCHER + (
    "[default1]:Train Epoch: 1 [0/352 (0%)]\tLoss: 2.298178\n"
    "[default0]:Train Epoch: 1 [0/352 (0%)]\tLoss: 2.298178\n"
    "[default1]:Train Epoch: 1 [160/352 (45%)]\tLoss: 2.295064\n"
    "[default1]:\n"
    "[default1]:Test set: Average loss: 2.2522, Accuracy: 9833/10000 (98%)\n"
    "[default1]:Train Epoch: 2 [0/352 (0%)]\tLoss: 2.266685\n"
    "[default0]:Train Epoch: 1 [160/352 (45%)]\tLoss: 2.295064\n"
    "[default1]:Train Epoch: 2 [160/352 (45%)]\tLoss: 2.248124\n"
)
# As torchvision's reference scripts print it; the first rank alone speaks, and an evaluation has steps and a loss too.
VISION = LAUNCHER + (
    "[default0]:Epoch: [0]  [ 0/11]  eta: 0:00:11  lr: 0.1  img/s: 1531.361705040732  loss: 2.2982 (2.2982)"
    "  acc1: 25.0000 (25.0000)  acc5: 50.0000 (50.0000)  time: 0.0206  data: 0.0000\n"
    "[default0]:Epoch: [0]  [10/11]  eta: 0:00:01  lr: 0.1  img/s: 2672.38228735266  loss: 2.2522 (2.3224)"
    "  acc1: 9.3750 (9.9432)  acc5: 50.0000 (50.0000)  time: 0.0148  data: 0.0000\n"
    "[default0]:Epoch: [0] Total time: 0:00:01\n"
    "[default0]:Test:   [ 0/10]  eta: 0:00:01  loss: 3.9443 (3.9443)  acc1: 18.7500 (18.7500)"
    "  acc5: 40.6250 (40.6250)  time: 0.7323  data: 0.7053  max mem: 0\n"
    "[default0]:Test:  Acc@1 19.044 Acc@5 41.684\n"
    "[default0]:Epoch: [1]  [ 0/11]  eta: 0:00:11  lr: 0.1  img/s: 2187.8093499380584  loss: 2.2667 (2.2667)"
    "  acc1: 28.1250 (28.1250)  acc5: 50.0000 (50.0000)  time: 0.0146  data: 0.0000\n"
    "[default0]:Epoch: [1]  [10/11]  eta: 0:00:01  lr: 0.1  img/s: 1867.766880044531  loss: 2.2142 (2.2835)"
    "  acc1: 15.6250 (13.6364)  acc5: 50.0000 (50.0000)  time: 0.0136  data: 0.0000\n"
)
# BERT by the Trainer of Transformers 5, whose bar is drawn over and over in the line that its figures end.
TRAINER = LAUNCHER + (
    "\r  0%|          | 0/16 [00:00<?, ?it/s][rank1]:[W1117 03:43:35.165 reducer.cpp:1529] Warning: find_unused\n"
    "[rank0]:[W1117 03:43:35.169 reducer.cpp:1529] Warning: find_unused_parameters=True was specified\n"
    "\r 19%|█▉        | 3/16 [00:00<00:00, 25.22it/s]\r                            \r"
    "{'loss': '10.61', 'grad_norm': '1.991', 'learning_rate': '4.063e-05', 'epoch': '0.5'}\n"
    "\r 25%|██▌       | 4/16 [00:00<00:00, 25.22it/s]\r 38%|███▊      | 6/16 [00:00<00:00, 27.40it/s]\r          \r"
    "{'loss': '10.59', 'grad_norm': '1.891', 'learning_rate': '2.813e-05', 'epoch': '1'}\n"
    "\r  0%|          | 0/8 [00:00<?, ?it/s]\x1b[A\r                                              \r\n"
    "\r                                     \r\x1b[A{'eval_loss': '10.59', 'eval_accuracy': '0.5', "
    "'eval_runtime': '0.0944', 'eval_samples_per_second': '1357', 'eval_steps_per_second': '84.79', 'epoch': '1'}\n"
    "\r 50%|█████     | 8/16 [00:00<00:00, 27.40it/s]\n"
    "\r                     \x1b[A\r 56%|█████▋    | 9/16 [00:00<00:00, 19.92it/s]\r                     \r"
    "{'loss': '10.6', 'grad_norm': '1.88', 'learning_rate': '1.563e-05', 'epoch': '1.5'}\n"
    "\r                                              \x1b[A\r                           \r{'train_runtime': '0.7035', "
    "'train_samples_per_second': '363.9', 'train_steps_per_second': '22.75', 'train_loss': '10.6', 'epoch': '2'}\n"
    "\r100%|██████████| 16/16 [00:00<00:00, 24.34it/s]\r100%|██████████| 16/16 [00:00<00:00, 22.90it/s]"
)


def losses(curve: Curve) -> list[tuple[int, int, float]]:
    return [(point.epoch, point.step, point.value) for point in curve.loss.points]


def test_two_ranks_of_the_imagenet_example_make_one_curve() -> None:
    curve = read_curve(IMAGENET, ranks=2)
    steps = [(1, 1), (1, 6), (1, 11), (2, 1), (2, 6), (2, 11)]
    assert losses(curve) == [
        (*at, loss) for at, loss in zip(steps, (2.2982, 2.2951, 2.2522, 2.2667, 2.2481, 2.2142), strict=True)
    ]
    assert curve.speed.values == pytest.approx([1 / took for took in (0.033, 0.013, 0.012, 0.011, 0.011, 0.011)])
    assert [each.epoch for each in curve.evaluations] == [1, 1, 2, 2]
    assert [each.accuracy for each in curve.evaluations] == pytest.approx([0.09943, 0.09943, 0.13636, 0.13636])
    pace = curve.pace
    assert pace
    assert (pace.unit, pace.warm_up_points) == ("steps/s", 3)
    assert pace.steady == pytest.approx(1 / 0.011)
    assert pace.warm_up == pytest.approx(3 / (0.033 + 0.013 + 0.012))


def test_the_rank_that_speaks_first_is_followed() -> None:
    curve = read_curve(MNIST, ranks=2)
    assert losses(curve) == [(1, 0, 2.298178), (1, 160, 2.295064), (2, 0, 2.266685), (2, 160, 2.248124)]
    assert [each.accuracy for each in curve.evaluations] == [0.9833]


def test_torchvision_tells_images_per_second() -> None:
    curve = read_curve(VISION, ranks=2)
    assert (curve.unit, curve.of) == ("samples/s", "rank")
    assert curve.speed.values == [1531.361705040732, 2672.38228735266, 2187.8093499380584, 1867.766880044531]
    assert losses(curve) == [(1, 0, 2.2982), (1, 10, 2.2522), (2, 0, 2.2667), (2, 10, 2.2142)]
    assert [each.accuracy for each in curve.evaluations] == pytest.approx([0.19044])


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_the_trainer_writes_behind_its_bar(size: int) -> None:
    curve, progress = Curve(), Progress(ranks=2)
    for at in range(0, len(TRAINER), size):
        curve, progress = extend_curve(curve, progress, TRAINER[at : at + size])
    assert losses(curve) == [(1, 0, 10.61), (1, 0, 10.59), (2, 0, 10.6)]
    assert [(each.epoch, each.accuracy) for each in curve.evaluations] == [(1, 0.5)]
    assert str(curve.pace) == "363.9 samples/s over the whole run (the whole job, from its log)"
    assert (progress.epoch, progress.loss) == (2, 10.6)


def test_a_bar_of_any_length_counts_by_its_end() -> None:
    bar = "\r".join(f"{step}/938 [==>...] - ETA: 9s - loss: {1 / step:.4f} - accuracy: 0.5" for step in range(1, 938))
    line = f"[1,0]<stdout>:{bar}\r938/938 [====] - 4s 5ms/step - loss: 0.1111 - accuracy: 0.99"
    parsed = read_line(line)
    assert parsed
    assert (parsed[0], parsed[1].step, parsed[1].loss, parsed[1].ms_per_step) == ("1,0", 938, 0.1111, 5.0)
    assert read_line(f"{line}\r") == read_line(f"{line}\r   ") == parsed


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[default1]:[rank1]: Epoch: [3][ 9/11]\tTime  0.5 ( 0.5)\tLoss nan (nan)", {"epoch": 4, "loss": None}),
        ("Epoch: [3][ 9/11]\tTime  0.000 ( 0.000)\tData  0.5 ( 0.5)", {"has_loss": False, "ms_per_step": None}),
        ("Epoch: [3][0/5005]\tTime 6.2 (6.2)\tData 2.5 (2.5)\tLoss 7.0 (7.1)", {"ms_per_step": 6200.0, "loss": 7.0}),
        ("{'loss': 2.5, 'grad_norm': 1.0, 'learning_rate': 5e-05, 'epoch': 0.01}", {"loss": 2.5, "epoch": 1}),
        ("{'loss': nan, 'epoch': 3.0}", {"loss": None, "has_loss": True, "epoch": 3}),
        ("{'eval_loss': 1.0, 'epoch': 3.0}", {"accuracy": None}),
        ("{'train_runtime': 1.5, 'train_loss': 0.5, 'epoch': 3.0}", {"total": None}),
        (" * Prec@1 76.130 Prec@5 92.862", {"accuracy": pytest.approx(0.7613)}),
        ("Test: EMA Acc@1 76.130 Acc@5 92.862", {"accuracy": pytest.approx(0.7613)}),
    ],
)  # fmt: skip
def test_a_line(line: str, expected: dict[str, object]) -> None:
    parsed = read_line(line)
    assert parsed
    assert {name: getattr(parsed[1], name) for name in expected} == expected


@pytest.mark.parametrize(
    "line",
    [
        "[default1]:[rank1]: ValueError: loss is nan",
        "Epoch: [0] Total time: 0:00:01",
        "Test:   [ 0/10]  eta: 0:00:01  loss: 3.9443 (3.9443)  acc1: 18.7500 (18.7500)  time: 0.7323",
        "Test set: Average loss: 0.1, Accuracy: 0/0 (nan%)",
        "{'lr': 0.1, 'loss': 2.5}",
        " 50%|█████     | 8/16 [00:00<00:00, 27.40it/s, loss=2.5]",
    ],
)
def test_other_lines_say_nothing(line: str) -> None:
    assert read_line(line) is None
