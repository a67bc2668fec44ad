"""Reading the weights: heads as circuits, composition, and the MLP as a memory."""

from interp.weights.circuit import induction_circuit
from interp.weights.circuit_result import InductionCircuit, Link
from interp.weights.composition import CompositionScores, composition_scores, virtual_head
from interp.weights.copying import eigenvalue_copying_scores, output_copying_scores
from interp.weights.factored import FactoredMatrix
from interp.weights.head_circuits import OVCircuit, QKCircuit, ov_circuit, qk_circuit, stacked_ov, stacked_qk
from interp.weights.key_values import FiredMemories, exciting_contexts, fired_memories, memories
from interp.weights.links import link_effects, whole_effects
from interp.weights.positional import positional_qk
from interp.weights.singular import singular_directions
from interp.weights.token_circuits import TokenCircuit, full_ov_circuit, full_qk_circuit

__all__ = [
    "CompositionScores",
    "FactoredMatrix",
    "FiredMemories",
    "InductionCircuit",
    "Link",
    "OVCircuit",
    "QKCircuit",
    "TokenCircuit",
    "composition_scores",
    "eigenvalue_copying_scores",
    "exciting_contexts",
    "fired_memories",
    "full_ov_circuit",
    "full_qk_circuit",
    "induction_circuit",
    "link_effects",
    "memories",
    "output_copying_scores",
    "ov_circuit",
    "positional_qk",
    "qk_circuit",
    "singular_directions",
    "stacked_ov",
    "stacked_qk",
    "virtual_head",
    "whole_effects",
]
