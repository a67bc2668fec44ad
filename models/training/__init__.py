"""Toy tasks, a training loop, and the toy models shipped in ``models/checkpoints``."""

from models.training.batch import Batch
from models.training.evaluate import ToyEvaluation, evaluate_toy, repeat_figures
from models.training.everywhere import Place, accuracy_everywhere, lowest_accuracy
from models.training.penalty import HeadPenalty
from models.training.recipes import Recipe, Stage
from models.training.tasks import RepeatStream, RepeatTask, repeated_tokens
from models.training.toys import TOYS, Toy, train_toy
from models.training.train import Optimiser, Phase, Progress, TrainingRecord, train

__all__ = [
    "Batch",
    "HeadPenalty",
    "Optimiser",
    "Phase",
    "Place",
    "Progress",
    "Recipe",
    "RepeatStream",
    "RepeatTask",
    "Stage",
    "TOYS",
    "Toy",
    "ToyEvaluation",
    "TrainingRecord",
    "accuracy_everywhere",
    "evaluate_toy",
    "lowest_accuracy",
    "repeat_figures",
    "repeated_tokens",
    "train",
    "train_toy",
]
