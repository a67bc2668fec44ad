"""Toy tasks, a training loop, and the toy models shipped in ``models/checkpoints``."""

from models.training.batch import Batch
from models.training.evaluate import ToyEvaluation, evaluate_toy, repeat_figures
from models.training.tasks import RepeatStream, RepeatTask, repeated_tokens
from models.training.toys import TOYS, Toy, train_toy
from models.training.train import Optimiser, Phase, Progress, TrainingRecord, train

__all__ = [
    "Batch",
    "Optimiser",
    "Phase",
    "Progress",
    "RepeatStream",
    "RepeatTask",
    "TOYS",
    "Toy",
    "ToyEvaluation",
    "TrainingRecord",
    "evaluate_toy",
    "repeat_figures",
    "repeated_tokens",
    "train",
    "train_toy",
]
