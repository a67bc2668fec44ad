"""Reading the weights: heads as circuits, composition, and the MLP as a memory."""
